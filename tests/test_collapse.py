"""A round whose samples have collapsed is refused with its figures: moat/collapse.py."""

import json
import re
from types import SimpleNamespace

import pytest

from moat import layout, params
from moat.collapse import CollapseError, demonstrated_tokens, faults, guard, measure
from moat.machine import Machine
from moat.schemas.demos import DEMOS
from moat.schemas.subgoals import SUBGOALS
from moat.stage import Stage
from moat.tokens import Renderer
from tests.rows import demo, task

PLAN = "Subgoal 1: Add 5 to 4; Subgoal 2: Add 2 to the result"


def plans(task_id, *texts, n_tokens=10):
    """Rows of a subgoals table: the K candidates of one task."""
    return [
        {"task_id": task_id, "k": k, "subgoals": text, "finish_reason": "stop", "n_tokens": n_tokens}
        | {"logprob": -3.0, "seed": k, "dropped": None}
        for k, text in enumerate(texts)
    ]


def settings(**changes):
    given = {"max_failed": 0.0, "max_unparsed": 0.0}
    return params.Limits(**given | {"min_distinct": 2, "min_diversity": 0.1, "min_length_ratio": 0.25} | changes)


# --- the figures ------------------------------------------------------------------------------------------------------


def test_diversity_is_the_mean_share_of_new_texts_among_further_candidates():
    """a: 3 of 4 distinct, so 2 of its 3 further ones are new; b: 0 of 1; c has one candidate and no share. Mean 1/3."""
    rows = [*plans("a", "x", "y", "x", "z"), *plans("b", "x", "x"), *plans("c", "x")]
    assert measure(rows, 2).diversity == pytest.approx(1 / 3)


@pytest.mark.parametrize("k", [2, 4, 15])
def test_always_the_same_is_zero_and_always_new_is_one_for_any_k(k):
    """distinct / K would be 1/2 and 1/15 for the same collapse."""
    assert measure(plans("a", *["x"] * k), 2).diversity == 0
    assert measure(plans("a", *map(str, range(k))), 2).diversity == 1


def test_the_same_text_for_another_task_is_no_repetition():
    """Vague plans fit many tasks; what counts is what one task has to choose from."""
    assert measure([*plans("a", "x", "y"), *plans("b", "x", "y")], 2).diversity == 1


def test_length_is_the_mean_over_candidates():
    """(3 x 2 + 1 x 6) / 4 tokens."""
    rows = [*plans("a", "x", "y", "z", n_tokens=2), *plans("b", "x", n_tokens=6)]
    assert measure(rows, 2).mean_tokens == 3


@pytest.mark.trap(21)
def test_tasks_under_the_floor_are_named():
    """Floor 3: b has 2 distinct, a has 3; c was asked for one plan only, and cannot have more."""
    rows = [*plans("b", "x", "x", "y"), *plans("a", "x", "y", "z"), *plans("c", "x")]
    assert measure(rows, 3).few == ("b",)


# --- the thresholds ---------------------------------------------------------------------------------------------------


def test_a_healthy_round_passes():
    """Half of the further plans new, as long as the demonstrations."""
    assert faults(measure(plans("a", "x", "y", "x"), 2), 10.0, settings()) == []


def test_each_threshold_says_its_figure():
    """1 of 20 further plans is new, 5% under 10%; 2 tokens are 20% of 10, under 25%."""
    found = measure(plans("a", *["x"] * 20, "y", n_tokens=2), 2)
    diversity, length = faults(found, 10.0, settings())
    assert "5.0% are new texts (limits.min_diversity: 10.0%)" in diversity
    assert "2.00 tokens on average, 20.0% of the demonstrations' 10.00 (limits.min_length_ratio: 25.0%)" in length


def test_a_threshold_itself_is_enough():
    """Exactly 10% new (1 of 10) and exactly a quarter of the length."""
    assert faults(measure(plans("a", *["x"] * 10, "y", n_tokens=2), 2), 8.0, settings()) == []


def test_zero_switches_a_threshold_off():
    """For who wants the collapse."""
    found = measure(plans("a", "x", "x", n_tokens=0), 2)
    assert faults(found, 10.0, settings(min_diversity=0, min_length_ratio=0)) == []


