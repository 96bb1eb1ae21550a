"""Both models of a round on unseen tasks, one engine at a time: stages/evaluate.py."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from moat import layout, models, params, runners
from moat.engines.base import FinishReason, Generation
from moat.machine import Machine
from moat.schemas.evals import EVALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.turns import STOP
from moat.workers import Here
from tests.rows import task

GOLD = "R1 = Calculator(4 + 5)"
WRITES = {"planner": "Subgoal 1: Add 5 to 4", "grounder": GOLD}


class Engine:
    """Writes its role's text and gives every token log P = -1."""

    def __init__(self, tokenizer, role, asked):
        self.ids = tokenizer(WRITES[role], add_special_tokens=False).input_ids
        self.role, self.asked = role, asked

    def generate(self, prompts, seeds, decoding):
        self.asked.append((self.role, decoding.temperature, decoding.max_new_tokens))
        return [Generation(list(self.ids), FinishReason.STOP, -1.0) for _ in prompts]

    def score(self, prompts, completions):
        return [np.full(len(completion), -1.0, dtype=np.float32) for completion in completions]


@pytest.fixture
def place(tmp_path, monkeypatch, root, tokenizer):
    """Three evaluation tasks and two model folders; `opened` holds (role, which earlier engines were still alive),
    `asked` the role, temperature and token limit of every call."""
    monkeypatch.chdir(tmp_path)
    tasks = [task(name, text=f"How many {name}?", gold_actions=GOLD, gold_answer="9") for name in "abc"]
    TASKS.write(layout.EVAL_TASKS, tasks, {})
    for role in WRITES:
        layout.model(role, "1").mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json"):
            (layout.model(role, "1") / name).write_text("{}")
    opened, engines, asked = [], [], []

    def open_engine(spec):
        role = spec.model.parent.name
        opened.append((role, [name for name, engine in engines if engine() is not None]))
        engine = Engine(tokenizer, role, asked)
        engines.append((role, weakref.ref(engine)))
        return engine

    monkeypatch.setattr(runners, "Children", lambda spec, retry, log, gpus: Here(lambda: open_engine(spec), retry))
    monkeypatch.setattr(models, "load_tokenizer", lambda *_: tokenizer)
    stage = Stage("evaluate", params.load(root / "params.yaml"), Machine(device="cpu"), tmp_path, {"round": "1"})
    return SimpleNamespace(stage=stage, opened=opened, asked=asked)


@pytest.mark.trap(23)
def test_the_planner_is_gone_before_the_grounder_is_opened(place, stage_module):
    """Two engines, the second opened when nothing holds the first any more, nor waits for the garbage collector."""
    gc.disable()
    try:
        stage_module("evaluate").run(place.stage, "1")
    finally:
        gc.enable()
    assert place.opened == [("planner", []), ("grounder", [])]


@pytest.mark.trap(20)
def test_every_generation_has_its_own_token_limit(place, stage_module):
    """evaluate.max_new_tokens for the plan and for both roles' use of it, sample.max_new_tokens for the sampled plans."""
    everything = place.stage.params
    own = {"max_new_tokens": 33, "temperature": 0.25, "samples": 2}
    change = {"evaluate": everything.evaluate.model_copy(update=own)}
    change["sample"] = everything.sample.model_copy(update={"max_new_tokens": 44, "temperature": 0.75})
    place.stage.params = everything.model_copy(update=change)
    stage_module("evaluate").run(place.stage, "1")
    assert set(place.asked) == {("planner", 0.25, 33), ("planner", 0.75, 44), ("grounder", 0.25, 33)}


def test_every_task_has_its_row(place, stage_module):
    """The planner's plan, the grounder's actions, what they came to, and NLL 1 of the gold actions under every plan."""
    stage_module("evaluate").run(place.stage, "1")
    table = EVALS.read(layout.evals("1"))
    assert table["task_id"].to_list() == list("abc")
    assert set(table["subgoals"]) == {WRITES["planner"]}
    assert set(table.select("actions", "outcome", "answer", "success").rows()) == {(GOLD, "reached", "9", True)}
    assert {*table["nll"], *table["control_nll"], *(n for row in table["samples_nll"] for n in row)} == {1.0}
    assert all(task != other for task, other in table.select("task_id", "control_task_id").rows())


@pytest.mark.trap(33)
def test_a_planner_that_stops_where_a_step_is_due_has_failed_and_not_the_engine(place, stage_module, monkeypatch):
    """A single step (as Mind2Web's) is asked for with its gold history; a decision to stop there names no subgoal."""
    monkeypatch.setitem(WRITES, "planner", STOP)
    before = {"subgoal": "Subgoal 1: Add", "actions": "R1 = Calculator(1 + 2)", "result": "3"}
    own = {"turn": 1, "turns": [before, before], "gold_actions": GOLD, "gold_answer": "9"}
    TASKS.write(layout.EVAL_TASKS, [task(name, text=f"How many {name}?", **own) for name in "ab"], {})
    stage_module("evaluate").run(place.stage, "1")
    table = EVALS.read(layout.evals("1"))
    assert set(table.select("subgoals", "actions", "outcome", "answer", "score").rows()) == {(STOP, "", "empty", None, 0.0)}
    assert ("grounder", 0.0, 64) not in place.asked
