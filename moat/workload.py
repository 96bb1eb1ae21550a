"""What a run will do, stage by stage: rows, requests, tokens, updates, from params.yaml alone.

Counts are upper bounds where the data decide (candidates that are dropped, pairs that are too close, equal requests that
are asked once), and say so. Lengths are means in tokens: of a source's kind, stated here, unless measured ones are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from moat.params import Imported, Params, Sft, Source

JUDGE_PROMPT = 500  # tokens of a judge's instructions, besides the data
THOUGHT = 1500  # tokens that a reasoning judge writes, an assumption; at most critic.max_new_tokens
CASES = 224  # of calibrate_critic
NOISE = 64  # examples that `score` scores again, one by one
PASSAGES = 600  # tokens of the passages that a reader is shown, an assumption
READS = 2  # questions that a candidate's actions ask a reader, an assumption


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of a source's rows: the planner's prompt, a plan, the grounder's prompt without the plan, the actions.

    `turns` are those of a task under iterative planning; `steps` the rows that a task is, whatever the planning.
    """

    planner: float
    plan: float
    grounder: float
    actions: float
    turns: float = 3.0
    steps: float = 1.0


# Means over files of the publishers, in tokens of SmolLM2 (49,152 tokens; larger vocabularies give somewhat fewer): GSM8K's
# first training rows, SVAMP, StrategyQA. HotpotQA has no plans to measure; Mind2Web's, the shops' and Lumos' files were not
# at hand: assumed. Mind2Web's tasks have 7.3 steps (its paper), each a row with the gold steps before it.
LENGTHS = {
    "stories": Lengths(84, 28, 103, 30, turns=2.5),
    "gsm8k": Lengths(96, 57, 245, 40, turns=3.5),
    "svamp": Lengths(78, 19, 227, 15, turns=1.2),
    "strategyqa": Lengths(49, 59, 160, 141, turns=3.0),
    "hotpotqa": Lengths(59, 60, 170, 120, turns=3.0),
    "mind2web": Lengths(210, 20, 330, 40, turns=7.3, steps=7.3),
    "shop": Lengths(90, 60, 200, 60, turns=4.0),
    "webshop": Lengths(90, 60, 200, 60, turns=4.0),
    "lumos_maths": Lengths(96, 70, 245, 70, turns=3.5),
    "lumos_complex_qa": Lengths(55, 60, 165, 120, turns=3.0),
    "lumos_web_agent": Lengths(60, 60, 200, 120, turns=6.0),
    "": Lengths(100, 60, 250, 80),
}
# The same with the embedded model's own tokenizer, which has whole phrases as tokens: measured on the stories.
EMBEDDED = Lengths(40, 10, 41, 10, turns=2.5)

READ_DOMAINS = ("strategyqa", "hotpotqa")  # importers whose actions ask the reader


def _kind(source: Source, demos: bool = False) -> str:
    """Which of LENGTHS a source's rows have; `demos`: its demonstrations, which may come from elsewhere."""
    if not isinstance(source, Imported):
        return source.kind
    origin = (source.demos if demos else None) or source.train or source.eval
    name = origin.importer if origin else ""
    return max((kind for kind in LENGTHS if name.startswith(kind)), key=len)


def lengths(source: Source, embedded: bool, demos: bool = False) -> Lengths:
    """Stated lengths of a source's rows."""
    return EMBEDDED if embedded and source.kind == "stories" else LENGTHS[_kind(source, demos)]


