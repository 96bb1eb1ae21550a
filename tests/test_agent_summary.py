"""Agent-R's figures, counted by hand on small tables: moat/agent_r/summary.py and agent_r/stages/summarize.py."""

import csv
import json
from dataclasses import replace

import polars as pl
import pytest
from scipy.stats import binomtest

from moat import layout
from moat.agent_r import summary
from moat.agent_r.play import Turn
from moat.agent_r.rollouts import Played, Start
from moat.agent_r.summary import (
    CURVES,
    judge_block,
    placed,
    plays,
    recovery_set_block,
    revisions_block,
    search_block,
    trained,
)
from moat.agent_r.turns import REFLECTIONS
from moat.react import Several
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from moat.tables import TableError
from tests import agent_checkout
from tests.agent_checkout import AgentCheckout

ACT = Turn("Action: x", "action", "x", "o", 0.0, 0.0, False, False, False)
REFLECT = replace(ACT, text=f"Thought: {REFLECTIONS[0]}", kind="reflection", action="")
LOST = replace(ACT, text="Hm.", kind="unreadable", action="")


def played(task, turns, reward, *, environment="textcraft", kind="depth 1", given=0, dropped=None, ended="turns"):
    """A row of the table of plays."""
    start = Start(f"{task}#{given}", task, environment, kind, "", "", (ACT,) * given)
    return Played(start, tuple(turns), 10 * reward, reward, dropped or ended, dropped, dropped or "").row()


def frame(schema, rows):
    """Rows as a table that was read."""
    return pl.DataFrame(rows, schema=pl.from_arrow(schema.schema.empty_table()).schema)


# Of textcraft two tasks, of which one is solved; of the game one with half of the reward; one play was lost.
PLAYED = [
    played("t/a", [ACT, REFLECT, replace(ACT, repeated=True), ACT], 1.0, ended="terminal"),
    played("t/b", [replace(ACT, action="y", refused=True), LOST], 0.0, kind="depth 2"),
    played("g/a", [ACT, replace(ACT, action="z")], 0.5, environment="game", kind="game", ended="length"),
    played("g/b", [ACT] * 9, 0.0, environment="game", kind="game", dropped="replay"),
]


