"""How good a critic is: its verdicts on actions that are known to be right or wrong.

The set is generated from the stories world under a fixed name of the draw, so that every critic of every run is measured on
the same cases. Of each story there are the gold actions, other right forms of them and wrong ones, each made by one edit:

* right: `gold`, `spaced` (other spaces), `decimals` (14.0 for 14), `fraction` (* 1/4 or * 0.25 for / 4), `renamed` (R2, R5
  for R1, R2), `reordered` (two neighbouring steps that commute, exchanged), `merged` (one expression);
* wrong: `number`, `operation`, `operands` (exchanged), `missing_step`, `reference` (an earlier result than it should be),
  and `answer_only` (the answer written down, nothing computed).

A wrong form that reaches the gold answer all the same (5 + 14 for 14 + 5) is left out. `answer_only` reaches it by design:
no executor can tell it from work, and its agreement is below 100% for that reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moat.actions import Action, parse, references, render, substitute
from moat.critic import Critique, Verdict
from moat.executor import Outcome
from moat.figures import wilson
from moat.judge_prompt import Case
from moat.judging import Acted, Judge, criticise
from moat.params import Critic
from moat.seeds import generator
from moat.toolbox import Goal, Toolbox
from moat.tools.docs import documentation
from moat.worlds.stories import Story, stories

DOMAIN = "arithmetic"
DRAW = "calibration"
TASKS = 20
RIGHT = ("gold", "spaced", "decimals", "fraction", "renamed", "reordered", "merged")
WRONG = ("number", "operation", "operands", "missing_step", "reference", "answer_only")
COMMUTE = ({"+", "-"}, {"*", "/"})  # two steps whose operations are both of one of these can be exchanged


@dataclass(frozen=True, slots=True)
class Known:
    """A case whose truth is known: the form of its actions, and whether they are right."""

    case: Case
    form: str
    right: bool


@dataclass(frozen=True, slots=True)
class Step:
    """`left operation right` of a story's action; the left operand is a number or the result before."""

    left: str
    operation: str
    right: str


def _steps(actions: str) -> list[Step]:
    return [Step(*action.arguments.split(" ")) for action in parse(actions)]


def _text(steps: Sequence[Step], names: Sequence[str] = ()) -> str:
    """Steps as actions, each on the result before, named R1, R2, … or as told."""
    names = names or [f"R{number}" for number in range(1, len(steps) + 1)]
    actions = []
    for index, (name, step) in enumerate(zip(names, steps, strict=True)):
        left = step.left if index == 0 else names[index - 1]
        actions.append(Action(name, "Calculator", f"{left} {step.operation} {step.right}"))
    return render(actions)


