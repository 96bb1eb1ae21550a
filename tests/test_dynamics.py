"""How a round learned: moat/dynamics.py and stages/dynamics.py."""

import json
import math

import numpy as np
import polars as pl
import pytest

from moat import dynamics, layout, params
from moat.dynamics import DynamicsError, block, ends, entropy, read_card, spread, track, training
from moat.machine import Machine
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.stage import Stage

DPO_LOG = [
    {"update": 1, "loss": 0.7, "logps/chosen": -4.0, "logps/rejected": -5.0, "rewards/margins": 0.0},
    {"update": 2, "loss": 0.5, "logps/chosen": -3.0, "logps/rejected": -7.0, "rewards/margins": 0.4},
]
SFT_LOG = [{"update": 1, "loss": 0.3, "entropy": 0.2}]


def sample(task_id, k, text, n_tokens, logprob, finish="stop"):
    row = {"task_id": task_id, "k": k, "subgoals": text, "finish_reason": finish, "n_tokens": n_tokens}
    return row | {"logprob": logprob, "seed": k, "dropped": "length" if finish == "length" else None}


# Two tasks of three candidates: 2 and 3 distinct texts; one candidate was cut by the length limit.
SAMPLES = [
    sample("a", 0, "x", 3, -2.0),
    sample("a", 1, "x", 3, -2.0),
    sample("a", 2, "y", 5, -6.0),
    sample("b", 0, "x", 1, -1.0),
    sample("b", 1, "z", 7, -3.0),
    sample("b", 2, "w", 9, -4.0, "length"),
]
SCORED = [
    {"task_id": row["task_id"], "k": row["k"], "nll": nll, "ppl": math.exp(nll), "n_action_tokens": 3}
    for row, nll in zip(SAMPLES, (0.0, 0.0, math.log(2), math.log(3), math.log(4), math.nan), strict=True)
]


def pair(task_id, chosen, rejected, low, high, dropped):
    own = {"task_id": task_id, "n_candidates": 3, "n_distinct": 2, "dropped": dropped}
    own |= {"chosen_k": chosen, "rejected_k": rejected, "chosen": "x", "rejected": "y"}
    own |= {"chosen_ppl": low, "rejected_ppl": high, "chosen_nll": math.log(low), "rejected_nll": math.log(high)}
    return own


NO_PAIR = {"task_id": "c", "n_candidates": 1, "n_distinct": 1, "dropped": "all candidates equal"}
NO_PAIR |= dict.fromkeys(
    ("chosen_k", "rejected_k", "chosen", "rejected", "chosen_ppl", "rejected_ppl", "chosen_nll", "rejected_nll")
)
PAIR_ROWS = [pair("a", 1, 2, 1.0, 2.0, None), pair("b", 0, 1, 3.0, 4.0, "gap below min_gap"), NO_PAIR]
VERDICTS = [
    {"task_id": row["task_id"], "k": row["k"], "verdict": verdict}
    | {"corrected_actions": None, "corrected_subgoals": None, "reason": ""}
    for row, verdict in zip(SAMPLES, ("accept", "accept", "correct", "accept", "reject", "accept"), strict=True)
]


def frame(rows):
    return pl.DataFrame(rows, infer_schema_length=None)


def values(figures):
    """Figures of the whole round, by name."""
    return {figure.name: figure.value for figure in figures if figure.update == 0}


# --- figures ----------------------------------------------------------------------------------------------------------


def test_entropy_is_the_mean_surprise_per_token_with_the_end_token():
    """18 nats over 28 tokens and the five end tokens that were sampled (the cut plan has none): 18 / 33."""
    assert entropy(frame(SAMPLES)) == pytest.approx(18 / 33)


def test_entropy_estimates_the_entropy_of_the_policy():
    """A policy that writes n = 0, 1, 2 … letters, each of 1/2 to go on and 1/4 for either letter's choice.

    A token (one of two letters, or the end) has the entropy 1/2 ln 2 + 2 x 1/4 ln 4 = 1.5 ln 2 nats. Drawn 4,000 times; the
    estimate's standard error is below 0.01.
    """
    random = np.random.default_rng(0)
    rows = []
    for k in range(4000):
        n = random.geometric(0.5) - 1  # letters before the end
        rows.append(sample("a", k, "", n, n * math.log(0.25) + math.log(0.5)))
    assert entropy(frame(rows)) == pytest.approx(1.5 * math.log(2), abs=0.03)


def test_entropy_of_nothing_is_not_measured():
    """No row, and one plan cut before its first token."""
    empty = frame([sample("a", 0, "", 0, 0.0, "length")])
    assert (entropy(empty), entropy(empty.clear())) == (None, None)


