"""Plays of an actor from the start and from a cut: moat/agent_r/rollouts.py, and the stages recovery_set and evaluate."""

import importlib.util
import json
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat import layout, models, runners
from moat.agent_r.actor import Answer, Missing
from moat.agent_r.losses import LostError
from moat.agent_r.play import Play, Turn
from moat.agent_r.rollouts import NAMED, Played, Start, count_drops, rollouts
from moat.agent_r.turns import ACKNOWLEDGED, NOT_READ, REFLECTIONS
from moat.engines.base import FinishReason, Generation
from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.textcraft import TextCraft
from moat.machine import Machine
from moat.react import Several
from moat.rows import Runner
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.plays import PLAYS
from moat.tables import TableError, metadata
from moat.workers import Here, Retry
from tests import agent_checkout
from tests.agent_checkout import AgentCheckout
from tests.test_environments_base import Ladder, LadderEpisode

UP, DANCE, FALL, NOTHING = "Action: up", "Action: dance", "Action: fall", "I am lost."
REFLECTION = f"Thought: {REFLECTIONS[0]}"
SAID = (UP, DANCE, FALL, NOTHING, REFLECTION)


class Counted(Ladder):
    """The ladder; it counts the steps that were taken, and the episodes that are open. `fails` is raised by a step."""

    def __init__(self, fails=None):
        super().__init__()
        self.steps, self.open, self.fails = 0, 0, fails

    def episode(self):
        self.open += 1
        return CountedEpisode(self)


class CountedEpisode(LadderEpisode):
    def _step(self, action):
        if self.environment.fails:
            raise self.error(self.environment.fails, "it broke")
        self.environment.steps += 1
        return super()._step(action)

    def close(self):
        self.environment.open -= 1


class Asked:
    """An actor that answers with `say(request)`: a text, or why there is none; keeps what it was asked, batch by batch."""

    def __init__(self, say):
        self.say, self.batches = say, []

    def ask(self, requests):
        self.batches.append(list(requests))
        said = [self.say(request) for request in requests]
        return [one if isinstance(one, Missing) else Answer(one, 3, -1.0) for one in said]


