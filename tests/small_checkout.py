"""A checkout of a few tasks and two rounds, made in a second: what no model is needed for, by the real stages.

`prepare`, `index`, `check_gold`, `pairs`, `critique` and `mix` are the stages themselves. Plans, scores, actions and
evaluations are made up here as sampling, scoring and acting could have given them (right, wrong, torn, empty and cut ones),
the models are untrained, and their moat.json says what training on these tables says.
"""

import contextlib
import copy
import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from moat import layout
from moat.engines.base import FinishReason
from moat.executor import outcome
from moat.machine import Machine
from moat.params import load, yaml
from moat.schemas.actions import ACTIONS
from moat.schemas.demos import DEMOS
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.tokens import Renderer
from moat.toolbox import Toolbox, goal_of
from moat.turns import KEEP, STOP

ROOT = Path(__file__).resolve().parent.parent
PLANS = (
    "Subgoal 1: Find the next amount; Subgoal 2: Find the last amount",
    "Subgoal 1: Find the last amount",
    "Subgoal 1: Add what comes in",
    "Subgoal 1:  Add what comes in",  # the same but for a space
    "",
)
TURNS = (f"{KEEP}Subgoal 2: Find the last amount", *PLANS[1:], STOP)  # what a planner says at a turn


def small_params(place, changes):
    """The project's params.yaml with few tasks, and the dotted keys of `changes` set."""
    parser = yaml()
    params = parser.load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for source in params["prepare"]["sources"].values():
        source["n_eval"] = 5
    params["prepare"]["sources"]["stories"] |= {"n_train": 12, "n_demos": 40}
    params["sample"]["k"] = 6
    params["evaluate"]["samples"] = 2
    for key, value in changes.items():
        *above, last = key.split(".")
        section = params
        for name in above:
            section = section[name]
        section[last] = value
    with (place / "params.yaml").open("w", encoding="utf-8") as file:
        parser.dump(params, file)
    (place / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    return load(place / "params.yaml")


class Builder:
    """Makes the checkout in `place`."""

    def __init__(self, place, changes, tokenizer, model, stage_module):
        from moat.models import engine_facts
        from moat.stage import Stage

        self.place, self.model, self.tokenizer, self.stage_module = place, model, tokenizer, stage_module
        self.params = small_params(place, changes)
        self.stage = lambda name: Stage(name, self.params, Machine(), place)
        self.renderer = Renderer(tokenizer, self.params.format)
        self.engine = engine_facts(Machine())
        self.random = random.Random(5)
        self.iterative = self.params.planning == "iterative"

    def run(self):
        for name in ("prepare", "index", "check_gold"):
            self.stage_module(name).run(self.stage(name))
        self.tasks = TASKS.read(layout.TRAIN_TASKS).to_dicts()
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder)
            self.save(layout.BASE_MODEL, {"stage": "base_model"}, Path(folder))
        self.demos = {role: len(DEMOS.read(layout.demos(role))) for role in self.params.cold_start}
        for role, settings in self.params.cold_start.items():
            self.train(layout.model(role, "0"), "cold_start", "rows", self.demos[role], settings)
        self.evaluate("0")
        for key, entry in self.params.rounds.items():
            self.round(key, entry["prev"])
            self.evaluate(key)

    def save(self, path, facts, tokenizer_from=layout.BASE_MODEL):
        from moat import adapters, models
        from moat.provenance import content_hash

        model = self.model
        if self.params.lora.rank and path != layout.BASE_MODEL:
            model = adapters.fresh(copy.deepcopy(model), self.params.lora, 0)
            facts = facts | {"base": content_hash(layout.BASE_MODEL, layout.CARD)}
        models.save(model, path, facts, tokenizer_from)

    def train(self, path, stage, named, n, settings, updates=None):
        updates = updates or math.ceil(math.ceil(n / settings.batch_size) * settings.epochs)
        log = [{"update": i + 1, "loss": 1.0 / (i + 1)} for i in range(updates)]
        self.save(path, {"stage": stage, named: n, "updates": updates, "log": log} | self.engine)
        return updates

    def round(self, key, prev):
        made = [self.candidate(key, task, k) for task in self.tasks for k in range(self.params.sample.k)]
        dropped = sum(row["dropped"] is not None for row, _, _ in made)
        kept = len(made) - dropped
        reasons = [row["dropped"] for row, _, _ in made if row["dropped"]]
        counts = {"rows_in": len(made), "kept": kept, "dropped": {why: reasons.count(why) for why in sorted(set(reasons))}}
        SUBGOALS.write(layout.table("subgoals", key), [row for row, _, _ in made], {"counts": counts} | self.engine)
        counts = {"rows_in": len(made), "kept": kept, "dropped": {"unusable candidate": dropped}}
        for schema, rows in ((SCORES, [s for _, s, _ in made if s]), (ACTIONS, [a for _, _, a in made if a])):
            schema.write(layout.table(schema.name, key), rows, {"counts": counts} | self.engine)
        self.stage_module("pairs").run(self.stage("pairs"), key)
        self.stage_module("critique").run(self.stage("critique"), key)
        self.stage_module("mix").run(self.stage("mix"), key, prev)
        self.align(key, prev)
        self.tune(key, prev)
        self.stage_module("dynamics").run(self.stage("dynamics"), key)

    def candidate(self, key, task, k):
        """One candidate as rows of subgoals, scores and actions (None where it is dropped)."""
        plan, cut = self.random.choice(TURNS if self.iterative else PLANS), self.random.random() < 0.1
        right = self.random.random() < 0.4
        seed = seed_of(self.params.seed, "sample", key, task["task_id"], k)
        name = {"task_id": task["task_id"], "k": k}
        ended = FinishReason.LENGTH if cut else FinishReason.STOP
        reason = self.stage_module("sample").why_dropped(plan, ended, turn=self.iterative)
        row = name | {"subgoals": plan, "finish_reason": ended.value, "n_tokens": len(plan.split())}
        row |= {"logprob": -1.5, "seed": seed, "dropped": reason}
        if reason:
            return row, None, None
        close = task in self.tasks[:4]  # such a task's pair is below the gap
        nll = round(self.random.uniform(0.01, 0.05 if close else 1.2), 2)
        tokens = len(self.renderer.completion(task["gold_actions"])) - (not self.params.score.include_end)
        score = name | {"nll": nll, "ppl": math.exp(nll), "n_action_tokens": tokens}
        text = (
            task["gold_actions"]
            if right
            else self.random.choice(["R1 = Calculator(1 + 1)", "R1 = Calculator(", "R1 = Find(1)"])
        )
        done = Toolbox().execute(text, goal_of(task))
        act = name | {"actions": text, "finish_reason": self.random.choice(["stop"] * 4 + ["length"])}
        came = outcome(done, task["gold_answer"], goal_of(task).metric).value
        return row, score, act | {"outcome": came, "answer": done.answer, "message": done.message}

    def align(self, key, prev):
        """The planner, as align_planner leaves it."""
        from moat import models

        params, path = self.params, layout.model("planner", key)
        n = PAIRS.read(layout.table("pairs", key))["dropped"].null_count()
        if not params.align.enabled or not n:
            models.copy(
                layout.model("planner", prev if params.init_from == "previous" else "0"), path, {"stage": "align_planner"}
            )
        elif params.mode == "independent":
            updates = math.ceil(n / params.align.batch_size) * params.independent.factor
            self.train(path, "align_planner", "rows", self.demos["planner"], params.align, updates)
        else:
            self.train(path, "align_planner", "rows" if params.align.loss == "sft_chosen" else "pairs", n, params.align)

    def tune(self, key, prev):
        """The grounder, as train_grounder leaves it."""
        from moat import models

        params, path = self.params, layout.model("grounder", key)
        n = len(SFT.read(layout.table("sft", key)))
        if not params.train_grounder.enabled or not n:
            models.copy(
                layout.model("grounder", prev if params.init_from == "previous" else "0"), path, {"stage": "train_grounder"}
            )
        elif params.mode == "independent":
            updates = math.ceil(n / params.train_grounder.batch_size) * params.independent.factor
            self.train(path, "train_grounder", "rows", self.demos["grounder"], params.train_grounder, updates)
        else:
            self.train(path, "train_grounder", "rows", n, params.train_grounder)

    def evaluate(self, key):
        tasks = TASKS.read(layout.EVAL_TASKS).to_dicts()
        rows = []
        for task in tasks:
            own = [other["task_id"] for other in tasks if other["source"] == task["source"]]
            turns, came, answer = self.played(task) if self.iterative else self.at_once(task)
            copied = ("task_id", "source", "trained", "metric", "text", "gold_actions", "gold_answer")
            rows.append(
                {name: task[name] for name in copied}
                | {"subgoals": "; ".join(turn["subgoal"] for turn in turns)}
                | {"actions": "; ".join(turn["actions"] for turn in turns)}
                | {"turns": turns if self.iterative else [], "n_turns": len(turns), "outcome": came, "answer": answer}
                | {"score": float(came == "reached"), "f1": None, "element": None}
                | {"success": came == "reached", "nll": 0.5, "samples": list(PLANS[:2]), "samples_nll": [0.5, math.nan]}
                | {"control_task_id": own[(own.index(task["task_id"]) + 1) % len(own)]}
                | {"control_outcome": "not_reached", "control_nll": 0.9}
            )
        counts = {"rows_in": len(rows), "kept": len(rows), "dropped": {}}
        EVALS.write(layout.evals(key), rows, {"counts": counts} | self.engine)

    def at_once(self, task):
        """A whole plan and its actions, right or wrong, as one turn; outcome; answer."""
        text = self.random.choice([task["gold_actions"], "R1 = Calculator(2)"])
        done = Toolbox().execute(text, goal_of(task))
        return [{"subgoal": PLANS[0], "actions": text}], outcome(done, task["gold_answer"]).value, done.answer

    def played(self, task):
        """An episode: the gold turns, then the planner stops; or it stops early, never, at once, or some actions fail."""
        turns, goal = [], goal_of(task)
        end = self.random.choice(["gold", "gold", "early", "never", "at once", "fails", "unanswered"])
        given = {"early": task["turns"][:-1], "at once": []}.get(end, task["turns"])
        for number, gold in enumerate(given):
            text = "R1 = Calculator(1 / 0)" if end == "fails" and number == 1 else gold["actions"]
            done = Toolbox().execute(text, replace(goal, earlier=tuple(turn["actions"] for turn in turns)))
            turns.append(gold | {"actions": text, "result": done.results[-1][1] if done.answer else ""})
            if done.failure:
                return turns, done.failure.value, None
        if end in ("never", "at once", "unanswered"):
            return turns, {"never": "turn_limit", "at once": "empty"}.get(end, end), None
        return turns, outcome(done, task["gold_answer"]).value, done.answer


def build(place, changes, tokenizer, model, stage_module):
    """Make a checkout in `place`, with the settings `changes` (dotted key: value); returns its params."""
    place.mkdir(parents=True, exist_ok=True)
    builder = Builder(place, changes, tokenizer, model, stage_module)
    with contextlib.chdir(place):
        builder.run()
    return builder.params