@dataclass(frozen=True, slots=True)
class Work:
    """One stage's work. Tokens are sums over its rows.

    `prompt` and `generated` pass through a generating engine, for `answers` of the requests; `scored` (prompts and answers)
    through a scoring one; `trained` through a training, each epoch anew. `sequences` are what a row is for the trainer: 2 of
    a pair. `at_most`: the data may make it less.
    """

    stage: str
    round: str
    role: str = ""
    rows: int = 0
    requests: int = 0
    answers: int = 0
    prompt: int = 0
    generated: int = 0
    scored: int = 0
    trained: int = 0
    updates: int = 0
    sequences: int = 1
    at_most: bool = False

    @property
    def label(self) -> str:
        """As DVC names the stage."""
        where = self.role if self.stage == "cold_start" else self.round
        return f"{self.stage}@{where}" if where else self.stage

    @property
    def tokens(self) -> int:
        """All tokens that pass through a model."""
        return self.prompt + self.generated + self.scored + self.trained


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one source that are alike."""

    n: int
    lengths: Lengths
    reads: bool = False


class Workload:
    """The work of a run under `params`. `measured` has lengths by source, in place of the stated ones."""

    def __init__(self, params: Params, measured: Mapping[str, Lengths] | None = None) -> None:
        self.params = params
        measured = measured or {}
        embedded = params.base_model.kind == "embedded"
        sources = params.prepare.sources
        own = {name: measured.get(name) or lengths(source, embedded) for name, source in sources.items()}
        shown = {
            name: lengths(source, embedded, demos=True) if isinstance(source, Imported) and source.demos else own[name]
            for name, source in sources.items()
        }
        self.iterative = params.planning == "iterative"
        self.tasks = sum(source.n_train for source in sources.values())
        self.train = [self._rows(source.n_train, own[name], source) for name, source in sources.items()]
        self.evaluation = [self._rows(source.n_eval, own[name], source) for name, source in sources.items()]
        self.eval_tasks = [
            Group(source.n_eval, own[name], group.reads)
            for (name, source), group in zip(sources.items(), self.evaluation, strict=True)
        ]
        self.demos = [Group(source.n_demos, shown[name]) for name, source in sources.items()]

    def _rows(self, tasks: int, own: Lengths, source: Source) -> Group:
        """A task is a row; a step by step source has one a step, iterative planning one a turn."""
        each = own.steps if own.steps > 1 else own.turns if self.iterative else 1
        return Group(
            round(tasks * each), self._turn(own) if each > 1 and own.steps == 1 else own, _kind(source) in READ_DOMAINS
        )

    @staticmethod
    def _turn(own: Lengths) -> Lengths:
        """Lengths of a turn: a part of the plan and of the actions, after half of the turns before, on average."""
        plan, actions = own.plan / own.turns, own.actions / own.turns
        told = 15.0  # "The executed result for Subgoal 1 is ...", an assumption
        before = (own.turns - 1) / 2
        return replace(
            own,
            planner=own.planner + before * (plan + told),
            plan=plan + 8,  # "No, I will keep planning."
            grounder=own.grounder + before * (plan + actions + told),
            actions=actions,
        )

    # --- sums over groups ---------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Training rows of a round: tasks, steps or turns."""
        return sum(group.n for group in self.train)

    @property
    def candidates(self) -> int:
        """|D| × K: plans that a round samples, a task or turn counted once.

        A step-by-step source's steps are each a row of their own and are not in |D|, which counts tasks as the paper does.
        """
        return self.params.sample.k * sum(round(group.n / group.lengths.steps) for group in self.train)

    def _sum(self, groups: list[Group], times: float, *parts: str) -> int:
        """Tokens of the named parts of all rows, each row `times` times."""
        each = ((group.n, sum(float(getattr(group.lengths, part)) for part in parts)) for group in groups)
        return round(sum(n * times * tokens for n, tokens in each))

    # --- stages -------------------------------------------------------------------------------------------------------

    def cold_start(self) -> list[Work]:
        """SFT of both roles on their demonstrations."""
        found = []
        for role, parts in (("planner", ("planner", "plan")), ("grounder", ("grounder", "plan", "actions"))):
            settings = self.params.cold_start[role]  # type: ignore[index]
            groups = [self._shown(group, role) for group in self.demos]
            rows = sum(group.n for group in groups)
            trained = round(self._sum(groups, 1, *parts) * settings.epochs)
            found.append(Work("cold_start", "0", role, rows, trained=trained, updates=_updates(settings, rows)))
        return found

    def _shown(self, group: Group, role: str) -> Group:
        """Demonstrations as rows: under iterative planning a turn each, the planner's with the decision to stop."""
        if not self.iterative:
            return group
        turns = group.lengths.turns + (role == "planner")
        return Group(round(group.n * turns), self._turn(group.lengths))

    def round(self, key: str, number: int) -> list[Work]:
        """The stages of a round; `number` counts the rounds whose rows tune the grounder."""
        params, k, rows = self.params, self.params.sample.k, self.rows
        made = k * rows
        joint = params.mode == "joint"
        found = [
            Work(
                "sample",
                key,
                "planner",
                made,
                made,
                made,
                self._sum(self.train, k, "planner"),
                self._sum(self.train, k, "plan"),
            ),
            Work(
                "score",
                key,
                "grounder",
                made,
                made + min(NOISE, made),
                scored=self._sum(self.train, k, "grounder", "plan", "actions"),
                at_most=True,
            ),
            Work(
                "ground",
                key,
                "grounder",
                made,
                made,
                made,
                self._sum(self.train, k, "grounder", "plan"),
                self._sum(self.train, k, "actions"),
                at_most=True,
            ),
            *self._reading("ground", key, self.train, k),
            Work("pairs", key, rows=rows),
        ]
        pair = 2 * self._sum(self.train, 1, "planner", "plan")
        updates = _updates(params.align, rows)
        if params.align.enabled and joint:
            reference = Work("align_planner", key, "reference", 2 * rows, 2 * rows, scored=pair, at_most=True)
            found += [reference] if params.align.loss == "dpo" else []
            sides = 2 if params.align.loss == "dpo" else 1
            trained = round(pair / 2 * sides * params.align.epochs)
            found.append(
                Work("align_planner", key, "planner", rows, trained=trained, updates=updates, sequences=sides, at_most=True)
            )
        elif params.align.enabled:
            found.append(self._alone("align_planner", key, "planner", updates * params.independent.factor))
        found.append(self.critique("critique", key, made, self._sum(self.train, k, "grounder", "plan", "actions")))
        pool = made * (number if params.data_window == "all" else 1)
        mixed = round(pool * (1 + params.mix.initial_ratio))
        found.append(Work("mix", key, rows=mixed, at_most=True))
        settings = params.train_grounder
        if settings.enabled and joint:
            each = self._sum(self.train, k, "grounder", "plan", "actions") / max(1, made)
            trained = round(mixed * each * settings.epochs)
            updates = _updates(settings, mixed)
            found.append(Work("train_grounder", key, "grounder", mixed, trained=trained, updates=updates, at_most=True))
        elif settings.enabled:
            updates = _updates(settings, mixed) * params.independent.factor
            found.append(self._alone("train_grounder", key, "grounder", updates))
        return found

    def _alone(self, stage: str, key: str, role: str, updates: int) -> Work:
        """A role that goes on with its own demonstrations for a number of updates."""
        cold = next(work for work in self.cold_start() if work.role == role)
        epochs = self.params.cold_start[role].epochs  # type: ignore[index]
        rows = updates * self.params.cold_start[role].batch_size  # type: ignore[index]
        each = cold.trained / max(1, cold.rows) / epochs
        return Work(stage, key, role, cold.rows, trained=round(rows * each), updates=updates, at_most=True)

    def critique(self, stage: str, key: str, rows: int, tokens: int) -> Work:
        """What a judge is asked; nothing under the kinds that have none."""
        settings = self.params.critic
        if settings.kind not in ("llm", "executor_then_llm"):
            return Work(stage, key, rows=rows)
        answer = min(THOUGHT, settings.max_new_tokens)
        return Work(stage, key, "critic", rows, rows, rows, rows * JUDGE_PROMPT + tokens, rows * answer, at_most=True)

    def _reading(self, stage: str, key: str, groups: list[Group], times: float) -> list[Work]:
        """What the reader is asked by actions of questions."""
        settings = self.params.tools.qa
        rows = round(times * READS * sum(group.n for group in groups if group.reads))
        if not settings.reader or not rows:
            return []
        answer = min(20, settings.max_new_tokens)
        return [Work(stage, key, "reader", rows, rows, rows, rows * PASSAGES, rows * answer, at_most=True)]

    def evaluate(self, key: str) -> list[Work]:
        """Both roles on every evaluation task: plans (one as it is used, `samples` drawn), actions, the control, scores."""
        params, asked = self.params, self.evaluation
        samples = params.evaluate.samples
        n = sum(group.n for group in asked)
        played = self.iterative and any(group.lengths.steps == 1 and group.n for group in asked)
        # turn by turn: the questions at gold histories, and as many again while it is played
        plans = (1 + samples) + (1 if played else 0)
        planning = Work(
            "evaluate",
            key,
            "planner",
            sum(group.n for group in self.eval_tasks),
            round(n * plans),
            round(n * plans),
            self._sum(asked, plans, "planner"),
            self._sum(asked, plans, "plan"),
        )
        acting = Work(
            "evaluate",
            key,
            "grounder",
            sum(group.n for group in self.eval_tasks),
            2 * n + n * (samples + 2),
            2 * n,
            self._sum(asked, 2, "grounder", "plan"),
            self._sum(asked, 2, "actions"),
            self._sum(asked, samples + 2, "grounder", "plan", "actions"),
            at_most=True,
        )
        return [planning, acting, *self._reading("evaluate", key, asked, 2)]

    def all(self) -> list[Work]:
        """Every stage that takes a model, and the tables between, in the order in which they run."""
        found = self.cold_start()
        if self.params.critic.kind in ("llm", "executor_then_llm"):
            found.append(self.critique("calibrate_critic", "", CASES, CASES * 200))
        found += self.evaluate("0")
        for number, key in enumerate(sorted(self.params.rounds, key=int), 1):
            found += [*self.round(key, number), *self.evaluate(key)]
        return found


def _updates(settings: Sft, rows: int) -> int:
    """As `moat.training.updates_for`, which would load torch (a test holds the two together)."""
    return math.ceil(math.ceil(rows / settings.batch_size) * settings.epochs)
