"""The page of an Agent-R run: figures of every round from metrics.json, and trees, splices and recoveries as examples.

Nothing is measured here: figures are those of `summarize`. What the actor does from the start and what it does in recovery
are two tests, which stand apart, and each environment has its own lines. The page is one file that loads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl
from markupsafe import Markup

from moat.agent_r import drawn_tree, paper
from moat.agent_r.drawn_tree import Drawing
from moat.agent_r.params import AgentParams
from moat.agent_r.turns import Kind
from moat.charts import Line, lines
from moat.reporting import Block, ReportError, base_model, drawn, number, percent, points, rendered, tick
from moat.seeds import content_id

N_TREES, N_SPLICES, N_NOT_KEPT, N_RECOVERIES = 2, 3, 1, 2  # examples; recoveries: so many of either kind
LONGEST = 1000  # characters of a turn or an observation in an example
LENGTHS = 5  # of repeated sequences that have a column of their own
TESTS = {"main": "from the start", "recovery": "recovery"}
STYLES = dict.fromkeys(("environment", "round", "origin"), "k") | dict.fromkeys(  # of columns with words
    ("dropped", "ended by", "figure", "kind of task", "labels", "method", "model", "of", "stopped by"), ""
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table of the page: heads, and rows of as many texts."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def columns(self) -> list[tuple[int, str, str]]:
        """Number, head and style of each column that has something in it: n for numbers, k for what stays on one line."""
        filled = [number for number in range(len(self.heads)) if any(row[number] for row in self.rows)]
        return [(number, self.heads[number], STYLES.get(self.heads[number], "n")) for number in filled]


# --- figures as text ------------------------------------------------------------------------------------------------


def count(value: int | None) -> str:
    """A number of things; blank for none known."""
    return "" if value is None else f"{value:,}"


def counted(found: Mapping[str, int]) -> str:
    """Counts by name, the most frequent first."""
    return ", ".join(f"{n:,} {name}" for name, n in sorted(found.items(), key=lambda one: (-one[1], one[0])))


def shared_out(found: Mapping[str, float]) -> str:
    """Shares by name, the largest first."""
    return ", ".join(f"{percent(n)} {name}" for name, n in sorted(found.items(), key=lambda one: (-one[1], one[0])))


def spread(block: Block, name: str) -> str:
    """A share in percent with its interval."""
    if block[name] is None:
        return "–"
    return f"{percent(block[name], '')} ({percent(block[f'{name}_low'], '')}–{percent(block[f'{name}_high'], '')})"


def gained(block: Block, before: Block | None, name: str) -> str:
    """A share against that of round 0, in points; blank where one of them is not known."""
    if before is None or block is before or block[name] is None or before[name] is None:
        return ""
    return points(block[name] - before[name])


# --- tables ---------------------------------------------------------------------------------------------------------


def each(rounds: Mapping[str, Block], part: str) -> Iterator[tuple[str, str, Block]]:
    """The blocks of a part, as (environment, round, block), by environment."""
    found = []
    for key, block in rounds.items():
        found += [(name, key, own) for name, own in (block[part] or {"environments": {}})["environments"].items()]
    yield from sorted(found, key=lambda one: one[0])


def headline(rounds: Mapping[str, Block], part: str, first: str) -> Grid:
    """Success and mean reward by environment and round, each against round 0 (`first` is its name)."""
    rows = []
    for environment, own in groupby(each(rounds, part), key=lambda one: one[0]):
        blocks = {key: block for _, key, block in own}
        for key, block in blocks.items():
            row = [environment, tick(key, first), count(block["n"])] + [count(block["tasks"])] * (part == "recovery")
            for name in ("success", "reward"):
                row += [spread(block, name), gained(block, blocks.get("0"), name)]
            rows.append(row)
    n = ["cuts", "of tasks"] if part == "recovery" else ["tasks"]
    against = f"against the {first}, points"
    figures = ["success, % (95% interval)", f"success {against}", "mean reward, % (95% interval)", f"reward {against}"]
    return Grid(["environment", "round", *n, *figures], rows)


def kinds(rounds: Mapping[str, Block], first: str) -> Grid:
    """Success and mean reward by kind of task, of environments with more than one."""
    rows = []
    for environment, key, own in each(rounds, "main"):
        again = (rounds[key]["recovery"]["environments"].get(environment) or {"kinds": {}})["kinds"]
        for kind, block in own["kinds"].items() if len(own["kinds"]) > 1 else ():
            row = [environment, kind, tick(key, first)]
            for one in (block, again.get(kind)):
                row += [count(one["n"]), percent(one["success"], ""), percent(one["reward"], "")] if one else ["", "", ""]
            rows.append(row)
    figures = [f"{test}: {name}" for test in TESTS.values() for name in ("n", "success, %", "mean reward, %")]
    return Grid(["environment", "kind of task", "round", *figures], rows)


def conduct(rounds: Mapping[str, Block], first: str) -> Grid:
    """What the plays were like, besides what they came to."""
    rows = []
    for part, name in TESTS.items():
        for environment, key, block in each(rounds, part):
            rates = [percent(block[rate], "") for rate in ("loop_rate", "invalid_rate")]
            means = [number(block[mean], 2) for mean in ("reflections", "turns")]
            ends = [shared_out(block["ended"]), counted(block["dropped"])]
            rows.append([name, environment, tick(key, first), *rates, *means, *ends])
    figures = ["loop rate, %", "invalid, %", "reflections a play", "turns a play", "ended by", "dropped"]
    return Grid(["of", "environment", "round", *figures], rows)


def beside_the_paper(rounds: Mapping[str, Block], mode: str, base: str, textcraft: str | None, first: str) -> Grid:
    """The paper's rows, then one for each round; `textcraft` is the environment that is."""
    own = [paper.own_row(f"this run ({mode}), {tick(key, first)}", block, textcraft) for key, block in rounds.items()]
    rows = [
        [one.method, model, *(number(value, 2) for value in (one.start, one.recovery, one.textcraft))]
        for one, model in [*((one, paper.BASE) for one in paper.RESULTS), *((one, base) for one in own)]
    ]
    return Grid(
        ["method", "model", "from the start, mean of environments", "recovery, mean of environments", "recovery, TextCraft"],
        rows,
    )