def _forms(story: Story, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Every form that the story's actions have, as (form, actions)."""

    def draw(n: int) -> int:
        return int(rng.integers(n))

    steps = _steps(story.actions)
    last = len(steps) - 1
    yield "gold", story.actions
    yield "spaced", story.actions.replace("; ", " ;\n").replace(" = Calculator(", "=Calculator( ").replace(" + ", "+")
    start, *others = (Step(step.left, step.operation, f"{step.right}.0") for step in steps)
    yield "decimals", _text([Step(f"{start.left}.0", start.operation, start.right), *others])
    divided = [index for index, step in enumerate(steps) if step.operation == "/"]
    if divided:
        index = divided[draw(len(divided))]
        right = steps[index].right
        share = {"2": "0.5", "4": "0.25", "5": "0.2", "8": "0.125", "10": "0.1"}.get(right, f"1/{right}")
        yield "fraction", _text([*steps[:index], Step(steps[index].left, "*", share), *steps[index + 1 :]])
    yield "renamed", _text(steps, [f"R{2 + 3 * index}" for index in range(len(steps))])
    for index in range(last):
        one, two = steps[index], steps[index + 1]
        first, then = Step(one.left, two.operation, two.right), Step(two.left, one.operation, one.right)
        if first != one and any({one.operation, two.operation} <= group for group in COMMUTE):
            yield "reordered", _text([*steps[:index], first, then, *steps[index + 2 :]])
            break
    yield "merged", f"R1 = Calculator({_merged(story.actions)})"

    index = draw(len(steps))
    step = steps[index]

    def changed(new: Step) -> str:
        return _text([*steps[:index], new, *steps[index + 1 :]])

    yield "number", changed(Step(step.left, step.operation, str(int(step.right) + 1 + draw(9))))
    yield "operation", changed(Step(step.left, [o for o in "+-*/" if o != step.operation][draw(3)], step.right))
    yield "operands", _exchanged(story.actions, index)
    yield "missing_step", _text([Step(steps[0].left, s.operation, s.right) for i, s in enumerate(steps) if i != index])
    yield "reference", _earlier(story.actions)
    yield "answer_only", f"R1 = Calculator({story.answer})"


def _merged(actions: str) -> str:
    """All actions as one expression."""
    found: dict[str, str] = {}
    for action in parse(actions):
        found[action.name] = substitute(
            action.arguments, {name: f"({found[name]})" for name in references(action.arguments)}
        )
    return list(found.values())[-1]


def _exchanged(actions: str, index: int) -> str:
    """The operands of one action exchanged."""
    parsed = list(parse(actions))
    left, operation, right = parsed[index].arguments.split(" ")
    parsed[index] = Action(parsed[index].name, parsed[index].tool, f"{right} {operation} {left}")
    return render(parsed)


def _earlier(actions: str) -> str:
    """The last action on what the action before it started from, and not on its result."""
    parsed = list(parse(actions))
    _, operation, right = parsed[-1].arguments.split(" ")
    start = parsed[-2].arguments.split(" ")[0]
    parsed[-1] = Action(parsed[-1].name, parsed[-1].tool, f"{start} {operation} {right}")
    return render(parsed)


def known_cases(tasks: int = TASKS, seed: int = 0) -> list[Known]:
    """The calibration set: `tasks` stories in every form that they have."""
    cases, toolbox = [], Toolbox()
    for number, story in enumerate(stories("things", "train", tasks, (2, 3), (0.4, 0.4, 0.2), f"{DRAW} {seed}", set())):
        for form, actions in _forms(story, generator(DRAW, seed, number)):
            reached = toolbox.outcome(actions, Goal(DOMAIN, story.answer)) is Outcome.REACHED
            right = form in RIGHT
            if not right and reached and form != "answer_only":
                continue  # the edit changed nothing that counts, such as the operands of a sum
            case = Case(
                domain=DOMAIN,
                text=story.text,
                tools=documentation(DOMAIN),
                subgoals=story.plans["numbers"],
                actions=actions,
                gold_actions=story.actions,
                gold_answer=story.answer,
            )
            cases.append(Known(case, form, right))
    return cases


def calibrate(settings: Critic, known: Sequence[Known], open_judge: Callable[[], Judge]) -> dict[str, Any]:
    """The verdicts of the critic of `settings` on known cases, and how they agree with the truth; JSON, without times."""
    toolbox = Toolbox()

    def acted(case: Case) -> Acted:
        goal = Goal(case.domain, case.gold_answer)
        return Acted(case, goal, toolbox.outcome(case.actions, goal), True)

    judgement = criticise(settings, [acted(one.case) for one in known], toolbox, open_judge)
    model = {"judge": settings.judge, "revision": settings.revision, **judgement.facts} if judgement.answers else {}
    return {"critic": settings.kind, "asked": len(judgement.answers), **model, **agreement(known, judgement.critiques)}


def agreement(known: Sequence[Known], critiques: Sequence[Critique]) -> dict[str, Any]:
    """Counts of verdicts by form, and shares.

    A critic agrees when it accepts what is right, or corrects or rejects what is wrong; `unparsed` never agrees. `low` and
    `high` are the 95% interval of `agreement`.
    """
    counts: dict[str, Counter[str]] = {form: Counter() for form in (*RIGHT, *WRONG)}
    truth = Counter[tuple[bool, bool]]()  # (right, accepted)
    agreed = 0
    for one, critique in zip(known, critiques, strict=True):
        accepted = critique.verdict is Verdict.ACCEPT
        counts[one.form][critique.verdict.value] += 1
        truth[one.right, accepted] += 1
        agreed += critique.verdict is not Verdict.UNPARSED and accepted is one.right
    n, n_right = len(known), truth[True, True] + truth[True, False]
    low, high = wilson(agreed, n)
    return {
        "n": n,
        "agreement": round(agreed / n, 6) if n else None,
        "low": round(low, 6),
        "high": round(high, 6),
        "right_accepted": round(truth[True, True] / n_right, 6) if n_right else None,
        "wrong_accepted": round(truth[False, True] / (n - n_right), 6) if n > n_right else None,
        "forms": [
            {"form": form, "right": form in RIGHT, "n": sum(found.values())}
            | {verdict.value: found[verdict.value] for verdict in Verdict}
            for form, found in counts.items()
            if found
        ],
    }