def in_order(*texts):
    """Says these texts one after the other, by the number of turns in the conversation."""
    return lambda request: texts[len(request.texts) // 2]


def start(task="ladder/a", given=(), first="the foot", play_id=""):
    return Start(play_id or task, task, "ladder", "tall", "Climb. ", first, given)


def climbed(*texts):
    """Turns of the ladder that say `texts`."""
    with Play(Ladder(), Several.LAST, 100) as one:
        one.begin("ladder/a")
        return tuple(one.say(text) for text in texts)


def go(say, starts=None, max_turns=20, world=None, at_once=10):
    """All plays, and the actor that was asked."""
    actor, world = Asked(say), world or Counted()
    played = rollouts(
        starts or [start()],
        {"ladder": world},
        actor,
        Several.LAST,
        max_turns,
        lambda one, turn: 1000 + turn,
        at_once,
        lambda n: None,
    )
    assert world.open == 0
    return played, actor


def test_a_task_is_played_to_its_end():
    """Ten steps up: the full reward, after one turn that was no step; the conversation holds every turn and its answer."""
    (one,), actor = go(in_order(UP, NOTHING, *[UP] * 9))
    row = one.row()
    assert {name: row[name] for name in ("reward_raw", "reward", "success", "ended", "n_turns", "n_invalid")} == {
        "reward_raw": 10.0,
        "reward": 1.0,
        "success": True,
        "ended": "terminal",
        "n_turns": 11,
        "n_invalid": 1,
    }
    assert actor.batches[2][0].texts == ("Climb. the foot", UP, "at 1", NOTHING, NOT_READ)
    assert [batch[0].seed for batch in actor.batches] == list(range(1000, 1011))


@given(st.lists(st.sampled_from(SAID), max_size=6), st.lists(st.sampled_from(SAID), max_size=12), st.integers(1, 8))
def test_no_play_takes_more_turns_than_it_may(before, after, limit):
    """Turns are bounded beyond those given, each action is one step of the environment, and nothing else is one."""
    given_turns = []
    for text in before:
        found = climbed(*(turn.text for turn in given_turns), text)
        if found[-1].terminal:
            break
        given_turns = list(found)
    world = Counted()
    begin = start(given=tuple(given_turns))
    texts = [*(turn.text for turn in given_turns), *after, *[DANCE] * limit]
    (one,), _ = go(in_order(*texts), [begin], limit, world)
    assert len(one.turns) <= limit
    assert one.ended == ("terminal" if one.turns[-1].terminal else "turns")
    assert one.ended == "terminal" or len(one.turns) == limit
    assert world.steps == sum(turn.kind == "action" for turn in (*given_turns, *one.turns))
    row = one.row()
    assert row["given"] == len(given_turns)
    assert row["n_reflections"] == sum(turn.observation == ACKNOWLEDGED for turn in one.turns)
    assert row["success"] is (one.reward == 1)


def test_a_reflection_is_a_turn_and_no_step():
    """It is acknowledged, counted as a turn, and is neither invalid nor a repeat; a second one at once cannot be read."""
    world = Counted()
    (one,), _ = go(in_order(UP, REFLECTION, REFLECTION, UP), max_turns=4, world=world)
    assert world.steps == 2
    assert [turn.kind for turn in one.turns] == ["action", "reflection", "unreadable", "action"]
    row = one.row()
    assert (row["n_turns"], row["n_reflections"], row["n_invalid"], row["n_repeated"]) == (4, 1, 1, 0)
    assert one.reward == 0.2


def test_a_recovery_goes_on_from_the_cut():
    """Three steps up were given: the next one is the fourth. Its turns alone are the actor's, its first seed is turn 0's."""
    (one,), actor = go(in_order(*[None] * 3, UP, DANCE, DANCE), [start(given=climbed(UP, DANCE, DANCE))], 3)
    assert actor.batches[0][0].texts == ("Climb. the foot", UP, "at 1", DANCE, "at 1", DANCE, "at 1")
    assert actor.batches[0][0].seed == 1000
    row = one.row()
    assert (row["given"], row["n_turns"], row["reward_raw"]) == (3, 3, 2.0)
    assert [turn.repeated for turn in one.turns] == [False, False, True]


def test_what_was_done_before_the_cut_is_repeated_after_it():
    (one,), _ = go(in_order(*[None] * 2, DANCE), [start(given=climbed(UP, DANCE))], 1)
    assert one.turns[0].repeated


def test_a_conversation_that_is_too_long_ends_the_play():
    """Its rewards are those so far, those of the given turns among them; it is not dropped."""
    (one,), _ = go(lambda request: UP if len(request.texts) < 5 else Missing.LENGTH)
    assert (one.ended, one.dropped, one.reward, len(one.turns)) == ("length", None, 0.2, 2)
    (one,), _ = go(lambda request: Missing.LENGTH, [start(given=climbed(UP, UP, UP))])
    assert (one.ended, one.dropped, one.reward, one.turns) == ("length", None, 0.3, ())


DRIFTED = (replace(climbed(UP)[0], observation="at 7"),)


@pytest.mark.trap(39)
@pytest.mark.parametrize(
    ("begin", "fails", "reason", "said"),
    [
        (start(first="the top"), None, "replay", "ladder/a: the first observation read 'the top' when recorded"),
        (start(given=DRIFTED), None, "replay", "ladder/a: turn 1 of 1, 'up', read 'at 7' when recorded and 'at 1' now"),
        (start("ladder/z"), None, "unknown_task", "ladder/z"),
        (start(), EpisodeErrorKind.FAULT, "fault", "ladder/a: it broke"),
    ],
    ids=["first", "given", "unknown", "fault"],
)
def test_what_the_environment_loses_is_dropped_and_named(begin, fails, reason, said):
    """The others play on."""
    world = Counted(fails)
    played, _ = go(lambda request: DANCE, [begin, start()], 2, world)
    assert (played[0].dropped, played[0].ended, played[0].row()["success"]) == (reason, reason, False)
    assert said in played[0].row()["message"]
    assert played[1].ended == ("fault" if fails else "turns")


def test_without_an_engines_answer_a_play_is_dropped():
    """The turns so far stay."""
    (one,), _ = go(lambda request: UP if len(request.texts) < 5 else Missing.ENGINE)
    assert (one.dropped, len(one.turns)) == ("engine failed", 2)
    assert one.message == "ladder/a: the engine gave no turn after 2 turns"


@pytest.mark.parametrize("kind", [EpisodeErrorKind.MISSING, EpisodeErrorKind.UNREACHABLE])
def test_without_the_environment_nothing_is_played(kind):
    with pytest.raises(EpisodeError, match="it broke"):
        go(lambda request: UP, world=Counted(kind))


def test_many_play_together_in_groups():
    """Five plays of two turns, three at once."""
    played, actor = go(lambda request: UP, [start(play_id=str(n)) for n in range(5)], 2, at_once=3)
    assert [len(batch) for batch in actor.batches] == [3, 3, 2, 2]
    assert [one.start.play_id for one in played] == list("01234")


def lost(n, dropped="replay"):
    return [Played(start(play_id=f"p{i}"), (), 0.0, 0.0, dropped, dropped, f"p{i}: {dropped}!") for i in range(n)]


def test_too_many_lost_plays_fail_the_stage():
    """At the limit it goes on, over it it names the reasons and the first message."""
    sound = [Played(start(), (), 0.0, 0.0, "turns")] * 17
    warned = []
    assert count_drops([*lost(2), *lost(1, "fault"), *sound], 0.15, warned.append) == {"fault": 1, "replay": 2}
    assert warned[0] == "p0 is dropped (replay): p0: replay!"
    with pytest.raises(LostError, match=r"4 of 21 plays were lost \(1 fault, 3 replay\).*max_dropped 0.15.*p0: replay!"):
        count_drops([*lost(3), *lost(1, "fault"), *sound], 0.15, warned.append)
    assert count_drops([], 0.0, warned.append) == {}


def test_of_many_lost_plays_the_first_are_named():
    warned = []
    count_drops(lost(NAMED + 2), 1.0, warned.append)
    assert len(warned) == NAMED + 1
    assert warned[-1] == "2 more are dropped; the table names them"


def stage_file(name):
    """agent_r/stages/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(f"tested_{name}", agent_checkout.ROOT / "agent_r/stages" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- where recoveries begin -------------------------------------------------------------------------------------------

RECOVERY_SET = stage_file("recovery_set")
STEP = Turn("Action: x", "action", "x", "o", 0.0, 0.0, False, False, False)


def failed(n, terminal=False, reward=0.0, name="a"):
    turns = [replace(STEP, text=f"Action: {i}") for i in range(n)]
    if terminal:
        turns[-1] = replace(turns[-1], terminal=True)
    return Played(start(play_id=f"ladder/{name}#0"), tuple(turns), reward, reward, "terminal" if terminal else "turns")


@given(st.integers(0, 12), st.booleans(), st.integers(1, 4), st.integers(0, 10))
def test_a_cut_lies_before_the_end_of_the_episode(n, terminal, cuts, seed):
    """After turn 1 at the earliest, never after a terminal turn, each place once, as many as there are places for."""
    terminal = terminal and n > 0
    one = failed(n, terminal)
    rows, without = RECOVERY_SET.cut([one], cuts, seed)
    assert len(rows) == min(cuts, n - terminal)
    assert len({len(row["turns"]) for row in rows}) == len(rows)
    for row in rows:
        assert 1 <= len(row["turns"]) <= n - terminal
        assert row["turns"] == [turn.row() for turn in one.turns[: len(row["turns"])]]
        assert not any(turn["terminal"] for turn in row["turns"])
        assert row["cut_id"] == f"ladder/a#0#{len(row['turns'])}"
        assert row["n_failed"] == n
    assert len(rows) + sum(without.values()) == cuts
    reason = "fewer turns than cuts" if n - terminal else "no turn before the end of the episode"
    assert {name for name, count in without.items() if count} <= {reason}


def test_every_place_is_drawn_by_some_seed():
    assert {RECOVERY_SET.places(failed(4, terminal=True), 1, seed)[0] for seed in range(60)} == {1, 2, 3}


def test_what_did_not_fail_is_no_recovery():
    """Any reward over 0 counts as none, as does what was lost; all are counted by reason, once for each cut."""
    rows, without = RECOVERY_SET.cut([failed(3), failed(3, reward=0.1, name="b"), *lost(1), failed(1, True)], 2, 0)
    assert Counter(row["task_id"] for row in rows) == {"ladder/a": 2}
    assert {reason: n for reason, n in without.items() if n} == {
        "reward over 0": 2,
        "replay": 2,
        "no turn before the end of the episode": 2,
    }


# --- the stages ---------------------------------------------------------------------------------------------------------


def solves(text):
    """The next gold action of the goal in a conversation: the first that is not in it."""
    goal = text.split("Goal: craft ")[1].split(".")[0]
    told = text.split("Goal: craft ")[1]
    gold = TextCraft().gold(f"textcraft/{goal.replace(' ', '_')}")
    return f"Action: {next(action for action in gold if f'Action: {action}' not in told)}"


def base_actor(text, seed, temperature):
    """Sampled, it asks for the inventory now and then, reflects, or says what is no action; greedy, it goes on rightly."""
    if not temperature:
        return solves(text)
    return ("Action: inventory", "Action: get 1 moon", REFLECTION, "Hm.")[seed % 4]


def loses(text, seed, temperature):
    return "Action: inventory"


class Says:
    """An engine that answers by `say(text of the prompt, seed, temperature)`; it counts calls, and dies at call `dies`."""

    def __init__(self, say, dies):
        self.say, self.dies, self.calls = say, dies, 0
        self.tokenizer = models.load_tokenizer(layout.model("actor", "0"))

    def generate(self, prompts, seeds, decoding):
        self.calls += 1
        if self.calls == self.dies:
            raise KeyboardInterrupt
        texts = [self.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]
        said = [self.say(text, seed, decoding.temperature) for text, seed in zip(texts, seeds, strict=True)]
        ids = [self.tokenizer(text, add_special_tokens=False).input_ids for text in said]
        return [Generation(one, FinishReason.STOP, -1.0) for one in ids]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Makes a checkout, and runs stages in it by an actor that says what it is told to, through the runner and its journal.

    `checkout(name, say, changes, dies)`; of one name it is the same, with the settings of `changes`.
    """

    def make(name, say, changes=None, dies=None):
        place, few = tmp_path / name, {"recovery.temperature": 1.0} | (changes or {})
        if place.exists():
            made = AgentCheckout(place, agent_checkout.small_params(place / "agent_r", few))
        else:
            made = agent_checkout.build(place, few, ("0", "1"))
        monkeypatch.chdir(made.root)
        engine = Says(say, dies)

        def runner(stage, path, max_failed, role):
            here = Here(lambda: engine, Retry(1, 0.0))
            return Runner(here, {"model": path.as_posix()}, stage.journal, 4, 4, max_failed, facts={"engine": "scripted"})

        monkeypatch.setattr(runners, "runner", runner)

        def run(stage, **arguments):
            made.run(stage, Machine(trees=4), **arguments)

        run.engine = engine
        return run

    return make


def test_failed_trajectories_are_cut_and_played_on(checkout):
    """Two attempts at each of three goals fail, and are cut twice; greedy, the same actor solves them from anywhere."""
    run = checkout("a", base_actor, {"recovery.cuts": 2})
    run("recovery_set")
    cuts, goals = CUTS.read(layout.RECOVERY), GOALS.read(layout.EVAL_TASKS)
    assert metadata(layout.RECOVERY)["facts"]["counts"] == {"rows_in": 12, "kept": 12, "dropped": {}}
    assert Counter(cuts["task_id"]) == dict.fromkeys(goals["task_id"], 4)
    assert set(cuts["n_failed"]) == {6}  # evaluate.max_turns
    run("evaluate", round="0")
    main, recovery = PLAYS.read(layout.evals("0")), PLAYS.read(layout.recoveries("0"))
    assert main["play_id"].to_list() == main["task_id"].to_list() == goals["task_id"].to_list()
    assert main["n_turns"].to_list() == [len(gold) for gold in goals["gold"]]
    assert recovery["play_id"].to_list() == cuts["cut_id"].to_list()
    assert recovery["given"].to_list() == cuts["turns"].list.len().to_list()
    assert recovery["n_turns"].to_list() == [2] * 12
    assert main["success"].all()
    assert recovery["success"].all()
    for path in (layout.evals("0"), layout.recoveries("0")):
        assert metadata(path)["facts"]["counts"]["dropped"] == {}


def test_what_the_environment_refuses_is_invalid(checkout):
    """Six times the same refused action: all are invalid, and all but the first are repeats."""
    run = checkout("a", lambda text, seed, temperature: "Action: get 1 moon")
    run("recovery_set")
    run("evaluate", round="0")
    row = PLAYS.read(layout.evals("0")).row(0, named=True)
    assert (row["n_turns"], row["n_invalid"], row["n_repeated"], row["reward"]) == (6, 6, 5, 0.0)


def test_each_evaluation_has_its_own_limit(checkout):
    """Gold actions are two: three turns are enough from the start, one is too little from a cut."""
    run = checkout("a", base_actor, {"evaluate.max_turns": 3, "recovery.max_turns": 1})
    run("recovery_set")
    run("evaluate", round="1")
    main, recovery = PLAYS.read(layout.evals("1")), PLAYS.read(layout.recoveries("1"))
    assert set(CUTS.read(layout.RECOVERY)["n_failed"]) == {3}
    assert main.select("success", "ended", "n_turns").unique().rows() == [(True, "terminal", 2)]
    assert recovery.select("success", "ended", "n_turns").unique().rows() == [(False, "turns", 1)]


def test_no_failure_is_an_empty_recovery_set(checkout, capsys):
    """It is said, and all that follows goes on."""
    run = checkout("a", lambda text, seed, temperature: solves(text))
    run("recovery_set")
    assert len(CUTS.read(layout.RECOVERY)) == 0
    assert "the recovery set is empty" in capsys.readouterr().out
    counts = metadata(layout.RECOVERY)["facts"]["counts"]
    assert counts == {"rows_in": 6, "kept": 0, "dropped": {"reward over 0": 6}}
    run("evaluate", round="1")
    assert len(PLAYS.read(layout.recoveries("1"))) == 0
    assert len(PLAYS.read(layout.evals("1"))) == 3


def test_the_same_seed_writes_the_same_bytes(checkout):
    """And another seed other cuts."""
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = checkout(name, base_actor, {"seed": seed})
        run("recovery_set")
        run("evaluate", round="0")
        paths = (layout.RECOVERY, layout.evals("0"), layout.recoveries("0"))
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


def test_an_interrupted_stage_goes_on_where_it_was(checkout):
    """What was said before is not asked again, and the tables are those of an uninterrupted run."""
    whole = checkout("whole", base_actor)
    whole("recovery_set")
    of_set = whole.engine.calls
    whole("evaluate", round="0")
    paths = (layout.RECOVERY, layout.evals("0"), layout.recoveries("0"))
    expected = [path.read_bytes() for path in paths]
    for stage, calls, arguments in (
        ("recovery_set", of_set, {}),
        ("evaluate", whole.engine.calls - of_set, {"round": "0"}),
    ):
        with pytest.raises(KeyboardInterrupt):
            checkout("killed", base_actor, dies=3)(stage, **arguments)
        run = checkout("killed", base_actor)
        run(stage, **arguments)
        assert run.engine.calls == calls - 2
    assert [path.read_bytes() for path in paths] == expected


def test_a_cut_that_is_answered_differently_is_dropped_by_name(checkout, capsys):
    """As when the environment is another than it was; over the limit nothing is written."""
    run = checkout("a", loses, {"limits.max_dropped": 0.2})
    run("recovery_set")
    rows = CUTS.read(layout.RECOVERY).to_dicts()
    rows[0]["turns"][0]["observation"] = "Got 1 moon"
    CUTS.write(layout.RECOVERY, rows, {})
    capsys.readouterr()
    run("evaluate", round="0")
    played = PLAYS.read(layout.recoveries("0"))
    assert played.filter(played["dropped"] == "replay")["play_id"].to_list() == [rows[0]["cut_id"]]
    assert metadata(layout.recoveries("0"))["facts"]["counts"] == {"rows_in": 6, "kept": 5, "dropped": {"replay": 1}}
    assert f"{rows[0]['cut_id']} is dropped (replay): {rows[0]['task_id']}: turn 1 of" in capsys.readouterr().out
    run = checkout("a", loses, {"limits.max_dropped": 0.1})
    with pytest.raises(LostError, match=f"1 of 6 plays were lost.*{rows[0]['task_id']}"):
        run("evaluate", round="1")
    assert not layout.evals("1").exists()


def test_a_cut_of_another_evaluation_is_refused(checkout):
    run = checkout("a", loses)
    run("recovery_set")
    rows = [row | {"task_id": "textcraft/moon"} for row in CUTS.read(layout.RECOVERY).to_dicts()]
    CUTS.write(layout.RECOVERY, rows, {})
    with pytest.raises(TableError, match=r"data/recovery.parquet has a cut of textcraft/moon"):
        run("evaluate", round="0")


def test_an_actor_is_evaluated_and_summarised(tmp_path):
    """With a model that knows what can be said and nothing more: nothing is lost, and the figures are there."""
    changes = {"rounds": {}, "evaluated": {"0": {"prev": ""}}, "evaluate.temperature": 1.0}
    checkout = agent_checkout.build(tmp_path, changes)
    for name, arguments in (("recovery_set", {}), ("evaluate", {"round": "0"}), ("summarize", {})):
        checkout.run(name, **arguments)
    metrics = json.loads((checkout.root / layout.METRICS).read_text())
    cuts, block = checkout.read(CUTS, layout.RECOVERY), metrics["rounds"]["0"]
    assert 0 < len(cuts) <= 6
    assert (block["main"]["n"], block["main"]["dropped"]) == (3, {})
    assert (block["recovery"]["n"], metrics["recovery_set"]["cuts"]) == (len(cuts), len(cuts))
    assert max(row["n_turns"] for row in checkout.read(PLAYS, layout.recoveries("0"))) <= 5
    assert block["search"] is None