def searched(rounds: Mapping[str, Block]) -> Grid:
    """The trees of each round, and what they cost."""
    rows = []
    for environment, key, block in each(rounds, "search"):
        rows.append(
            [environment, key, count(block["trees"]), number(block["rollouts"], 1)]
            + [percent(block[share], "") for share in ("solved", "both")]
            + [count(block[cost]) for cost in ("calls", "tokens", "steps", "replayed")]
            + [counted(block["stopped"]), counted(block["dropped"])]
        )
    heads = [
        "environment",
        "round",
        "trees",
        "rollouts a tree",
        "solved, %",
        "good and bad path, %",
        "turns asked",
        "tokens",
    ]
    return Grid([*heads, "environment steps", "to bring back a state", "stopped by", "dropped"], rows)


def thresholds(rounds: Mapping[str, Block], alphas: Mapping[str, float]) -> Grid:
    """What alpha, beta and the cap removed in each round: of the pairs, of the splices, and of the training set."""
    made = {key: block for key, block in rounds.items() if block["trained"]}
    found = {key: block["revisions"]["thresholds"] or {} for key, block in made.items()}
    values: dict[str, dict[str, int]] = {}

    def removed(words: str, of: Mapping[str, Mapping[str, int]]) -> None:
        for reason in sorted({reason for own in of.values() for reason in own}):
            values[words + reason] = {key: own.get(reason, 0) for key, own in of.items()}

    removed("no pair, ", {key: one.get("removed", {}) for key, one in found.items()})
    if any(found.values()):
        pairs = {key: one.get("pairs", 0) for key, one in found.items()}
        twos = {key: n + sum(found[key].get("removed", {}).values()) for key, n in pairs.items()}
        paths = {key: one.get("paths", 0) for key, one in found.items()}
        values = {"finished paths": paths, "two of a tree with different rewards": twos} | values | {"pairs": pairs}
    removed("trees ", {key: one.get("empty", {}) for key, one in found.items()})
    removed("pair not kept, ", {key: block["revisions"]["dropped"] for key, block in made.items()})
    removed("not in the training set, ", {key: block["trained"]["dropped"] for key, block in made.items()})
    rows = [[name, *(count(own[key]) for key in made)] for name, own in values.items() if any(own.values())]
    return Grid(["figure", *(f"{tick(key)}, alpha {alphas[key]:g}" for key in made)], rows)


