"""The client of AgentGym's servers: moat/agentgym.py."""

import socket
import threading
import time

import pytest

from moat.actions import parse
from moat.agentgym import MAX_ANSWER, Environment, Server, ServerError, ServerErrorKind
from moat.sessions import Available, Observed, episode_reward
from moat.tools.webshop import webshop_tools
from moat.worlds.shop import Shop, record
from tests.agentgym_server import Raw, SciWorld, TextCraft, WebShop

PAUSES = []


def client(gym, environment, **settings):
    PAUSES.clear()
    return Server(gym.url, environment, **({"timeout": 5.0, "sleep": PAUSES.append} | settings))


def failure(call, kind):
    """The ServerError of a call, which must be of a kind."""
    with pytest.raises(ServerError) as caught:
        call()
    assert caught.value.kind is kind
    return caught.value


# --- the three protocols -------------------------------------------------------------------------------------------


def test_webshop():
    with WebShop() as gym, client(gym, Environment.WEBSHOP).create() as session:
        wish = Shop(0).goal(7).instruction
        assert session.reset(7) == session.observe() == f"Shop [SEP] Instruction: [SEP] {wish} [SEP] Search"
        assert session.available_actions() == Available(True, ("search",))
        assert "Total results" in session.step("search[mug]").observation
    assert gym.requests == [
        ("/create", {}),
        ("/reset", {"env_idx": 48950, "session_id": 7}),
        ("/observation", {"env_idx": 48950}),
        ("/available_actions", {"env_idx": 48950}),
        ("/step", {"env_idx": 48950, "action": "search[mug]"}),
        ("/close", {"env_idx": 48950}),
    ]


@pytest.mark.trap(43)
def test_textcraft_is_sent_action_with_its_name():
    with TextCraft() as gym, client(gym, Environment.TEXTCRAFT).create() as session:
        assert session.reset(5) == "Goal 5: craft stick."
        assert session.step("inventory") == Observed("Inventory: You are not carrying anything.", 0.0, False)
        assert session.step("get 1\n stick") == Observed("Got 1 stick", 1.0, True)
        assert (session.reward, session.done) == (1.0, True)
    assert gym.requests[1:4] == [
        ("/reset", {"id": 3, "data_idx": 5}),
        ("/step", {"id": 3, "action": "Action: inventory"}),
        ("/step", {"id": 3, "action": "Action: get 1 stick"}),
    ]


@pytest.mark.trap(43)
def test_a_bare_action_that_is_read_as_empty_is_told():
    with TextCraft() as gym, client(gym, Environment.TEXTCRAFT, prefix="").create() as session:
        error = failure(lambda: session.step("inventory"), ServerErrorKind.MISREAD)
    assert 'prefix="Action: "' in str(error)


@pytest.mark.trap(43)
def test_a_prefix_that_is_read_as_part_of_the_action_is_told():
    with TextCraft() as gym:
        gym.reads_prefix = False
        session = client(gym, Environment.TEXTCRAFT).create()
        assert 'prefix=""' in str(failure(lambda: session.step("inventory"), ServerErrorKind.MISREAD))
        bare = client(gym, Environment.TEXTCRAFT, prefix="").create()
        assert bare.step("get 1 stick").reward == 1
        assert "dig" in client(gym, Environment.TEXTCRAFT, prefix="").create().step("dig").observation


@pytest.mark.trap(43)
def test_sciworld_scores_a_sum_of_a_hundred():
    with SciWorld() as gym, client(gym, Environment.SCIWORLD).create() as session:
        assert session.reset(2) == "Boil water.\nA kitchen."
        assert session.observe() == "A kitchen."
        assert session.step("focus on water") == Observed("focus on water", 0.25, False)
        assert episode_reward(session) == 0
        assert session.step("wait") == Observed("wait", 1.0, True)
        assert session.observe() == "wait"
        assert episode_reward(session) == 1
        session.reset(3)
        assert (session.reward, session.done) == (0.0, False)
        assert session.step("eat poison") == Observed("eat poison", 0.0, True)


@pytest.mark.trap(43)
@pytest.mark.parametrize("reads", ["Action: ", ""])
@pytest.mark.parametrize("sent", ["Action: ", ""])
@pytest.mark.parametrize(("kind", "environment"), [(TextCraft, Environment.TEXTCRAFT), (SciWorld, Environment.SCIWORLD)])
def test_a_check_tells_which_form_of_actions_a_server_reads(kind, environment, reads, sent):
    with kind() as gym:
        gym.prefix, gym.reads_prefix = reads, bool(reads)
        server = client(gym, environment, prefix=sent)
        if reads == sent:
            server.check()
        else:
            assert f'prefix="{reads}"' in str(failure(server.check, ServerErrorKind.MISREAD))
        assert gym.requests[-1][0] == "/close"