def test_one_plan_per_task_cannot_repeat_itself():
    """K = 1: no diversity to measure, and no fault."""
    assert faults(measure(plans("a", "x"), 2), None, settings()) == []


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch, root):
    """A folder with the planner's demonstrations, and the stage in it."""
    monkeypatch.chdir(tmp_path)
    rows = [demo(str(n), subgoals=text) for n, text in enumerate((PLAN, "Subgoal 1: Add 5"))]
    DEMOS.write(layout.demos("planner"), rows, {})
    return Stage("sample", params.load(root / "params.yaml"), Machine(scratch="scratch"), tmp_path)


def test_demonstrations_are_counted_without_the_end_token(place, tokenizer):
    """In the planner's own tokens, as n_tokens of the samples is."""
    counts = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in (PLAN, "Subgoal 1: Add 5")]
    assert demonstrated_tokens(Renderer(tokenizer, "lumos")) == sum(counts) / 2 > 3


@pytest.mark.parametrize(
    ("texts", "n_tokens", "said"),
    [((PLAN,) * 8, 10, "0.0% are new texts"), (tuple("abcdefgh"), 1, "1.00 tokens on average")],
    ids=["always the same", "one token"],
)
def test_a_collapsed_round_is_an_error_and_leaves_no_table(place, tokenizer, texts, n_tokens, said):
    """The error has the figures, the model and the kept file, which is a readable table; the round's place stays empty."""
    rows = [*plans("a", *texts, n_tokens=n_tokens), *plans("b", *texts, n_tokens=n_tokens)]
    with pytest.raises(CollapseError, match=rf"models/planner/1 for round 2 .*{re.escape(said)}.*scratch") as caught:
        guard(place, rows, Renderer(tokenizer, "lumos"), "2", "1")
    kept = "scratch/collapsed/subgoals-2.parquet"
    assert kept in str(caught.value)
    assert SUBGOALS.read(place.root / kept)["subgoals"].to_list() == [*texts, *texts]
    assert not layout.table("subgoals", "2").exists()


@pytest.mark.trap(21)
def test_few_distinct_plans_of_a_task_are_warned_of(place, tokenizer, capsys):
    """One task of three says one thing only: the round goes on, and the task is named."""
    rows = [*plans("a", *"abcd"), *plans("b", *"abcd"), *plans("same", *"xxxx")]
    guard(place, rows, Renderer(tokenizer, "lumos"), "1", "0")
    told = capsys.readouterr().out
    assert "warning 1 of 3 tasks have fewer than 2 distinct plans (limits.min_distinct): same" in told
    assert not (place.root / "scratch").exists()


def test_a_healthy_round_is_silent(place, tokenizer, capsys):
    """Nothing printed, nothing written."""
    guard(place, plans("a", *"abcd"), Renderer(tokenizer, "lumos"), "1", "0")
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in place.root.iterdir()) == ["data"]


def test_the_rounds_of_tiny_pass_with_a_wide_margin(root):
    """The committed figures of the default run: a share d of 8 plans is a diversity of (8 d - 1) / 7."""
    limit = params.load(root / "params.yaml").limits
    blocks = [b for b in json.loads((root / "metrics.json").read_text())["rounds"].values() if "distinct_share" in b]
    assert len(blocks) >= 1
    for block in blocks:
        assert (8 * block["distinct_share"] - 1) / 7 > 3 * limit.min_diversity


# --- the stage --------------------------------------------------------------------------------------------------------


def test_the_stage_asks_before_it_publishes(place, tokenizer, stage_module, monkeypatch):
    """sample with a planner that always answers the same: no table, whatever else the stage does."""
    from moat import models, runners
    from moat.engines.base import FinishReason, Generation
    from moat.schemas.tasks import TASKS

    TASKS.write(layout.TRAIN_TASKS, [task(name) for name in "ab"], {})
    layout.model("planner", "1").mkdir(parents=True)
    ids = tokenizer(PLAN, add_special_tokens=False).input_ids
    same = Generation(ids=ids, finish_reason=FinishReason.STOP, logprob=-1.0)
    engine = SimpleNamespace(generate=lambda prompts, *_: [same] * len(prompts))
    for name in ("config.json", "tokenizer_config.json"):
        (layout.model("planner", "1") / name).write_text("{}")
    monkeypatch.setattr(runners, "open_engine", lambda *_: engine)
    monkeypatch.setattr(models, "load_tokenizer", lambda *_: tokenizer)
    with pytest.raises(CollapseError):
        stage_module("sample").run(place, round="2", prev="1")
    assert not layout.table("subgoals", "2").exists()