def revised(rounds: Mapping[str, Block]) -> Grid:
    """Pairs, kept and dropped, and where the bad paths turn."""
    rows = []
    for environment, key, block in each(rounds, "revisions"):
        pairs = [count(block[name]) for name in ("pairs", "kept", "reexecuted")]
        places = [number(block[name], 2) for name in ("revision_length", "first_bad", "turn")]
        paths = [percent(block["survival"], ""), count(block["bad_paths"])]
        rows.append([environment, key, *pairs, *paths, *places, counted(block["dropped"])])
    heads = ["environment", "round", "pairs", "kept", "taken again", "of these kept, %", "bad paths", "revision length"]
    return Grid([*heads, "first bad turn", "last turn kept", "dropped"], rows)


def judged(rounds: Mapping[str, Block]) -> Grid:
    """What the judge said, beside what the search tree and the environment say."""
    rows = []
    for environment, key, block in each(rounds, "judge"):
        all_good = None if block["tree_bad"] is None else 1 - block["tree_bad"]
        shares = (block["agreement"], all_good, block["bad_given_refused"], block["refused_given_bad"], block["unparsed"])
        rows.append(
            [environment, key, count(block["steps"]), counted(block["labels"]), *(percent(one, "") for one in shares)]
        )
    heads = ["environment", "round", "steps", "labels", "agrees with the tree, %", "good by the tree, %"]
    return Grid([*heads, "bad, of those refused, %", "refused, of those bad, %", "unparsed, %"], rows)


@dataclass(frozen=True)
class Loops:
    """Repeats by length in the actions of `n` plays or rows."""

    of: str
    environment: str
    round: str
    n: int
    repeats: Mapping[int, int]

    @property
    def mean(self) -> float | None:
        """Repeats of each play or row."""
        return sum(self.repeats.values()) / self.n if self.n else None


def all_loops(rounds: Mapping[str, Block]) -> list[Loops]:
    """Those of both tests, and of what is trained on by origin."""
    found = [
        Loops(test, environment, key, block["n"], _by_length(block))
        for part, test in TESTS.items()
        for environment, key, block in each(rounds, part)
    ]
    learned = [
        Loops(f"trained on, {origin}", environment, key, own["rows"], _by_length(own))
        for environment, key, block in each(rounds, "trained")
        for origin, own in block["origin"].items()
        if own["actions"]
    ]
    return found + sorted(learned, key=lambda one: one.of)


def _by_length(block: Block) -> dict[int, int]:
    return {int(length): n for length, n in block["loops"].items()}


