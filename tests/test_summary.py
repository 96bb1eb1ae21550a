"""A round's figures from its tables: moat/summary.py and stages/summarize.py."""

import csv
import json
import math

import polars as pl
import pytest

from moat import layout, params
from moat.figures import wilson
from moat.machine import Machine
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Counts, Stage
from moat.summary import (
    comparisons,
    evaluation,
    failures,
    pairs_near_gap,
    premise,
    round_block,
    score_block,
    shares,
    success_block,
    tidy,
)
from tests import rows

NUMBERS, OPERATION = "Subgoal 1: Add 5 to 4", "Subgoal 1: Add what comes in"
VAGUE = "Subgoal 1: Find the last amount"


def task(task_id, source="stories"):
    own = {"source": source, "trained": source == "stories", "text": f"{task_id}?"}
    return rows.task(task_id, **own, gold_actions="R1 = Calculator(4 + 5)", gold_answer="9")


def evaluated(task_id, source, outcome, control="not_reached", nll=0.0, samples=(), plan=NUMBERS):
    own = {name: task(task_id, source)[name] for name in ("task_id", "source", "trained", "metric", "text", "gold_actions")}
    return own | {
        "gold_answer": "9",
        "subgoals": plan,
        "actions": "R1 = Calculator(4 + 5)",
        "turns": [],
        "n_turns": 1,
        "score": float(outcome == "reached"),
        "f1": None,
        "element": None,
        "outcome": outcome,
        "answer": None,
        "success": outcome == "reached",
        "nll": nll,
        "samples": [plan] * len(samples),
        "samples_nll": list(samples),
        "control_task_id": task_id,
        "control_outcome": control,
        "control_nll": math.log(9),
    }


# Four tasks of the trained source, of which 3 are reached, and one of the held-out source, which is not.
EVALUATED = [
    evaluated("a", "stories", "reached", "reached", math.log(2), (math.log(2), math.log(8))),
    evaluated("b", "stories", "reached", nll=math.log(8), samples=(math.nan,)),
    evaluated("c", "stories", "reached", nll=math.nan, plan=VAGUE),
    evaluated("d", "stories", "syntax", nll=math.log(4), plan=OPERATION),
    evaluated("e", "stories_travel", "not_reached", nll=math.log(16), samples=(math.log(4),), plan="words"),
]
# Two tasks of two candidates and one of another source with one.
TASK_ROWS = [task("a"), task("b"), task("z", "other")]
KEYS = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("z", 0)]
PPL = {("a", 0): 2.0, ("a", 1): 4.0, ("b", 0): 8.0, ("b", 1): 2.0, ("z", 0): 1.0}
OUTCOMES = {("a", 0): "reached", ("a", 1): "syntax", ("b", 0): "reached", ("b", 1): "not_reached", ("z", 0): "reached"}
PLANS = {("a", 0): NUMBERS, ("a", 1): NUMBERS, ("b", 0): NUMBERS, ("b", 1): VAGUE, ("z", 0): VAGUE}


