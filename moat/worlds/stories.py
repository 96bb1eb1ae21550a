"""Generator of multi-step arithmetic stories: the built-in task source of the `tiny` profile.

A story starts with an amount, changes it in 2 to 4 steps (add, subtract, multiply, divide; one number each) and asks
for the amount at the end; distractor sentences carry numbers of their own. Every story comes with its gold actions, its
gold answer and one gold plan per annotator style:

* `numbers`    names operation and numbers: `Subgoal 1: Add 5 to 14; Subgoal 2: Multiply the result by 3`
* `operation`  names the operation only:    `Subgoal 1: Add what comes in; Subgoal 2: Multiply what there is`
* `vague`      names neither:               `Subgoal 1: Find the next amount; Subgoal 2: Find the last amount`

All three are right plans of the same task. Two teams of annotators that prefer different styles give a planner and a
grounder that do not fit each other: the mismatch that joint training has to find and mend.

Two families share their verbs: `things` is trained on, `travel` (a train, a ship, people) is held out as a source. Within
`things`, the evaluation split uses full names and phrasings that the training split never shows, made of words that it
does show.

Nothing here knows a model; all randomness comes from one seed per story, so a story never depends on its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from moat.seeds import generator

Family = Literal["things", "travel"]
Split = Literal["train", "eval"]
OPERATIONS = ("add", "subtract", "multiply", "divide")
STYLES = ("numbers", "operation", "vague")
SMALLEST, LARGEST = 2, 99  # every number that a story names
LARGEST_RESULT = 9999  # every intermediate result is a whole number from 1 to this

FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo")
LAST_NAMES = (" Ash", " Bell", " Cole", " Dale", " Ford", " Gray")
# Training and evaluation know the same first and last names, and no full name in common.
NAMES = {
    split: tuple(
        first + last
        for i, first in enumerate(FIRST_NAMES)
        for j, last in enumerate(LAST_NAMES)
        if ((i + j) % 3 == 0) == (split == "eval")
    )
    for split in ("train", "eval")
}
CROWDS = ("the train", "the bus", "the ship", "the club")  # who, in the held-out family
ITEMS = ("apples", "books", "cards", "coins", "hats", "kites", "pens", "shells")

# The verb alone tells the operation; the rest of a sentence never does.
VERBS = {
    "add": ("buys", "gets", "finds", "wins", "earns", "picks"),
    "subtract": ("loses", "sells", "drops", "lends", "wastes", "breaks"),
    "multiply": ("grows", "rises", "swells", "expands", "climbs", "jumps"),
    "divide": ("shrinks", "falls", "dwindles", "contracts", "sinks", "thins"),
}
# {n} who, {v} the verb, {k} the number, {i} the item. Verb number v is trained on in the frames f with (v + f) % 3 != 0; the
# evaluation split uses it in the remaining frame alone.
FRAMES = {
    "add": ("{n} {v} {k} {i}", "{n} {v} {k}", "{n} {v} {k} of them"),
    "multiply": ("the pile {v} {k}-fold", "the heap {v} {k}-fold", "the number {v} {k}-fold"),
}
FRAMES |= {"subtract": FRAMES["add"], "divide": FRAMES["multiply"]}
PREFIXES = ("", "", "then ", "later ")  # of any sentence between the first and the question: it says nothing
# {m}, {j}: another name and another item, of the distractors
OPENINGS = {
    "train": (
        "{n} has {k} {i}",
        "there are {k} {i} with {n}",
        "now {n} has {k} {i}",
        "today there are {k} {i} with {n}",
    ),
    "eval": ("now there are {k} {i} with {n}",),
}
DISTRACTORS = {
    "train": ("the {j} cost {k} dollars", "{m} is {k} years old", "{m} walks {k} miles"),
    "eval": ("{n} is {k} years old", "{n} walks {k} miles"),
}
QUESTIONS = {
    "train": ("How many {i} does {n} have now?", "How many {i} are there at the end?"),
    "eval": ("How many {i} does {n} have at the end?", "How many {i} are there now?"),
}

_SYMBOL = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_OPERATION_PLAN = {
    "add": "Add what comes in",
    "subtract": "Subtract what goes away",
    "multiply": "Multiply what there is",
    "divide": "Divide what there is",
}
_NUMBERS_PLAN = {
    "add": "Add {k} to {x}",
    "subtract": "Subtract {k} from {x}",
    "multiply": "Multiply {x} by {k}",
    "divide": "Divide {x} by {k}",
}
_VAGUE_NEXT, _VAGUE_LAST = "Find the next amount", "Find the last amount"
_OPERAND = r"(?:\d+|the result)"
_STYLE_PATTERNS = {
    "numbers": re.compile(rf"Add \d+ to {_OPERAND}|Subtract \d+ from {_OPERAND}|(?:Multiply|Divide) {_OPERAND} by \d+"),
    "operation": re.compile("|".join(_OPERATION_PLAN.values())),
    "vague": re.compile(f"{_VAGUE_NEXT}|{_VAGUE_LAST}"),
}


@dataclass(frozen=True, slots=True)
class Story:
    """One task with everything that is right about it.

    `plans` has one text per style of `STYLES`; `signature` is the chain of operations and numbers, equal for two stories
    that differ in words alone.
    """

    text: str
    actions: str
    answer: str
    plans: dict[str, str]
    signature: tuple[int | str, ...]


def _chain(rng: np.random.Generator, n_steps: int) -> list[tuple[str, int]] | None:
    """Draw a start and `n_steps` operations, or None when a result leaves the allowed whole numbers."""
    start = int(rng.integers(SMALLEST, LARGEST + 1))
    chain: list[tuple[str, int]] = [("start", start)]
    value = Fraction(start)
    for _ in range(n_steps):
        operation = OPERATIONS[rng.integers(len(OPERATIONS))]
        number = int(rng.integers(SMALLEST, 13 if operation in ("multiply", "divide") else LARGEST + 1))
        value = {
            "add": value + number,
            "subtract": value - number,
            "multiply": value * number,
            "divide": value / number,
        }[operation]
        if value.denominator != 1 or not 1 <= value <= LARGEST_RESULT:
            return None
        chain.append((operation, number))
    return [*chain, ("answer", int(value))]


def _plans(steps: Sequence[tuple[str, int]], start: int) -> dict[str, str]:
    """One gold plan per style for the operations `steps` on `start`."""
    per_style: dict[str, list[str]] = {style: [] for style in STYLES}
    for index, (operation, number) in enumerate(steps):
        operand = str(start) if index == 0 else "the result"
        per_style["numbers"].append(_NUMBERS_PLAN[operation].format(k=number, x=operand))
        per_style["operation"].append(_OPERATION_PLAN[operation])
        per_style["vague"].append(_VAGUE_LAST if index == len(steps) - 1 else _VAGUE_NEXT)
    return {style: join_subgoals(goals) for style, goals in per_style.items()}


def join_subgoals(goals: Sequence[str]) -> str:
    """`["a", "b"]` → `Subgoal 1: a; Subgoal 2: b`."""
    return "; ".join(f"Subgoal {number}: {goal}" for number, goal in enumerate(goals, 1))


def story(
    family: Family,
    split: Split,
    steps: Sequence[int],
    distractors: Sequence[float],
    *seed: object,
) -> Story:
    """Draw the story that `seed` names.

    `steps` lists the possible numbers of operations (drawn evenly); `distractors[d]` is the probability of `d` distractor
    sentences.
    """
    rng = generator("story", family, split, *seed)
    names = NAMES[split] if family == "things" else CROWDS
    chain = None
    n_steps = int(steps[int(rng.integers(len(steps)))])
    while chain is None:
        chain = _chain(rng, n_steps)
    (_, start), *operations, (_, answer) = chain
    name, other = (names[i] for i in rng.permutation(len(names))[:2])
    item, *other_items = (ITEMS[i] for i in rng.permutation(len(ITEMS))[:3])
    if family == "travel":
        item = "people"

    def say(template: str, number: int = 0, verb: str = "", thing: str = "") -> str:
        return template.format(n=name, m=other, i=item, j=thing, k=number, v=verb)

    def pick(choices: Sequence[str]) -> str:
        return choices[int(rng.integers(len(choices)))]

    def event(operation: str, number: int) -> str:
        verb = int(rng.integers(len(VERBS[operation])))
        frames = [f for i, f in enumerate(FRAMES[operation]) if ((verb + i) % 3 == 0) == (split == "eval")]
        return pick(PREFIXES) + say(pick(frames), number, VERBS[operation][verb])

    sentences = [say(pick(OPENINGS[split]), start), *(event(*operation) for operation in operations)]
    for thing in other_items[: rng.choice(len(distractors), p=list(distractors))]:
        number = int(rng.integers(SMALLEST, LARGEST + 1))
        distractor = pick(PREFIXES) + say(pick(DISTRACTORS[split]), number, thing=thing)
        sentences.insert(int(rng.integers(1, len(sentences) + 1)), distractor)
    text = "".join(f"{sentence[0].upper()}{sentence[1:]}. " for sentence in sentences) + say(pick(QUESTIONS[split]))

    left, actions = str(start), []
    for index, (operation, number) in enumerate(operations, 1):
        actions.append(f"R{index} = Calculator({left} {_SYMBOL[operation]} {number})")
        left = f"R{index}"
    return Story(
        text=text,
        actions="; ".join(actions),
        answer=str(answer),
        plans=_plans(operations, start),
        signature=(start, *(part for step in operations for part in step)),
    )


def stories(
    family: Family,
    split: Split,
    count: int,
    steps: Sequence[int],
    distractors: Sequence[float],
    seed: str,
    taken: set[tuple[int | str, ...]],
) -> Iterator[Story]:
    """Yield `count` stories whose signatures are neither in `taken` nor equal to each other; adds theirs to `taken`."""
    index = 0
    while count:
        drawn = story(family, split, steps, distractors, seed, index)
        index += 1
        if drawn.signature in taken:
            continue
        taken.add(drawn.signature)
        count -= 1
        yield drawn


def style_of(subgoals: str) -> str:
    """Name the annotator style of a plan: one of `STYLES`, `mixed` when its subgoals differ in style, else `other`."""
    goals = re.split(r"; (?=Subgoal \d+: )", subgoals)
    found = set()
    for number, goal in enumerate(goals, 1):
        head, _, body = goal.partition(": ")
        if head != f"Subgoal {number}":
            return "other"
        found.add(next((style for style, pattern in _STYLE_PATTERNS.items() if pattern.fullmatch(body)), "other"))
    if "other" in found:
        return "other"
    return found.pop() if len(found) == 1 else "mixed"


def sentences(rng: np.random.Generator) -> list[str]:
    """A training story's sentences, in order: a text for pretraining."""
    return re.split(r"(?<=\. )", story("things", "train", (2, 3), (0.4, 0.4, 0.2), "pretraining", rng.integers(2**62)).text)