def repeats(rounds: Mapping[str, Block], first: str) -> Grid:
    """How many repeats of actions a play, or a row that is trained on, has in each round."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for one in all_loops(rounds):
        found.setdefault((one.of, one.environment), {})[one.round] = number(one.mean, 2)
    rows = [[*names, *(own.get(key, "") for key in rounds)] for names, own in found.items()]
    return Grid(["of", "environment", *(tick(key, first) for key in rounds)], rows)


def lengths(rounds: Mapping[str, Block], first: str) -> Grid:
    """The repeats by length."""
    found = all_loops(rounds)
    longest = max((length for one in found for length in one.repeats), default=1)
    alone = range(1, min(longest, LENGTHS) + 1)
    rows = []
    for one in found:
        longer = sum(n for length, n in one.repeats.items() if length > LENGTHS)
        counts = [count(one.repeats.get(length, 0)) for length in alone]
        names = [one.of, one.environment, tick(one.round, first), count(one.n)]
        rows.append([*names, *counts, count(longer) if longest > LENGTHS else ""])
    heads = ["of", "environment", "round", "plays or rows", *(f"length {length}" for length in alone)]
    return Grid([*heads, "longer"], rows)


def taught(rounds: Mapping[str, Block]) -> Grid:
    """What the actor learns from in each round, by origin."""
    rows = []
    for key, block in rounds.items():
        for origin, own in (block["trained"] or {"origin": {}})["origin"].items():
            each_token = own["weight"] / own["tokens"] if own["tokens"] else None
            counts = [count(own[name]) for name in ("rows", "tokens")]
            sizes = [number(own["weight"]), "–" if each_token is None else f"{each_token:.3g}", number(own["turns"], 1)]
            rows.append([tick(key), origin, *counts, *sizes, count(own["actions"])])
    heads = ["round", "origin", "rows", "tokens learned from", "weight in the loss", "weight of a token", "turns a row"]
    return Grid([*heads, "actions learned from"], rows)


# --- curves ---------------------------------------------------------------------------------------------------------


def charts(rounds: Mapping[str, Block], first: str) -> list[Row]:
    """The curves, each with title, note and SVG; an environment has one colour in all. What nobody measured is left out."""
    ticks = [tick(key, first) for key in rounds]
    names = sorted({name for part in TESTS for name, _, _ in each(rounds, part)})

    def line(part: str, name: str, figure: str, *, bounds: bool = False, both: bool = False, times: int = 1) -> Line:
        blocks = [block[part]["environments"].get(name, {}) for block in rounds.values()]

        def values(field: str) -> list[float | None]:
            found = [block.get(field) for block in blocks]
            return [None if value is None else times * value for value in found]

        ends = {"low": values(f"{figure}_low"), "high": values(f"{figure}_high")} if bounds else {}
        dashed, label = both and part == "recovery", f"{name}, {TESTS[part]}" if both else name
        return Line(label, values(figure), **ends, dashed=dashed, colour=names.index(name))

    made: list[Row] = []

    def draw(title: str, note: str, short: str, curves: Iterable[Line], axis: str, share: bool) -> None:
        known = [curve for curve in curves if any(value is not None for value in curve.values)]
        if known:
            made.append({"title": title, "note": note, "svg": lines(short, ticks, known, axis, share, None, 0)})

    for figure, said in (("success", "Success"), ("reward", "Mean reward")):
        for part, test in TESTS.items():
            title = f"{said} {test}" if part == "main" else f"{said} in {test}"
            of = (
                "Plays that reach the full reward"
                if figure == "success"
                else "Mean final reward, as a share of the full one"
            )
            curves = [line(part, name, figure, bounds=True) for name in names]
            draw(title, f"{of}, with 95% intervals.", f"{part}-{figure}", curves, "", True)
    for figure, title, note, axis in (
        ("loop_rate", "Loop rate", "Share of the actions that repeat one in the same state of the same play.", "%"),
        ("invalid_rate", "Invalid turns", "Share of the turns that could not be read or that the environment refused.", "%"),
        ("reflections", "Reflections", "Mean number in a play.", ""),
        ("turns", "Turns", "Mean number in a play; in recovery those after the cut.", ""),
    ):
        times = 100 if axis else 1
        curves = [line(part, name, figure, both=True, times=times) for name in names for part in TESTS]
        draw(title, note, figure.replace("_", "-"), curves, axis, False)
    return made


# --- notes ----------------------------------------------------------------------------------------------------------


def notes(rounds: Mapping[str, Block], left_out: Sequence[str], cuts: int, first: str) -> list[str]:
    """What a reader must know before the figures."""
    found = [f"{name} was left out: Java or its package was missing. The figures are of the others." for name in left_out]
    if not cuts:
        found.append("No recovery was measured: no trajectory of round 0's actor failed with reward 0 and could be cut.")
    for key, block in rounds.items():
        told = (block["revisions"] or {}).get("thresholds")
        if told and not told["pairs"]:
            why = counted(told["removed"] | told["empty"]) or "no tree"
            found.append(f"Round {key} had nothing to revise: {why}.")
        lost = {TESTS[part]: sum(block[part]["dropped"].values()) for part in TESTS if block[part]["dropped"]}
        if lost:
            found.append(f"Plays of {tick(key, first)} that were lost and count nowhere: {counted(lost)}.")
    return found


# --- examples -------------------------------------------------------------------------------------------------------


def pick(found: Iterable[tuple[str, str]], n: int) -> list[str]:
    """`n` of (environment, id): environments by turns, and in each the order of the ids' hashes, so that nobody picks."""
    turn: Counter[str] = Counter()
    ranked = []
    for environment, name in sorted(set(found), key=lambda one: content_id(one[1])):
        ranked.append((turn[environment], environment, name))
        turn[environment] += 1
    return [name for _, _, name in sorted(ranked)[:n]]