def test_quantiles_are_linear_between_neighbours():
    """0, 1, 2, 3, 4: p10 lies 0.4 of the way from 0 to 1; infinities and NaN are no values."""
    found = values(spread("x", "n", [4.0, 0.0, math.inf, 2.0, 1.0, math.nan, 3.0]))
    expected = {"n/mean": 2, "n/p0": 0, "n/p10": 0.4, "n/p25": 1, "n/p50": 2, "n/p75": 3, "n/p90": 3.6, "n/p100": 4}
    assert found == pytest.approx(expected)
    assert spread("x", "n", [math.nan]) == []


@pytest.mark.trap(21)
def test_what_was_sampled():
    """5 distinct of 6, per task 2 and 3; 28 tokens in 6 plans; one plan was cut, and is not usable."""
    found = values(dynamics.samples(frame(SAMPLES)))
    assert found["candidates"] == 6
    assert found["distinct_share"] == pytest.approx(5 / 6)
    assert (found["distinct/p0"], found["distinct/mean"], found["distinct/p100"]) == (2, 2.5, 3)
    assert (found["tokens/mean"], found["tokens/p100"]) == pytest.approx((28 / 6, 9))
    assert (found["cut_share"], found["usable_share"]) == pytest.approx((1 / 6, 5 / 6))


@pytest.mark.trap(2)
def test_gaps_are_of_all_compared_tasks_in_both_units():
    """PPL gaps 1 and 1, NLL gaps ln 2 and ln 4/3: whichever decided, and whether or not the pair was kept."""
    found = values(dynamics.pairs(frame(PAIR_ROWS), frame(SAMPLES)))
    assert (found["tasks"], found["compared"], found["kept"]) == (3, 2, 1)
    assert (found["gap_ppl/p0"], found["gap_ppl/p100"]) == pytest.approx((1, 1))
    assert (found["gap_nll/p0"], found["gap_nll/p100"]) == pytest.approx((math.log(4 / 3), math.log(2)))


@pytest.mark.trap(16)
def test_lengths_are_those_of_the_kept_pairs():
    """Task a, candidates 1 and 2: 3 and 5 tokens. Joined by key: the rows come in another order."""
    shuffled = frame(SAMPLES).sample(fraction=1, shuffle=True, seed=1)
    found = values(dynamics.pairs(frame(PAIR_ROWS), shuffled))
    assert (found["chosen_tokens/mean"], found["rejected_tokens/mean"]) == (3, 5)


def test_a_round_without_pairs_has_counts_and_no_gaps():
    """No division by nothing."""
    table = pl.DataFrame([NO_PAIR], schema=pl.from_arrow(PAIRS.schema.empty_table()).schema)
    assert values(dynamics.pairs(table, frame(SAMPLES))) == {"tasks": 1, "compared": 0, "kept": 0}


def test_verdicts_are_shares():
    """4 of 6, 1 and 1."""
    found = values(dynamics.critiques(frame(VERDICTS)))
    assert found == pytest.approx({"accept_share": 4 / 6, "correct_share": 1 / 6, "reject_share": 1 / 6})


# --- training logs ----------------------------------------------------------------------------------------------------


@pytest.mark.trap(16)
def test_every_logged_value_of_every_update_is_a_figure():
    """And the number of updates one of the round."""
    found = {(f.name, f.update): f.value for f in training("planner", DPO_LOG)}
    assert found[("logps/chosen", 1)] == -4.0
    assert found[("logps/rejected", 2)] == -7.0
    assert found[("rewards/margins", 2)] == 0.4
    assert found[("updates", 0)] == 2
    assert len(found) == 9
    assert {f.part for f in training("planner", DPO_LOG)} == {"planner"}


@pytest.mark.parametrize("switch", ["align.enabled", "train_grounder.enabled"])
def test_a_copied_model_has_no_updates(make_checkout, tmp_path, switch):
    """An update that was switched off passes the model on: 0 updates of that role, and those of the other."""
    make_checkout(tmp_path, {switch: False})
    table = DYNAMICS.read(tmp_path / layout.table("dynamics", "2"))
    updates = {row["part"]: row["value"] for row in table.filter(table["name"] == "updates").iter_rows(named=True)}
    copied = "planner" if switch == "align.enabled" else "grounder"
    assert {role: value > 0 for role, value in updates.items()} == {role: role != copied for role in updates}
    assert set(updates) == {"planner", "grounder"}


@pytest.mark.parametrize("text", ["", "[]", '{"log": [1]}', '{"log": '])
def test_a_torn_card_is_named(tmp_path, text):
    """File and remedy."""
    path = tmp_path / "moat.json"
    path.write_text(text)
    with pytest.raises(DynamicsError, match=r"moat\.json holds no training log .*dvc checkout"):
        read_card(path)