def test_a_check_of_webshop_takes_no_action():
    with WebShop() as gym:
        client(gym, Environment.WEBSHOP).check()
        assert [path for path, _ in gym.requests] == ["/create", "/reset", "/available_actions", "/close"]


@pytest.mark.parametrize(("kind", "environment"), [(TextCraft, Environment.TEXTCRAFT), (SciWorld, Environment.SCIWORLD)])
def test_what_a_server_does_not_list_is_said(kind, environment):
    with kind() as gym, client(gym, environment).create() as session:
        failure(session.available_actions, ServerErrorKind.UNSUPPORTED)


# --- the end of an episode and of a session ------------------------------------------------------------------------


@pytest.mark.trap(43)
def test_a_step_after_the_end_is_an_error_and_is_not_sent():
    with TextCraft() as gym, client(gym, Environment.TEXTCRAFT).create() as session:
        session.step("get 1 stick")
        sent = len(gym.requests)
        assert "reset" in str(failure(lambda: session.step("inventory"), ServerErrorKind.OVER))
        assert len(gym.requests) == sent
        session.reset(0)
        session.step("inventory")


def test_a_session_is_closed_once_and_cannot_be_used_then():
    with WebShop() as gym:
        with client(gym, Environment.WEBSHOP).create() as session:
            pass
        session.close()
        assert [path for path, _ in gym.requests] == ["/create", "/close"]
        failure(lambda: session.reset(0), ServerErrorKind.OVER)


def test_a_session_is_closed_when_its_block_fails():
    with WebShop() as gym:
        with pytest.raises(KeyError, match="mine"), client(gym, Environment.WEBSHOP).create():
            raise KeyError("mine")
        assert gym.requests[-1][0] == "/close"


def test_a_failing_close_does_not_hide_what_went_wrong_first():
    with WebShop() as gym:
        with pytest.raises(KeyError, match="mine") as caught, client(gym, Environment.WEBSHOP).create():
            gym.faults = [{"error": "no"}]
            raise KeyError("mine")
        assert "could not be closed" in caught.value.__notes__[0]


def test_a_server_without_close_is_no_error():
    with TextCraft() as gym:
        client(gym, Environment.TEXTCRAFT).create().close()
        assert gym.requests[-1] == ("/close", {"id": 3})


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.trap(43)
@pytest.mark.parametrize("call", ["reset", "step", "observe", "available_actions"])
def test_an_error_in_an_answer_of_200_is_an_error(call):
    with WebShop() as gym:
        session = client(gym, Environment.WEBSHOP).create()
        gym.faults = [{"error": "The id 48950 is not valid."}]
        made = {"reset": lambda: session.reset(0), "step": lambda: session.step("search[x]")}
        error = failure(made.get(call) or getattr(session, call), ServerErrorKind.REFUSED)
        endpoint = {"observe": "/observation"}.get(call, f"/{call}")
        assert error.endpoint == endpoint
        assert str(error).startswith(f"webshop server {gym.url}{endpoint}: the server says 'The id 48950 is not valid.'; ")
        assert PAUSES == []


@pytest.mark.trap(43)
def test_a_create_that_is_refused_is_an_error():
    with SciWorld() as gym:
        gym.faults = [{"error": "no Java"}]
        assert "no Java" in str(failure(client(gym, Environment.SCIWORLD).create, ServerErrorKind.REFUSED))


def test_a_server_that_says_it_failed_is_asked_again_after_a_doubling_pause():
    with WebShop() as gym:
        gym.faults = [500, 503, 500]
        session = client(gym, Environment.WEBSHOP, pause=0.5).create()
        assert PAUSES == [0.5, 1.0, 2.0]
        gym.faults = [500, 503]
        assert "Total results" in session.step("search[mug]").observation


def test_attempts_end():
    with WebShop() as gym:
        gym.faults = [500] * 9
        error = failure(client(gym, Environment.WEBSHOP, attempts=3).create, ServerErrorKind.STATUS)
        assert "HTTP 500" in str(error)
        assert "attempt 3" in str(error)
        assert len(gym.requests) == 3


@pytest.mark.parametrize("fault", ["drop", 502, 504, "slow"])
def test_a_lost_answer_is_asked_for_again_where_that_does_no_harm(fault):
    with WebShop() as gym:
        session = client(gym, Environment.WEBSHOP, timeout=1.0).create()
        gym.faults = [fault]
        assert session.observe() == Shop(0).goal(0).instruction.join(["Shop [SEP] Instruction: [SEP] ", " [SEP] Search"])
        assert len(PAUSES) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("drop", ServerErrorKind.CONNECTION),
        (502, ServerErrorKind.STATUS),
        (504, ServerErrorKind.STATUS),
        ("slow", ServerErrorKind.TIME),
    ],
)
def test_a_step_that_may_have_been_taken_is_not_taken_twice(fault, kind):
    with WebShop() as gym:
        session = client(gym, Environment.WEBSHOP, timeout=1.0).create()
        sent = len(gym.requests)
        gym.faults = [fault]
        assert "may have been taken" in str(failure(lambda: session.step("search[mug]"), kind))
        assert len(gym.requests) == sent + 1


