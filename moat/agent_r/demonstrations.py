"""What an actor without any schooling is shown: gold trajectories, also with a slip, and steps with labels that are known.

A *slip* is a wrong action before a step of the gold path, after which the gold path solves the task all the same. It is not
learned from, the actions after it are: so the actor has seen an environment that refuses something, and that it goes on.

And texts of random words, to be repeated: what was pretrained is not to be forgotten over so little else.

A label is known because it is tried out. A step is *good* when it is the gold path's own. A wrong one is put in its place,
or before it: an action of another place, or of another task, or the same with another number. It is *bad* when the
environment refuses it, or when the rest of the gold path does not solve the task any more; else it is *uncertain*, since it
neither helped nor harmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from moat.agent_r.actor import conversation
from moat.agent_r.judges import Label, judge_texts, label_text
from moat.agent_r.play import Play, Turn
from moat.agent_r.worlds import Goal
from moat.environments.base import Environment, EpisodeError
from moat.react import Several
from moat.react import Turn as React
from moat.seeds import generator

NO_LIMIT = 1_000_000
REPEATED = (8, 30)  # words of a text that is to be repeated
TRIES = 20  # at a wrong step of the wanted label
Row = dict[str, Any]


def played(environment: Environment, task: str, actions: Sequence[str]) -> tuple[str, list[Turn]]:
    """First observation and turns of actions without thoughts, up to the end of the episode. Raises EpisodeError."""
    with Play(environment, Several.LAST, NO_LIMIT) as play:
        first = play.begin(task)
        for action in actions:
            if play.over:
                break
            play.say(React("", action).text)
        return first, play.turns


def gold_row(name: str, instruction: str, first: str, turns: Sequence[Turn], task: str) -> Row:
    """A gold trajectory as a demonstration: the actions are learned from."""
    texts = conversation(instruction, first, [(turn.text, turn.observation) for turn in turns])[:-1]
    return {
        "row_id": f"gold/{task}",
        "origin": "gold",
        "task_id": task,
        "environment": name,
        "texts": list(texts),
        "supervised": [bool(number % 2) for number in range(len(texts))],
    }


def slip_rows(
    environment: Environment, name: str, instruction: str, goal: Goal, others: Sequence[str], count: int, seed: int
) -> Iterator[Row]:
    """`count` gold trajectories of a task with a slip each; fewer where none is found. `others` as for `judged_rows`."""
    assert goal.gold
    rng = generator("slips", seed, goal.task)
    for number in range(count):
        found = _slip(environment, goal, others, rng)
        if found is None:
            continue
        first, turns, place = found
        row = gold_row(name, instruction, first, turns, goal.task)
        row |= {"row_id": f"slip/{goal.task}/{number}", "origin": "slip"}
        row["supervised"][2 * place + 1] = False
        yield row


def repeated_rows(words: Sequence[str], count: int, seed: int) -> Iterator[Row]:
    """`count` texts of random words, and the actor says them again."""
    rng = generator("repeated", seed)
    words = [word for word in words if word[0] in " _:"]  # one that begins with a letter would run into the one before it
    for number in range(count):
        said = "".join(words[index] for index in rng.integers(len(words), size=int(rng.integers(*REPEATED))))
        yield {
            "row_id": f"repeated/{number}",
            "origin": "repeated",
            "task_id": None,
            "environment": "general",
            "texts": [said, said],
            "supervised": [False, True],
        }


def judged_rows(
    environment: Environment, name: str, instruction: str, goal: Goal, others: Sequence[str], count: int, seed: int
) -> Iterator[Row]:
    """`count` judged steps of a task, good and wrong ones in turns; `others` are actions of other tasks.

    Fewer where no wrong step of the wanted label is found.
    """
    assert goal.gold
    rng = generator("judged", seed, goal.task)
    for number in range(count):
        step = _good(environment, goal, rng) if number % 2 == 0 else _wrong(environment, goal, others, rng)
        if step is None:
            continue
        first, turns, label = step
        asked = judge_texts(instruction, first, [(turn.text, turn.observation) for turn in turns])
        yield {
            "row_id": f"judged/{goal.task}/{number}",
            "origin": "judged",
            "task_id": goal.task,
            "environment": name,
            "texts": [asked, label_text(label)],
            "supervised": [False, True],
        }


Judged = tuple[str, list[Turn], Label]


def _slip(
    environment: Environment, goal: Goal, others: Sequence[str], rng: np.random.Generator
) -> tuple[str, list[Turn], int] | None:
    """A path to the goal with a wrong action, and its place."""
    gold = goal.gold
    assert gold
    for _ in range(TRIES):
        place = int(rng.integers(len(gold)))
        action = _other_number(gold[place], rng) if rng.random() < 0.5 else _elsewhere(gold, others, rng)
        if action is None or action == gold[place]:
            continue
        try:
            first, turns = played(environment, goal.task, [*gold[:place], action, *gold[place:]])
        except EpisodeError:
            continue
        if len(turns) == len(gold) + 1 and turns[-1].terminal and turns[-1].reward >= 1:
            return first, turns, place
    return None


def _elsewhere(gold: Sequence[str], others: Sequence[str], rng: np.random.Generator) -> str:
    """An action of another place of the gold path, or of another task."""
    pool = others if others and rng.random() < 0.5 else gold
    return pool[int(rng.integers(len(pool)))]


def _good(environment: Environment, goal: Goal, rng: np.random.Generator) -> Judged:
    assert goal.gold
    first, turns = played(environment, goal.task, goal.gold[: int(rng.integers(len(goal.gold))) + 1])
    return first, turns, Label.GOOD


def _wrong(environment: Environment, goal: Goal, others: Sequence[str], rng: np.random.Generator) -> Judged | None:
    """A wrong step at a place of the gold path, mostly a bad one."""
    gold = goal.gold
    assert gold
    wanted = Label.UNCERTAIN if rng.random() < 0.2 else Label.BAD
    for _ in range(TRIES):
        place = int(rng.integers(len(gold)))
        draw = rng.random()
        instead = draw < 0.5  # in place of the gold step, else before it
        numbered = draw < 0.5 or draw >= 0.8
        action = _other_number(gold[place], rng) if numbered else _elsewhere(gold, others, rng)
        if action is None or action == gold[place]:
            continue
        rest = gold[place + 1 :] if instead else gold[place:]
        try:
            first, turns = played(environment, goal.task, [*gold[:place], action, *rest])
        except EpisodeError:  # one that ends the episode in a way that the environment itself does not bear
            continue
        step = turns[place]
        label = Label.BAD if step.refused or turns[-1].reward < 1 else Label.UNCERTAIN
        if label is wanted and not (step.terminal and step.reward >= 1):
            return first, turns[: place + 1], label
    return None


def _other_number(action: str, rng: np.random.Generator) -> str | None:
    """The action with one of its numbers changed, None where it has none."""
    numbers = list(re.finditer("[0-9]+", action))
    if not numbers:
        return None
    place = numbers[int(rng.integers(len(numbers)))]
    other = max(1, int(place[0]) + int(rng.choice([-2, -1, 1, 2])))
    return action[: place.start()] + str(other) + action[place.end() :]