def test_plays_by_hand():
    """All: 3 plays, 8 turns, 6 actions of which 1 repeats, 7 turns but reflections of which 2 are invalid."""
    found = plays(frame(PLAYS, PLAYED), seed=0)
    assert {name: found[name] for name in ("n", "tasks", "success", "reward", "turns", "dropped")} == {
        "n": 3,
        "tasks": 3,
        "success": pytest.approx(1 / 3),
        "reward": 0.5,
        "turns": pytest.approx(8 / 3),
        "dropped": {"replay": 1},
    }
    assert found["loop_rate"] == pytest.approx(1 / 6)
    assert found["invalid_rate"] == pytest.approx(2 / 7)
    assert found["reflections"] == pytest.approx(1 / 3)
    assert found["loops"] == {1: 2}
    assert found["ended"] == {
        "length": pytest.approx(1 / 3),
        "terminal": pytest.approx(1 / 3),
        "turns": pytest.approx(1 / 3),
    }
    interval = binomtest(1, 3).proportion_ci(method="wilson")
    assert (found["success_low"], found["success_high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found["reward_low"] < 0.5 < found["reward_high"]


def test_plays_by_environment_and_kind():
    """The averages are those of the environments, however many plays each has: textcraft 1/2 and the game 1/2."""
    found = plays(frame(PLAYS, PLAYED), seed=0)
    craft, game = found["environments"]["textcraft"], found["environments"]["game"]
    assert (craft["n"], craft["success"], game["n"], game["success"], game["dropped"]) == (2, 0.5, 1, 0.0, {"replay": 1})
    assert {kind: one["success"] for kind, one in craft["kinds"].items()} == {"depth 1": 1.0, "depth 2": 0.0}
    assert (found["reward_avg"], found["success_avg"]) == (0.5, 0.25)
    assert game["kinds"]["game"]["reward"] == 0.5
    assert craft["kinds"]["depth 2"]["loop_rate"] == 0.0


def test_a_reflection_is_neither_valid_nor_invalid():
    """A play of reflections alone has no turn that could be either."""
    found = plays(frame(PLAYS, [played("t/a", [REFLECT], 0.0)]), seed=0)
    assert (found["invalid_rate"], found["loop_rate"], found["reflections"]) == (None, None, 1.0)


def test_nothing_has_no_figures():
    """Not zero: what was not measured is null, and counts alone are 0."""
    found = plays(frame(PLAYS, []), seed=0)
    assert {name for name, value in found.items() if value is not None} == {
        "n",
        "tasks",
        "loops",
        "ended",
        "dropped",
        "environments",
    }
    assert plays(frame(PLAYS, [PLAYED[3]]), seed=0)["success"] is None
    for block in (
        search_block(frame(TREES, []), 0.5),
        revisions_block(frame(REVISIONS, [])),
        judge_block(frame(JUDGEMENTS, [])),
        trained(frame(TRAINED, []), Several.LAST),
        recovery_set_block(frame(CUTS, [])),
    ):
        assert all(value in (None, 0, {}) for value in block.values())


def tree(task, best, worst, *, dropped=None, stopped="iterations", environment="textcraft"):
    return {
        "task_id": task,
        "environment": environment,
        "rollouts": 6,
        "stopped": "dropped" if dropped else stopped,
        "best": best,
        "worst": worst,
        "calls": 10,
        "tokens": 100,
        "steps": 20,
        "replayed": 5,
        "dropped": dropped,
        "message": "",
    }


TREES_MADE = [
    tree("t/a", 1.0, 0.0),
    tree("t/b", 0.6, 0.5),
    tree("t/c", 1.0, 0.6, stopped="exhausted"),
    tree("t/d", 0.0, 0.0, dropped="fault"),
]


@pytest.mark.trap(37)
def test_trees_by_hand():
    """Two of three are solved. At alpha 0.5 the reward 0.5 is bad and 0.6 good; at alpha 1 nothing but 1 is good."""
    found = search_block(frame(TREES, TREES_MADE), 0.5)
    assert (found["trees"], found["solved"], found["both"]) == (3, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert search_block(frame(TREES, TREES_MADE[1:]), 1.0)["both"] == 0.5
    assert (found["stopped"], found["dropped"]) == ({"exhausted": 1, "iterations": 2}, {"fault": 1})
    assert (found["calls"], found["tokens"], found["steps"], found["replayed"]) == (40, 400, 80, 20)  # all four cost


def revision(task, bad, good, *, first=None, turn=None, replayed=True, dropped=None):
    return {
        "task_id": task,
        "environment": "textcraft",
        "bad": bad,
        "good": good,
        "shared": 1,
        "n_bad": 5,
        "bad_reward": 0.0,
        "good_reward": 1.0,
        "first_bad": first,
        "turn": turn,
        "revision_length": None if first is None else first + 1,
        "reflection": None if turn is None else turn + 1,
        "turns": [],
        "replayed": replayed,
        "reward": 1.0,
        "dropped": dropped,
        "message": "",
    }


REVISED = [
    revision("t/a", 4, 7, first=1, turn=2),
    revision("t/a", 4, 9, first=1, turn=3, dropped="not over alpha"),
    revision("t/a", 5, 7, first=4, turn=4),
    revision("t/c", 3, 6, replayed=False, dropped="no turn"),
    revision("t/c", 8, 6, first=0, turn=1, replayed=False),
]


def test_revisions_by_hand():
    """Three were taken again, of which two are kept; the fifth is kept as a text. A bad path of two pairs counts once."""
    found = revisions_block(frame(REVISIONS, REVISED))
    assert found == {
        "pairs": 5,
        "kept": 3,
        "dropped": {"no turn": 1, "not over alpha": 1},
        "reexecuted": 3,
        "survival": pytest.approx(2 / 3),
        "bad_paths": 4,
        "revision_length": pytest.approx((2 + 5 + 1) / 3),
        "first_bad": pytest.approx((1 + 4 + 0) / 3),
        "turn": pytest.approx((2 + 3 + 4 + 1) / 4),
    }


def judged(number, label, tree, refused=False, task="t/a"):
    return {
        "task_id": task,
        "bad": 4,
        "turn": number,
        "node": number + 1,
        "label": label,
        "reasons": "",
        "tree": tree,
        "refused": refused,
    }


JUDGED = [
    judged(0, "good", "good"),
    judged(1, "bad", "bad", refused=True),
    judged(2, "bad", "good"),
    judged(3, "good", "bad", refused=True),
    judged(4, "uncertain", "bad", refused=True),
    judged(5, "unparsed", "good"),
]


def test_judgements_by_hand():
    """Of four steps labelled good or bad two are as the tree has it; of three refused ones one is labelled bad; of two
    labelled bad one was refused; what is unparsed is no label."""
    found = judge_block(frame(JUDGEMENTS, JUDGED))
    assert found == {
        "steps": 6,
        "labels": {"bad": 2, "good": 2, "uncertain": 1, "unparsed": 1},
        "unparsed": pytest.approx(1 / 6),
        "agreement": 0.5,
        "tree_bad": 0.5,
        "bad_given_refused": pytest.approx(1 / 3),
        "refused_given_bad": 0.5,
    }


def lesson(row_id, origin, actions, *, tokens=10, weight=0.01, context=0, environment="textcraft"):
    """A row that is trained on: the actions after the first `context` are learned from."""
    texts = [text for action in ["goal", *actions] for text in (f"Action: {action}", "o")][1:]
    return {
        "row_id": row_id,
        "origin": origin,
        "task_id": None if origin == "general" else "t/a",
        "environment": environment,
        "reward": None if origin == "general" else 1.0,
        "texts": texts,
        "supervised": [number % 2 == 1 and number // 2 >= context for number in range(len(texts))],
        "n_supervised": tokens,
        "weight": weight,
    }


LESSONS = [
    lesson("good/t/a/1", "good", ["x", "x", "y"]),
    lesson("good/t/a/2", "good", ["x"], tokens=30),
    lesson("revision/t/a/1/2", "revision", ["x", "x", "x", "y"], context=2, weight=0.02),
    lesson("general/1", "general", [], environment="general", weight=0.05),
]


def test_lessons_by_hand():
    """The repeat in a revision's bad part is context: `x` is learned once there."""
    found = trained(frame(TRAINED, LESSONS), Several.LAST)
    assert {name: one["rows"] for name, one in found["origin"].items()} == {"general": 1, "good": 2, "revision": 1}
    good, revised = found["origin"]["good"], found["origin"]["revision"]
    assert (good["tokens"], good["weight"], good["turns"], good["loops"]) == (40, pytest.approx(0.4), 2.0, {1: 1})
    assert (revised["weight"], revised["turns"], revised["actions"], revised["loops"]) == (pytest.approx(0.2), 4.0, 2, {})
    assert (found["rows"], found["tokens"], found["weight"]) == (4, 60, pytest.approx(1.1))
    assert set(found["environments"]) == {"textcraft", "general"}


def test_a_row_of_another_task_is_refused():
    goals = pl.DataFrame({"task_id": ["t/a"], "environment": ["textcraft"], "kind": ["depth 1"]})
    assert placed(frame(JUDGEMENTS, JUDGED), goals, "judgements")["environment"].unique().to_list() == ["textcraft"]
    with pytest.raises(TableError, match="'trees' has the task t/b, which is no training task"):
        placed(frame(TREES, TREES_MADE), goals, "trees")


# --- the stage ----------------------------------------------------------------------------------------------------------


def goal(task, environment="textcraft", kind="depth 1"):
    told = {"demonstrated": False, "searched": True, "instruction": "", "first": "", "gold": []}
    return {"task_id": task, "environment": environment, "kind": kind} | told


def cut(task, n):
    return {
        "cut_id": f"{task}#0#{n}",
        "task_id": task,
        "environment": "textcraft",
        "kind": "depth 1",
        "first": "",
        "n_failed": 6,
        "turns": [ACT.row()] * n,
    }


@pytest.fixture
def summarize(tmp_path, monkeypatch):
    """Writes the tables of a run of round 0 and one more, and summarises them; gives metrics.json and the curves."""
    rounds = {"1": {"prev": "0", "alpha": 0.5, "epochs": 1}}
    changes = {"rounds": rounds, "evaluated": {"0": {"prev": ""}, "1": rounds["1"]}}
    checkout = AgentCheckout(tmp_path, agent_checkout.small_params(tmp_path / "agent_r", changes))
    monkeypatch.chdir(checkout.root)

    def run(empty=False, cuts=True):
        rows = dict(zip((TREES, JUDGEMENTS, REVISIONS, TRAINED), (TREES_MADE, JUDGED, REVISED, LESSONS), strict=True))
        GOALS.write(layout.TRAIN_TASKS, [goal(name) for name in ("t/a", "t/b", "t/c", "t/d")], {})
        CUTS.write(layout.RECOVERY, [cut("t/a", 2), cut("t/a", 4), cut("t/b", 2)] if cuts else [], {})
        for key in ("0", "1"):
            PLAYS.write(layout.evals(key), PLAYED, {})
            again = [played("t/a", [REFLECT, ACT], 0.0, given=n) for n in (2, 4)] if cuts else []
            PLAYS.write(layout.recoveries(key), again, {})
        facts = {"counts": {"rows_in": 9, "kept": 4, "dropped": {"over max_length": 5}}}
        if not empty:
            facts["found"] = {"twos": 8, "pairs": 5, "removed": {"alpha": 2, "beta": 1}, "trees": 3, "empty": {}}
        for schema, own in rows.items():
            name = "sft" if schema is TRAINED else schema.name
            kept = own if not empty else LESSONS[:1] if schema is TRAINED else []
            schema.write(layout.table(name, "1"), kept, facts)
        checkout.run("summarize")
        return json.loads(layout.METRICS.read_text()), list(csv.DictReader(layout.CURVES.open()))

    return run


def test_metrics_and_curves_agree(summarize):
    """A block for each round; the last line of the curves is `final`, and what round 0 has not is null and blank."""
    metrics, lines = summarize()
    assert set(metrics["rounds"]) == {"0", "1"}
    first, last = metrics["rounds"]["0"], metrics["rounds"]["1"]
    assert all(first[name] is None for name in summary.NOTHING_MADE)
    assert set(first) == set(last) == {"main", "recovery", *summary.NOTHING_MADE}
    assert last["search"]["environments"]["textcraft"]["kinds"]["depth 1"]["trees"] == 3
    assert last["revisions"]["thresholds"]["removed"] == {"alpha": 2, "beta": 1}
    assert last["trained"]["dropped"] == {"over max_length": 5}
    assert last["judge"]["environments"]["textcraft"]["agreement"] == 0.5
    assert [line["round"] for line in lines] == ["0", "1"]
    assert lines[0]["survival"] == "" != lines[1]["survival"]
    assert {name: lines[1][name] for name in CURVES} == {
        name: "" if value is None else str(value) for name, value in metrics["final"].items()
    }
    assert metrics["final"]["survival"] == pytest.approx(2 / 3, abs=1e-6)


def test_recovery_stands_apart(summarize):
    """The two plays from cuts are in no figure of the evaluation from the start, nor the other way round."""
    metrics, _ = summarize()
    block = metrics["rounds"]["1"]
    assert (block["main"]["n"], block["recovery"]["n"], block["recovery"]["tasks"]) == (3, 2, 1)
    assert (block["recovery"]["reward"], block["recovery"]["turns"]) == (0.0, 2.0)
    assert set(block["recovery"]["environments"]) == {"textcraft"}
    own = metrics["recovery_set"]
    assert (own["cuts"], own["tasks"], own["distinct"], own["n_failed"]) == (3, 2, 3, 6.0)
    assert own["given"] == pytest.approx(8 / 3, abs=1e-6)


def test_a_mode_without_search_and_an_empty_recovery_set_are_null(summarize, capsys):
    """Behaviour cloning writes empty tables."""
    metrics, lines = summarize(empty=True, cuts=False)
    block = metrics["rounds"]["1"]
    assert (block["search"]["solved"], block["revisions"]["survival"], block["revisions"]["thresholds"]) == (
        None,
        None,
        None,
    )
    assert (block["judge"]["agreement"], block["recovery"]["success"], block["recovery"]["n"]) == (None, None, 0)
    assert block["trained"]["origin"]["good"]["rows"] == 1
    assert lines[1]["recovery_success"] == ""
    assert "the recovery set is empty" in capsys.readouterr().out


def test_equal_tables_have_equal_figures(summarize):
    """The bootstrap is seeded."""
    summarize()
    before = layout.METRICS.read_bytes(), layout.CURVES.read_bytes()
    summarize()
    assert (layout.METRICS.read_bytes(), layout.CURVES.read_bytes()) == before
