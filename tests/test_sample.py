"""K plans per task, each with its own seed and its own text: stages/sample.py, by an engine that writes what it is told."""

from collections import Counter

import pytest

from moat import layout, models, params, runners
from moat.engines.base import EngineError, FinishReason, Generation
from moat.machine import Machine
from moat.schemas.demos import DEMOS
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import Stage
from tests.rows import demo, task

TEXTS = {"a": "How many?", "b": "How many apples are there now?", "c": "How many coins has Ada Ash at the end?"}
K, LIMIT = 5, 37


def plan(seed):
    """What the engine writes for a seed: hardly two of them are equal."""
    return f"Subgoal 1: Add {seed % 999983}"


class Writes:
    """An engine that answers with `plan`; `special` says otherwise for some seeds: a Generation, or a fault."""

    def __init__(self, tokenizer, special):
        self.tokenizer, self.special = tokenizer, special
        self.asked, self.decodings = [], set()

    def generate(self, prompts, seeds, decoding):
        self.decodings.add(decoding)
        for seed in seeds:
            if isinstance(self.special.get(seed), Exception):
                raise self.special[seed]
        self.asked += [(self.tokenizer.decode(ids), seed) for ids, seed in zip(prompts, seeds, strict=True)]
        return [self.special.get(seed) or Generation(self.ids(plan(seed)), FinishReason.STOP, -1.0) for seed in seeds]

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids


@pytest.fixture
def sample(tmp_path, monkeypatch, root, tokenizer, stage_module):
    """Runs the stage over three tasks in batches of four rows; gives its table and the engine."""
    monkeypatch.chdir(tmp_path)
    TASKS.write(layout.TRAIN_TASKS, [task(name, text=text) for name, text in TEXTS.items()], {})
    DEMOS.write(layout.demos("planner"), [demo("d", subgoals=plan(7))], {})
    for key in ("0", "1"):
        layout.model("planner", key).mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json"):
            (layout.model("planner", key) / name).write_text("{}")
    everything = params.load(root / "params.yaml")
    changed = {"k": K, "max_new_tokens": LIMIT}
    monkeypatch.setattr(models, "load_tokenizer", lambda *_: tokenizer)

    def run(round_key="1", seed=0, special=None, max_failed=0.0):
        engine = Writes(tokenizer, special or {})
        monkeypatch.setattr(runners, "open_engine", lambda *_: engine)
        settings = everything.model_copy(
            update={
                "seed": seed,
                "sample": everything.sample.model_copy(update=changed),
                "limits": everything.limits.model_copy(update={"max_failed": max_failed, "min_distinct": 0}),
            }
        )
        machine = Machine(device="cpu", generate_batch=4, retry=1, scratch=f"scratch-{round_key}-{seed}")
        stage = Stage("sample", settings, machine, tmp_path, {"round": round_key, "prev": "0"})
        stage_module("sample").run(stage, round_key, "0")
        return SUBGOALS.read(layout.table("subgoals", round_key)), engine

    return run


def seed(task, k, round_key="1", run=0):
    """The seed of a request, as the design has it: of run seed, task, round and k."""
    return seed_of(run, "sample", round_key, task, k)


@pytest.mark.trap(21)
def test_every_request_has_a_seed_of_its_own(sample):
    """3 tasks x 5 plans are 15 seeds; another round's are 15 others, and so are another run's; the same run repeats its."""
    found = [sample(*at)[0] for at in (("1", 0), ("1", 0), ("2", 0), ("1", 1))]
    first, again, other_round, other_run = (frame["seed"].to_list() for frame in found)
    assert first == again
    assert len({*first, *other_round, *other_run}) == 45
    assert found[0].select("task_id", "subgoals").n_unique() == 15


@pytest.mark.trap(7, 9)
def test_every_candidate_has_what_was_written_for_it(sample):
    """15 rows in batches of 4, the last one of 3: each is there, with the text of its own prompt and seed."""
    table, engine = sample()
    assert table.select("task_id", "k").rows() == [(task, k) for task in TEXTS for k in range(K)]
    assert table["subgoals"].to_list() == [plan(number) for number in table["seed"]]
    assert table["dropped"].null_count() == 15
    prompts = {number: text for text, number in engine.asked}
    assert all(TEXTS[task] in prompts[number] for task, number in table.select("task_id", "seed").rows())


@pytest.mark.trap(20)
def test_the_limit_is_the_parameters(sample):
    """Each request carries sample.max_new_tokens, and no default of an engine."""
    _, engine = sample()
    assert {decoding.max_new_tokens for decoding in engine.decodings} == {LIMIT}


@pytest.mark.trap(7, 20)
def test_a_candidate_that_is_none_is_dropped_by_reason(sample, tokenizer):
    """Cut at the limit, empty, only blanks, never answered: each keeps its own text, or none, and says why it is out."""
    ids = tokenizer(plan(1), add_special_tokens=False).input_ids
    special = {
        seed("a", 0): Generation(ids, FinishReason.LENGTH, -1.0),
        seed("a", 3): Generation([], FinishReason.STOP, -1.0),
        seed("b", 1): Generation([*tokenizer(" ", add_special_tokens=False).input_ids], FinishReason.STOP, -1.0),
        seed("c", 4): EngineError("out of memory"),
    }
    table, _ = sample(special=special, max_failed=0.1)
    rows = {(row["task_id"], row["k"]): row for row in table.to_dicts()}
    assert Counter(table["dropped"]) == {None: 11, "length": 1, "empty": 2, "engine failed": 1}
    told = {
        at: (row["dropped"], row["subgoals"].strip(), row["finish_reason"]) for at, row in rows.items() if row["dropped"]
    }
    assert told == {
        ("a", 0): ("length", plan(1), "length"),
        ("a", 3): ("empty", "", "stop"),
        ("b", 1): ("empty", "", "stop"),
        ("c", 4): ("engine failed", "", None),
    }


@pytest.mark.parametrize(
    ("text", "of_a_turn", "of_a_whole"),
    [
        ("Subgoal 1: Add", None, None),
        ("Yes, I will stop planning.", "stop", None),
        ("No, I will keep planning.", "empty", None),
        (" ", "empty", "empty"),
    ],
)
def test_a_turn_without_a_subgoal_goes_no_further(stage_module, text, of_a_turn, of_a_whole):
    """Under iterative planning there is nothing to ground in a stop, nor in a decision to go on that names nothing."""
    dropped = stage_module("sample").why_dropped
    stop = FinishReason.STOP
    assert (dropped(text, stop, turn=True), dropped(text, stop)) == (of_a_turn, of_a_whole)
    assert dropped(text, FinishReason.LENGTH, turn=True) == "length"