def tables():
    keys = [{"task_id": t, "k": k} for t, k in KEYS]
    of = [(key, (key["task_id"], key["k"])) for key in keys]
    nothing = dict.fromkeys(("chosen_k", "rejected_k", "chosen", "rejected"))
    nothing |= dict.fromkeys(("chosen_nll", "rejected_nll", "chosen_ppl", "rejected_ppl"))

    def pair(task_id, low, high, dropped):
        both = {
            "chosen_k": 0,
            "rejected_k": 1,
            "chosen": NUMBERS,
            "rejected": VAGUE,
            "chosen_ppl": low,
            "rejected_ppl": high,
        }
        both |= {"chosen_nll": math.log(low), "rejected_nll": math.log(high)}
        return {"task_id": task_id, "n_candidates": 2, "n_distinct": 2, "dropped": dropped} | both

    sft = {
        "round": 1,
        "k": None,
        "demo_id": None,
        "source": "s",
        "domain": "arithmetic",
        "text": "",
        "turn": None,
        "turns": [],
        "subgoals": "",
        "actions": "",
    }
    return {
        SUBGOALS: [
            key
            | {
                "subgoals": PLANS[at],
                "finish_reason": "stop",
                "n_tokens": 4 + at[1],
                "logprob": -2.0,
                "seed": 0,
                "dropped": None,
            }
            for key, at in of
        ],
        SCORES: [key | {"nll": math.log(PPL[at]), "ppl": PPL[at], "n_action_tokens": 3} for key, at in of],
        ACTIONS: [
            key | {"actions": "", "finish_reason": "stop", "outcome": OUTCOMES[at], "answer": None, "message": ""}
            for key, at in of
        ],
        PAIRS: [
            pair("a", 2.0, 4.0, None),
            pair("b", 2.0, 2.2, "gap below min_gap"),
            {"task_id": "z", "n_candidates": 1, "n_distinct": 1, "dropped": "all candidates equal"} | nothing,
        ],
        CRITIQUES: [
            key | {"verdict": verdict, "corrected_actions": None, "corrected_subgoals": None, "reason": ""}
            for key, verdict in zip(keys, ("accept", "correct", "accept", "reject", "accept"), strict=True)
        ],
        SFT: [
            sft | {"row_id": str(n), "origin": origin, "task_id": "a"}
            for n, origin in enumerate(("initial", "initial", "accepted", "corrected"))
        ],
        DYNAMICS: [
            {"part": "planner", "name": "updates", "update": 0, "value": 2.0},
            {"part": "planner", "name": "loss", "update": 1, "value": 0.7},
            {"part": "planner", "name": "loss", "update": 2, "value": 0.5},
        ],
    }


def frames():
    return {table.name: pl.DataFrame(rows, infer_schema_length=None) for table, rows in tables().items()}


# --- evaluations ------------------------------------------------------------------------------------------------------


def test_success_and_ppl_of_some_rows():
    """3 of 4 reached; PPL of the samples sqrt(2 x 8) = 4, of the plans cbrt(2 x 8 x 4) = 4, of the control 9."""
    block = success_block(pl.DataFrame(EVALUATED[:4]))
    assert (block["n"], block["success"], block["control_success"]) == (4, 0.75, 0.25)
    assert (block["success_low"], block["success_high"]) == wilson(3, 4)
    assert [block[name] for name in ("ppl_gold", "ppl_plan", "ppl_control")] == pytest.approx([4, 4, 9])
    assert block["outcomes"] == {"reached": 0.75, "syntax": 0.25}
    assert block["styles"] == {"numbers": 0.5, "operation": 0.25, "vague": 0.25}


@pytest.mark.trap(33)
def test_a_failure_counts_as_a_failure():
    """Whatever kind: it stays in the denominator, apart by kind."""
    rows = [
        evaluated(str(n), "stories", o) for n, o in enumerate(("reached", "syntax", "empty", "tool_error", "not_reached"))
    ]
    block = success_block(pl.DataFrame(rows))
    assert (block["success"], len(block["outcomes"])) == (0.2, 5)


def test_averages_are_over_sources_and_not_over_rows():
    """held-in 3/4, held-out 0/1: each source counts once, however many tasks it has; overall 3/5."""
    found = evaluation(pl.DataFrame(EVALUATED))
    assert (found["success"], found["held_in_avg"], found["held_out_avg"]) == (0.6, 0.75, 0.0)
    assert {name: block["n"] for name, block in found["sources"].items()} == {"stories": 4, "stories_travel": 1}


def test_no_held_out_source_has_no_average():
    """None, and not 0."""
    found = evaluation(pl.DataFrame(EVALUATED[:4]))
    assert (found["held_out_avg"], found["held_out_weighted"]) == (None, None)


def graded(task_id, source, metric, score, trained=True, outcome="not_reached", **more):
    """An evaluated row under a metric."""
    own = evaluated(task_id, source, "reached" if score == 1 else outcome)
    return own | {"trained": trained, "metric": metric, "score": score} | more