def clip(text: str) -> str:
    """A text of at most LONGEST characters, and how many more there are."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST:,} more characters)"


def shown(turn: Row, part: str, **more: Any) -> Row:
    """A turn for the page; `part` is its style and its name."""
    marks = [name for name in ("refused", "repeated", "terminal") if turn[name]]
    marks += ["unreadable"] * (turn["kind"] == Kind.UNREADABLE)
    said = {"said": clip(turn["text"]), "answered": clip(turn["observation"]), "reward": turn["reward"], "marks": marks}
    return {"part": part, **said, **more}


def trees(drawings: Iterable[Drawing]) -> list[Row]:
    """Search trees as parts of the page, with their environments."""
    return [
        {"task_id": one.tree["task_id"], "environment": one.tree["environment"], "html": Markup(drawn_tree.fragment(one))}
        | {"best": one.tree["best"], "worst": one.tree["worst"], "rollouts": one.tree["rollouts"], "nodes": len(one.nodes)}
        for one in drawings
    ]


def searched_tasks(revisions: pl.DataFrame, n: int = N_TREES) -> list[str]:
    """The tasks whose trees are shown: with pairs that were kept, where there are so many, else with others."""
    kept = revisions.filter(revisions["dropped"].is_null())
    found = pick(kept.select("environment", "task_id").iter_rows(), n)
    others = revisions.filter(~revisions["task_id"].is_in(kept["task_id"].unique().to_list()))
    return found + pick(others.select("environment", "task_id").iter_rows(), n - len(found))


def splices(revisions: pl.DataFrame, judgements: pl.DataFrame, trained: pl.DataFrame, goals: pl.DataFrame) -> list[Row]:
    """Spliced trajectories turn by turn: N_SPLICES that were kept and N_NOT_KEPT that were not, where there are as many.

    Labels are joined by (task_id, bad, turn), what is learned from by the training set's row_id. Raises ReportError for a
    task that is not in `goals`.
    """
    rows = {f"{row['task_id']}/{row['bad']}/{row['good']}": row for row in revisions.iter_rows(named=True) if row["turns"]}
    kept = pick(((row["environment"], name) for name, row in rows.items() if row["dropped"] is None), N_SPLICES)
    others = pick(((row["environment"], name) for name, row in rows.items() if row["dropped"] is not None), N_NOT_KEPT)
    names = kept + others
    asked = pl.col("task_id").is_in([rows[name]["task_id"] for name in names])
    label_of = {(row["task_id"], row["bad"], row["turn"]): row for row in judgements.filter(asked).iter_rows(named=True)}
    wanted = trained.filter(pl.col("row_id").is_in([f"revision/{name}" for name in names]))
    learned_of = dict(wanted.select("row_id", "supervised").iter_rows())
    told_of = told(goals)
    found = []
    for name in names:
        row, learned = rows[name], learned_of.get(f"revision/{name}")
        task, last = row["task_id"], row["turn"]
        if task not in told_of:
            raise ReportError(f"data/tasks/train.parquet lacks the task {task} of a revision: `dvc repro` makes both anew")
        turns = []
        for number_, turn in enumerate(row["turns"]):
            part = "initial" if number_ < row["shared"] else "bad" if number_ <= last else "good"
            part = "reflection" if number_ == row["reflection"] else part
            label = label_of.get((task, row["bad"], number_)) if number_ <= last else None
            supervised = bool(learned[2 * number_ + 1]) if learned else None
            turns.append(shown(turn, part, label=label, learned=supervised))
        found.append({"row": row, "told": clip(told_of[task]), "turns": turns, "in_set": learned is not None})
    return found


def told(goals: pl.DataFrame) -> dict[str, str]:
    """The first observation of each task."""
    return dict(goals.select("task_id", "first").iter_rows())


def recoveries(plays: pl.DataFrame, cuts: pl.DataFrame, goals: pl.DataFrame, n: int = N_RECOVERIES) -> list[Row]:
    """Plays from cuts turn by turn, `n` that reached the full reward and `n` that did not, where there are as many.

    A play is joined with its cut by id. Raises ReportError for one without a cut or a task.
    """
    used = plays.filter(plays["dropped"].is_null())
    names = [
        name
        for success in (True, False)
        for name in pick(used.filter(used["success"] == success).select("environment", "play_id").iter_rows(), n)
    ]
    row_of = {row["play_id"]: row for row in used.filter(used["play_id"].is_in(names)).iter_rows(named=True)}
    cut_of = {row["cut_id"]: row for row in cuts.filter(cuts["cut_id"].is_in(names)).iter_rows(named=True)}
    told_of = told(goals)
    found = []
    for name in names:
        row = row_of[name]
        if name not in cut_of or row["task_id"] not in told_of:
            raise ReportError(f"the recovery {name} has no cut or no task: the tables are of different runs (`dvc repro`)")
        given = [shown(turn, "given") for turn in cut_of[name]["turns"]]
        own = [shown(turn, "reflection" if turn["kind"] == Kind.REFLECTION else "own") for turn in row["turns"]]
        found.append({"row": row, "cut": cut_of[name], "told": clip(told_of[row["task_id"]]), "turns": given + own})
    return found


def render(context: Mapping[str, Any], metrics: Block, params: AgentParams, left_out: Sequence[str] = ()) -> str:
    """The page. `context` carries `facts`, `deviations`, `examples` (their round, or None), `trees`, `splices`, `recoveries`
    and `last`, the key of the recoveries' round. `left_out` are the environments that could not run.
    """
    base = getattr(params.base_model, "name", "") or base_model(params.base_model)
    textcraft = next((name for name, world in params.environments.items() if paper.is_textcraft(world)), None)
    first, mode = "cold start" if params.cold_start.enabled else "base model", params.mode
    alphas = {key: one.alpha for key, one in params.rounds.items()}
    rounds = metrics["rounds"]
    return rendered(
        "agent_r/page.html.j2",
        **context,
        first=first,
        mode=mode,
        rounds=rounds,
        tests={part: (test, headline(rounds, part, first)) for part, test in TESTS.items()},
        notes=notes(rounds, left_out, metrics["recovery_set"]["cuts"], first),
        kinds=kinds(rounds, first),
        conduct=conduct(rounds, first),
        paper=beside_the_paper(rounds, mode, base, textcraft, first),
        paper_source=paper.SOURCE,
        paper_environments=paper.ENVIRONMENTS,
        charts=drawn(charts(rounds, first)),
        searched=searched(rounds),
        thresholds=thresholds(rounds, alphas),
        revised=revised(rounds),
        judged=judged(rounds),
        repeats=repeats(rounds, first),
        lengths=lengths(rounds, first),
        taught=taught(rounds),
        tree_css=Markup(drawn_tree.CSS),
    )