def test_a_missing_card_is_named(tmp_path):
    """The same for no file."""
    with pytest.raises(FileNotFoundError, match=r"moat\.json is missing: .*dvc repro"):
        read_card(tmp_path / "moat.json")


def test_the_ends_are_a_tenth_of_the_updates():
    """20 updates: the first and the last two; fewer than ten: one."""
    assert ends([float(n) for n in range(20)]) == {"first": 0.5, "last": 18.5}
    assert ends([3.0]) == {"first": 3.0, "last": 3.0}


def rows_of(figures):
    return pl.DataFrame([f._asdict() for f in figures], schema=pl.from_arrow(DYNAMICS.schema.empty_table()).schema)


def test_the_block_has_ends_of_logs_and_values_of_the_round():
    """Outer quantiles and verdicts are left to the table."""
    found = block(
        rows_of(training("planner", DPO_LOG) + spread("samples", "tokens", [1.0, 3.0]) + dynamics.critiques(frame(VERDICTS)))
    )
    assert found["planner"]["updates"] == 2
    assert found["planner"]["logps/chosen"] == {"first": -4.0, "last": -3.0}
    assert set(found["samples"]) == {"tokens/mean", "tokens/p10", "tokens/p50", "tokens/p90"}
    assert "critiques" not in found


def test_a_track_runs_on_through_the_rounds():
    """Three updates in points of two, a round without training, then one update: x are the middles of their updates."""
    log = [{"update": n + 1, "loss": float(n)} for n in range(3)]
    tables = [rows_of(training("planner", own)) for own in (log, [], [{"update": 1, "loss": 9.0}])]
    assert track(tables, "planner", "loss", points=2) == ([1.5, 3.0, 4.0], [0.5, 2.0, 9.0])
    assert track(tables, "planner", "rewards/margins", points=2) == ([], [])


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def learned(tmp_path, stage_module, monkeypatch, root):
    """Runs the stage for round 2 on the tables above; gives its table as {(part, name, update): value}."""
    monkeypatch.chdir(tmp_path)
    for table, rows in ((SUBGOALS, SAMPLES), (SCORES, SCORED), (PAIRS, PAIR_ROWS), (CRITIQUES, VERDICTS)):
        table.write(layout.table(table.name, "2"), rows, {})

    def run(planner, grounder):
        for role, told in {"planner": planner, "grounder": grounder}.items():
            path = layout.card(role, "2")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"copy_of": told} if isinstance(told, str) else {"stage": "test", "log": told}))
        stage = Stage("dynamics", params.load(root / "params.yaml"), Machine(), tmp_path)
        stage_module("dynamics").run(stage, round="2")
        found = DYNAMICS.read(layout.table("dynamics", "2"))
        return {(row["part"], row["name"], row["update"]): row["value"] for row in found.iter_rows(named=True)}

    return run


def test_a_round_with_both_updates(learned):
    """Every part has its figures, those that are not finite left out (one candidate has no score)."""
    found = learned(DPO_LOG, [{"update": 1, "loss": 0.1}])
    assert {part for part, _, _ in found} == {"planner", "grounder", "samples", "scores", "pairs", "critiques"}
    assert found[("planner", "logps/rejected", 2)] == -7.0
    assert found[("grounder", "loss", 1)] == 0.1
    assert found[("samples", "entropy", 0)] == pytest.approx(18 / 33)
    assert found[("scores", "ppl/p100", 0)] == pytest.approx(4)
    assert found[("pairs", "gap_ppl/p50", 0)] == pytest.approx(1)
    assert found[("critiques", "accept_share", 0)] == pytest.approx(4 / 6)


@pytest.mark.parametrize("kept", ["models/planner/1", "models/planner/0"], ids=["round before", "cold start"])
def test_a_planner_that_was_not_aligned_shows_no_updates(learned, kept):
    """align.enabled: false, or no pair: its folder is a copy, of the round before or (init_from) of the cold start."""
    found = learned(kept, [{"update": 1, "loss": 0.1}])
    assert {key[1:]: value for key, value in found.items() if key[0] == "planner"} == {("updates", 0): 0}
    assert found[("grounder", "updates", 0)] == 1


def test_a_fine_tuned_planner_has_a_loss_and_no_margins(learned):
    """align.loss: sft_chosen, or mode: independent."""
    found = learned(SFT_LOG, [*SFT_LOG, {"update": 2, "loss": 0.2}])
    assert {name for part, name, _ in found if part == "planner"} == {"updates", "loss", "entropy"}


def test_a_table_is_the_same_bytes_again(learned):
    """A stage that reruns on equal inputs stops everything after it."""
    learned(DPO_LOG, SFT_LOG)
    first = layout.table("dynamics", "2").read_bytes()
    learned(DPO_LOG, SFT_LOG)
    assert layout.table("dynamics", "2").read_bytes() == first