def test_weighted_averages_count_tasks_and_plain_ones_sources():
    """Held-in: 3 of 4 and 0 of 1, plain 3/8, weighted 3/5. Held-out: rewards .5 and 1 of one source, both .75."""
    rows = [graded(str(n), "maths", "number", float(n > 0)) for n in range(4)]
    rows += [graded("q", "qa", "yes_no", 0.0)]
    rows += [graded(f"w{r}", "shop", "reward", r, trained=False) for r in (0.5, 1.0)]
    found = evaluation(pl.DataFrame(rows))
    assert (found["held_in_avg"], found["held_in_weighted"]) == (0.375, pytest.approx(0.6))
    assert (found["held_out_avg"], found["held_out_weighted"]) == (0.75, 0.75)
    assert (found["sources"]["shop"]["score"], found["sources"]["shop"]["success"]) == (0.75, 0.5)


@pytest.mark.trap(36)
def test_a_mean_reward_is_over_all_episodes():
    """Rewards 1, .5 and three episodes that failed: .3, with a bootstrap's interval, which a share's is not."""
    rows = [graded("a", "shop", "reward", 1.0), graded("b", "shop", "reward", 0.5)]
    rows += [graded(t, "shop", "reward", 0.0, outcome="tool_error") for t in "cde"]
    found = score_block(pl.DataFrame(rows))
    assert found["score"] == pytest.approx(0.3)
    assert 0 <= found["score_low"] < 0.3 < found["score_high"] <= 1
    assert (found["score_low"], found["score_high"]) != wilson(1, 5)
    assert (found["f1"], found["element"]) == (None, None)


def test_a_share_has_wilsons_interval():
    """Step success 1 of 2; F1 of the operation and the element's share stand beside it."""
    rows = [graded("a", "web", "web_step", 1.0, f1=1.0, element=1.0, n_turns=3)]
    rows += [graded("b", "web", "web_step", 0.0, f1=0.5, element=0.0)]
    found = score_block(pl.DataFrame(rows))
    assert (found["score"], found["score_low"], found["score_high"]) == (0.5, *wilson(1, 2))
    assert (found["metric"], found["f1"], found["element"], found["turns"]) == ("web_step", 0.75, 0.5, 2)


def test_rows_of_two_metrics_have_no_common_mean():
    with pytest.raises(ValueError, match="several metrics, number, reward"):
        score_block(pl.DataFrame([graded("a", "s", "number", 1.0), graded("b", "s", "reward", 0.5)]))


@pytest.mark.trap(33)
def test_failures_of_parsing_and_of_execution_are_counted_apart():
    """By kind; a wrong answer is no failure, and a request that the engine failed on is neither."""
    outcomes = ["reached", "not_reached", "empty", "syntax", "syntax", "unknown_tool", "no_result", "time"]
    outcomes += ["turn_limit", "unanswered"]
    assert failures(outcomes) == {
        "parse": {"empty": 1, "syntax": 2},
        "execution": {"no_result": 1, "time": 1, "unknown_tool": 1},
        "planning": {"turn_limit": 1},
        "engine": {"unanswered": 1},
    }
    assert failures(["reached"]) == {"parse": {}, "execution": {}, "planning": {}, "engine": {}}


def test_the_metric_of_every_task_adds_nothing_where_success_is_the_score():
    """What the figures were before there were metrics, they are: averages of success over sources."""
    found = evaluation(pl.DataFrame(EVALUATED))
    for name, block in found["sources"].items():
        assert [block[f"score{end}"] for end in ("", "_low", "_high")] == [
            block[f"success{end}"] for end in ("", "_low", "_high")
        ], name