def lexicon() -> list[str]:
    """Words and frequent phrases of stories, plans and actions: the tokens of the embedded tokenizer, in a fixed order."""
    phrases = ["; ", *(f"Subgoal {n}: " for n in range(1, 5)), *(f"; Subgoal {n}: " for n in range(2, 5))]
    phrases += [f"R{n} = Calculator(" for n in range(1, 5)] + [f"); R{n} = Calculator(" for n in range(2, 5)]
    phrases += [f"R{n} = Calculator(R{n - 1}" for n in range(2, 5)]
    phrases += [f"); R{n} = Calculator(R{n - 1}" for n in range(2, 5)]
    phrases += [f" {symbol} " for symbol in _SYMBOL.values()] + ["R1", "R2", "R3"]
    phrases += [*_OPERATION_PLAN.values(), _VAGUE_NEXT, _VAGUE_LAST]
    phrases += ["Add ", "Subtract ", "Multiply ", "Divide ", " to ", " from ", " by ", "the result"]
    words = {
        "There are ",
        "there are ",
        "Now ",
        "Today ",
        " with ",
        " has ",
        "How many ",
        " does ",
        " have",
        " are there",
    }
    words |= {" now?", " at the end?", "-fold", " of them", " years old", " miles", " dollars"}
    words |= {" is ", " walks ", " cost ", "The ", "the ", "pile", "heap", "number", "people", " people"}
    words |= {f" {verb} " for verbs in VERBS.values() for verb in verbs}
    words |= {prefix + item for item in ITEMS for prefix in ("", " ")}
    words |= {*FIRST_NAMES, *LAST_NAMES, *(name.removeprefix("the ") for name in CROWDS)}
    words |= {spelt for prefix in PREFIXES if prefix for spelt in (prefix, prefix.capitalize())}
    numbers = [str(number) for number in range(10, LARGEST + 1)]
    return list(dict.fromkeys([*phrases, ". ", *numbers, *sorted(words)]))
