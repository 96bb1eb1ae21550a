"""What each kind of task source gives: tasks to train on, to demonstrate and to evaluate on, and passages for the tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from moat import splits
from moat.agentgym import Environment, Server
from moat.decontamination import normalised
from moat.importing import Import, corpus, import_files, import_hub
from moat.layout import SOURCES
from moat.params import Imported, Origin, Shop, Source, Stories, WebShop
from moat.seeds import seed_of
from moat.sources.base import Metric, Passage, Record, SourceError, Turn
from moat.sources.files import Advance
from moat.tokens import Role
from moat.worlds import shop
from moat.worlds.stories import Story, stories

CANONICAL = "numbers"  # the style of a story's gold plan, whatever its annotators write
STYLES = {Role.PLANNER: "planner_styles", Role.GROUNDER: "grounder_styles"}  # the setting that only this role's table reads
Signatures = set[tuple[int | str, ...]]
Progress = Callable[[str, int], AbstractContextManager[Advance]]


@dataclass
class Drawn:
    """What a source gives; demonstrations have their annotator's style, where there is one. `dropped` counts by reason."""

    train: list[Record]
    evaluation: list[Record]
    demos: dict[Role, list[tuple[Record, str | None]]]
    passages: list[Passage] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def draw(name: str, source: Source, seed: int, taken: Signatures, progress: Progress, webshop: str) -> Drawn:
    """Draw a source. `taken` holds the stories of sources before it; `webshop` is a server's address, or empty.

    Raises SourceError or SplitError, which name the source, or ServerError; each with what to do.
    """
    try:
        match source:
            case Stories():
                return _stories(name, source, seed, taken)
            case Imported():
                return _imported(name, source, seed, progress)
            case Shop():
                return _shop(name, source)
            case WebShop():
                return _webshop(name, source, webshop, progress)
    except (SourceError, splits.SplitError) as error:
        raise type(error)(f"source {name}: {error}") from error


def record(number: int, told: Story, style: str = CANONICAL) -> Record:
    """A story as a task, with a gold plan in one of its styles."""
    goals = [goal.partition(": ")[2] for goal in told.plans[style].split("; ")]
    return Record(
        number=number,
        text=told.text,
        domain="arithmetic",
        metric=Metric.NUMBER,
        gold_answer=told.answer,
        subgoals=told.plans[style],
        actions=told.actions,
        turns=tuple(Turn(goal, action) for goal, action in zip(goals, told.actions.split("; "), strict=True)),
    )


def _stories(name: str, source: Stories, seed: int, taken: Signatures) -> Drawn:
    """Stories; each role's annotators write in the styles that they happen to prefer."""
    own = f"{source.draw}/{seed}/{name}"
    shape = (source.steps, source.distractors)
    drawn = list(stories(source.family, "train", source.n_demos, *shape, f"{own}/train", taken))
    held = stories(source.family, "eval", source.n_eval, *shape, f"{own}/eval", taken)
    demos: dict[Role, list[tuple[Record, str | None]]] = {}
    for role in Role:
        shares = dict(getattr(source, STYLES[role]))
        rng = np.random.default_rng(seed_of(seed, "styles", name, role))
        styles = rng.choice(list(shares), size=len(drawn), p=list(shares.values())).tolist()
        demos[role] = [(record(n, one, style), style) for n, (one, style) in enumerate(zip(drawn, styles, strict=True), 1)]
    train = [record(n, one) for n, one in enumerate(drawn[: source.n_train], 1)]
    return Drawn(train, [record(n, one) for n, one in enumerate(held, 1)], demos)


def _both(records: Iterable[Record]) -> dict[Role, list[tuple[Record, str | None]]]:
    """The same demonstrations for both roles."""
    shown: list[tuple[Record, str | None]] = [(one, None) for one in records]
    return dict.fromkeys(Role, shown)


def _imported(name: str, source: Imported, seed: int, progress: Progress) -> Drawn:
    """Rows of files or of the hub, drawn by content. What has no origin of its own is drawn from `train`'s rows."""
    drawn_by, dropped, passages = f"{source.draw}/{seed}/{name}", Counter[str](), list[Passage]()
    wanted = {"train": source.n_train, "demos": source.n_demos, "eval": source.n_eval}
    found: dict[str, tuple[Record, ...]] = {}
    n_rows = 0
    for part, origin in (("demos", source.demos), ("eval", source.eval), ("train", source.train)):
        if origin is None:
            continue
        made = _rows(origin, name, progress)
        dropped.update(made.reasons)
        passages += corpus(made.records)
        n_rows += len(made.records)
        due = {other: n if other == part or (part == "train" and other not in found) else 0 for other, n in wanted.items()}
        split = splits.draw(made.records, drawn_by, due["train"], due["demos"], due["eval"])
        for other, records in (("train", split.train), ("demos", split.demos), ("eval", split.evaluation)):
            if other == part or (part == "train" and other not in found):
                found[other] = records
    left = n_rows - sum(map(len, found.values()))
    if left:
        dropped["not drawn"] = left
    train, demos, evaluation = (list(found.get(part, ())) for part in ("train", "demos", "eval"))
    return Drawn(train, evaluation, _both(demos), list(dict.fromkeys(passages)), dropped)


def _rows(origin: Origin, name: str, progress: Progress) -> Import:
    """Read an origin. A file's bar counts bytes, a data set's rows."""
    if origin.files:
        paths = [SOURCES / file for file in origin.files]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise SourceError(f"{missing[0]} is missing: put the publisher's file (or a link to it) there")
        with progress(f"reading {name}", sum(path.stat().st_size for path in paths)) as advance:
            return import_files(origin.importer, paths, origin.settings, advance)
    with progress(f"reading {name}", 0) as advance:
        return import_hub(
            origin.importer, origin.hub, origin.config or None, origin.split, origin.revisions, origin.settings, advance
        )


def _shop(name: str, source: Shop) -> Drawn:
    """Goals of the shop in process, in the order of their numbers: to evaluate on, to train on, to demonstrate."""
    world, seen, goals, number = shop.Shop(source.seed, source.families), set[str](), list[Record](), 0
    due = source.n_eval + source.n_train + source.n_demos
    while len(goals) < due:
        if number > 20 * due:
            raise SourceError(f"the shop has no {due:,} different goals: raise families")
        one = shop.record(world, number)
        number += 1
        if normalised(one.text) not in seen:
            seen.add(normalised(one.text))
            goals.append(one)
    evaluation, rest = goals[: source.n_eval], goals[source.n_eval :]
    return Drawn(rest[: source.n_train], evaluation, _both(rest[source.n_train :]))


def _webshop(name: str, source: WebShop, address: str, progress: Progress) -> Drawn:
    """Tasks of a WebShop server, whose instructions are asked for."""
    if not address:
        raise SourceError("set `servers.webshop` in machine.yaml to the address of AgentGym's WebShop server")
    found: list[Record] = []
    with progress(f"reading {name}", source.n_eval) as advance, Server(address, Environment.WEBSHOP).create() as session:
        for number in range(source.first, source.first + source.n_eval):
            observation = session.reset(number)
            _, marked, said = observation.partition("Instruction:")
            text = said.strip().removeprefix("[SEP]").split("[SEP]")[0].strip()
            if not marked or not text:
                raise SourceError(f"task {number} of {address} shows no instruction: {observation[:200]!r}")
            found.append(Record(number + 1, text, "webshop", Metric.REWARD, "1", context=f'{{"task":{number}}}'))
            advance(1)
    return Drawn([], found, _both([]))