@pytest.mark.parametrize("status", [400, 404, 422, 302])
def test_another_status_is_an_error_at_once(status):
    with WebShop() as gym:
        gym.faults = [status]
        assert f"HTTP {status}" in str(failure(client(gym, Environment.WEBSHOP).create, ServerErrorKind.STATUS))
        assert len(gym.requests) == 1


def test_no_server_is_told_with_what_to_do():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        server = Server(url, Environment.TEXTCRAFT, attempts=2, sleep=PAUSES.append)
        PAUSES.clear()
        error = failure(server.create, ServerErrorKind.CONNECTION)
    assert f"textcraft server {url}/create" in str(error)
    assert "start the server" in str(error)
    assert len(PAUSES) == 1


@pytest.mark.parametrize(
    "answer", [Raw(b"<html>"), Raw(b""), Raw(b"\xff"), Raw(b"[" * 100_000), None, "3", True, 1.5, [], {}]
)
def test_garbage_instead_of_a_session(answer):
    with WebShop() as gym:
        gym.faults = [answer if answer is not None else Raw(b"null")]
        failure(client(gym, Environment.WEBSHOP).create, ServerErrorKind.GARBAGE)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"state": 3, "reward": 0, "done": False},
        {"state": "x", "reward": "0", "done": False},
        {"state": "x", "reward": True, "done": False},
        Raw(b'{"state": "x", "reward": NaN, "done": false}'),
        {"state": "x", "reward": 0, "done": "no"},
        {"observation": "x", "reward": 0, "done": False},
    ],
)
def test_garbage_instead_of_a_step(answer):
    with WebShop() as gym:
        session = client(gym, Environment.WEBSHOP).create()
        gym.faults = [answer]
        failure(lambda: session.step("search[mug]"), ServerErrorKind.GARBAGE)
        assert (session.reward, session.done) == (0.0, False)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("reset", []),
        ("reset", "x"),
        ("reset", [3, None]),
        ("observe", {"state": "x"}),
        ("observe", 3),
        ("available_actions", {"has_search_bar": 1, "clickables": []}),
        ("available_actions", {"has_search_bar": True, "clickables": "search"}),
        ("available_actions", {"has_search_bar": True, "clickables": [3]}),
        ("available_actions", []),
    ],
)
def test_garbage_instead_of_an_answer(call, answer):
    with WebShop() as gym:
        session = client(gym, Environment.WEBSHOP).create()
        gym.faults = [answer]
        failure((lambda: session.reset(0)) if call == "reset" else getattr(session, call), ServerErrorKind.GARBAGE)


def test_an_endless_answer_is_cut():
    with WebShop() as gym:
        gym.faults = [Raw(b" " * (MAX_ANSWER + 1))]
        assert "more than" in str(failure(client(gym, Environment.WEBSHOP).create, ServerErrorKind.GARBAGE))


def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with WebShop() as gym:
        assert client(gym, Environment.WEBSHOP, attempts=1).create().number == 48950


@pytest.mark.parametrize("url", ["127.0.0.1:36001", "file:///etc/passwd", "http://", "ftp://host", "http://host/?a=b"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="address"):
        Server(url, Environment.WEBSHOP)


@pytest.mark.parametrize("settings", [{"attempts": 0}, {"timeout": 0}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ValueError, match="attempts"):
        Server("http://127.0.0.1:1", Environment.WEBSHOP, **settings)


# --- the tools over a server ---------------------------------------------------------------------------------------


def test_the_tools_of_webshop_work_over_a_server_as_in_process():
    task = record(Shop(0), 4)
    with WebShop() as gym, client(gym, Environment.WEBSHOP).create() as session:
        session.reset(4)
        tools, results = webshop_tools(session), {}
        for action in parse(task.actions):
            results[action.name] = tools[action.tool](action.arguments, results)
        assert results[action.name] == "1"
        assert episode_reward(session) == 1


def test_sessions_side_by_side_do_not_wait_for_each_other():
    with TextCraft() as gym:
        server = client(gym, Environment.TEXTCRAFT)
        slow, quick = server.create(), server.create()
        gym.faults = ["slow"]
        lost = []
        stuck = threading.Thread(
            target=lambda: lost.append(failure(lambda: slow.step("inventory"), ServerErrorKind.CONNECTION))
        )
        stuck.start()
        while gym.faults:
            time.sleep(0.01)
        assert quick.step("inventory").observation.startswith("Inventory")
        gym.released.set()
        stuck.join(5)
        assert len(lost) == 1