def test_a_round_is_compared_with_round_0_and_with_the_one_before():
    """Of four tasks 1, 3 and 2 are solved; round 1 has one comparison, round 2 two, each of all tasks and by source."""
    solved = {"0": "a", "1": "abc", "2": "bc"}
    evals = {
        key: pl.DataFrame([evaluated(t, "x" if t == "a" else "y", "reached" if t in own else "syntax") for t in "abcd"])
        for key, own in solved.items()
    }
    found = comparisons(evals, {"1": "0", "2": "1"})
    assert {key: list(block) for key, block in found.items()} == {"1": ["0"], "2": ["0", "1"]}
    assert [found["2"][k]["all"]["difference"] for k in "01"] == [0.25, -0.25]
    assert (found["2"]["0"]["all"]["turned_right"], found["2"]["0"]["all"]["turned_wrong"]) == (2, 1)
    assert {source: block["n"] for source, block in found["2"]["1"]["sources"].items()} == {"x": 1, "y": 3}
    assert found["2"]["1"]["sources"]["x"]["difference"] == -1.0


# --- the premise ------------------------------------------------------------------------------------------------------


def test_the_premise_is_measured_within_each_source():
    """stories: reached PPL 2 and 8, missed 4 and 2. Of the four pairs (2<4, 2=2, 8>4, 8>2) 1.5 are right: AUC 3/8.

    Within task a the lower PPL reached (+1), within b the higher (-1): mean 0 over 2 tasks. `other` has one class only.
    """
    frame = frames()
    shuffled = frame["actions"].sample(fraction=1, shuffle=True, seed=3)
    found = premise(pl.DataFrame(TASK_ROWS), frame["scores"], shuffled)
    assert found["stories"]["auc"] == pytest.approx(3 / 8)
    assert found["stories"]["within_task_correlation"] == pytest.approx(0)
    assert (found["stories"]["n_tasks_with_both"], found["stories"]["reached_share"]) == (2, 0.5)
    assert (found["other"]["auc"], found["other"]["within_task_correlation"]) == (None, None)


# --- a round's tables -------------------------------------------------------------------------------------------------


@pytest.mark.trap(2, 21)
def test_figures_of_a_round():
    """Five candidates, four distinct within their tasks; pairs under either score; all by counting the rows above."""
    block = round_block(pl.DataFrame(TASK_ROWS), min_gap=0.15, **frames())
    assert block["distinct_share"] == 0.8
    assert block["sample_tokens"] == 4.4
    assert block["sample_entropy"] == pytest.approx(5 * 2.0 / (22 + 5))  # 22 tokens and five end tokens
    assert block["dynamics"] == {"planner": {"updates": 2.0, "loss": {"first": 0.7, "last": 0.5}}}
    assert block["sample_ppl_gold"] == pytest.approx((2 * 4 * 8 * 2 * 1) ** (1 / 5))
    assert block["sample_styles"] == {"numbers": 0.6, "vague": 0.4}
    assert block["pairs_kept"] == 1
    assert block["pairs_dropped"] == {"all candidates equal": 1, "gap below min_gap": 1}
    # PPL gaps 2 and .2, NLL gaps ln 2 = .693 and ln 1.1 = .095, against .15
    assert block["pairs_at_min_gap_by"] == {"ppl": 2, "nll": 1}
    assert (block["chosen_styles"], block["rejected_styles"]) == ({"numbers": 1.0}, {"vague": 1.0})
    assert block["verdicts"] == {"accept": 0.6, "correct": 0.2, "reject": 0.2}
    assert block["outcomes"] == {"not_reached": 0.2, "reached": 0.6, "syntax": 0.2}
    assert block["sft_rows"] == {"accepted": 1, "corrected": 1, "initial": 2}
    assert block["premise_auc"] == pytest.approx(3 / 8)  # the sources that have one


@pytest.mark.trap(6)
def test_pairs_that_noise_decided_are_reported():
    """PPL gaps 2 and .2 at min_gap .15: within .1 one kept. NLL gaps .693 and .095: within .06 one dropped.

    A gap is off by twice a score's noise; a unit whose noise was not measured has no count.
    """
    pairs = frames()["pairs"]
    found = pairs_near_gap(pairs, 0.15, {"n": 64, "nll": 0.03, "ppl": 0.05})
    assert found == {"ppl": {"kept": 1, "dropped": 0}, "nll": {"kept": 0, "dropped": 1}}
    clear = {"kept": 0, "dropped": 0}
    assert pairs_near_gap(pairs, 0.15, {"n": 64, "nll": 0.02, "ppl": 0.02}) == {"ppl": clear, "nll": clear}
    assert pairs_near_gap(pairs, 0.15, {"n": 0, "nll": None, "ppl": None}) == {}


def test_shares_are_sorted_by_name():
    """Equal contents in another order are an equal file."""
    assert list(shares(["b", "a", "b", "c"]).items()) == [("a", 0.25), ("b", 0.5), ("c", 0.25)]


def test_figures_are_rounded_and_never_nan():
    """Six places; NaN and infinity, which JSON has not, become null; counts and words stay."""
    rough = {"a": 1 / 3, "b": math.nan, "c": {"d": math.inf, "e": 7, "f": "x"}, "g": None}
    assert tidy(rough) == {"a": 0.333333, "b": None, "c": {"d": None, "e": 7, "f": "x"}, "g": None}


# --- rows in = rows kept + rows dropped --------------------------------------------------------------------------------


def test_counts_must_add_up():
    """A stage that loses a row without a reason fails; reasons with no row are left out."""
    assert Counts(5, 3, {"b": 2, "a": 0}).facts() == {"rows_in": 5, "kept": 3, "dropped": {"b": 2}}
    with pytest.raises(AssertionError, match="5 rows in, but 3 kept"):
        Counts(5, 3, {"b": 1})


# --- the stage --------------------------------------------------------------------------------------------------------


def summarized(folder, stage_module, monkeypatch, root, rounds):
    """metrics.json and curves.csv of a project of `rounds` rounds, each with the tables above."""
    monkeypatch.chdir(folder)
    TASKS.write(layout.TRAIN_TASKS, TASK_ROWS, {})
    for key in map(str, range(rounds + 1)):
        EVALS.write(layout.evals(key), EVALUATED, {})
        for table, made in tables().items():
            facts = {"noise": {"n": 2, "nll": 0.0, "ppl": 0.0}} if table is SCORES else {}
            table.write(layout.table(table.name, key), made, facts)
    chain = {str(r): {"prev": str(r - 1)} for r in range(1, rounds + 1)}
    own = params.load(root / "params.yaml").model_copy(update={"rounds": chain, "evaluated": chain | {"0": {"prev": ""}}})
    stage_module("summarize").run(Stage("summarize", own, Machine(), folder))
    return json.loads(layout.METRICS.read_text()), list(csv.DictReader(layout.CURVES.read_text().splitlines()))


def test_metrics_have_a_block_a_round_and_the_last_as_final(tmp_path, stage_module, monkeypatch, root):
    """Round 0 has an evaluation and no tables; rounds come in the order of their numbers, 10 after 9."""
    metrics, curves = summarized(tmp_path, stage_module, monkeypatch, root, rounds=10)
    assert list(metrics["rounds"]) == [str(n) for n in range(11)] == [line["round"] for line in curves]
    assert "pairs_kept" not in metrics["rounds"]["0"]
    assert metrics["rounds"]["10"]["pairs_kept"] == 1
    assert metrics["final"] == {k: v for k, v in metrics["rounds"]["10"].items() if isinstance(v, int | float)}
    names = ("success", "success_low", "success_high", "n", "held_in_avg", "held_out_avg", "ppl_gold", "distinct_share")
    assert {*names, "pairs_kept", "premise_auc"} <= set(metrics["final"])
    assert (curves[0]["pairs_kept"], curves[1]["pairs_kept"], curves[0]["success"]) == ("", "1", "0.6")


@pytest.mark.trap(50)
def test_what_a_removed_round_left_behind_is_not_read(tmp_path, stage_module, monkeypatch, root):
    """Tables of rounds that params.yaml no longer names lie in the same folders: the figures do not change."""
    before, _ = summarized(tmp_path, stage_module, monkeypatch, root, rounds=1)
    for path in (layout.evals("2"), layout.table("pairs", "2")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("torn")
    after, _ = summarized(tmp_path, stage_module, monkeypatch, root, rounds=1)
    assert after == before
