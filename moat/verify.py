"""`moat verify`: whether the tables and models of a pipeline are what the method says they are.

CONTENTS is the list of what is checked of MOAT, AGENT_CONTENTS that of Agent-R. A check is a function of the checkout that
yields findings; its docstring says what holds when it yields none. A check whose tables or models are not there yet is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from moat.agent_r.checkout import AgentCheckout
from moat.checkout import Absent, Checkout, Finding, Findings, Level
from moat.checks import (
    agent_demonstrations,
    agent_plays,
    agent_revisions,
    agent_tasks,
    agent_training,
    agent_trees,
    agent_turns,
    candidates,
    evals,
    lengths,
    lock,
    models,
    pairs,
    tables,
    tasks,
    training_set,
)
from moat.moat_checkout import MoatCheckout
from moat.pipelines import is_agent_r
from moat.terminal import escape

Check = Callable[[Any], Findings]  # of the checkout of its pipeline
Contents = tuple[tuple[str, tuple[Check, ...]], ...]

FILES: tuple[str, tuple[Check, ...]] = (
    "Files",
    (
        tables.readable,
        tables.sorted_by_key,
        tables.counted,
        lock.agrees,
        tables.parents_there,
        tables.made_from_these,
        tables.changed_params,
        tables.one_engine,
        tables.known_rounds,
    ),
)
MODELS: tuple[str, tuple[Check, ...]] = (
    "Models",
    (models.complete, models.bases, models.tokenizers, models.weights, models.logs),
)
CONTENTS: Contents = (
    FILES,
    (
        "Tasks and demonstrations",
        (tasks.ids, tasks.gold, tasks.gold_table, tasks.sources, tasks.decontaminated, tasks.demonstrations),
    ),
    (
        "Candidates of a round",
        (
            candidates.k_per_task,
            candidates.samples,
            candidates.scores_and_acts_join,
            candidates.perplexities,
            candidates.outcomes,
        ),
    ),
    (
        "Pairs of a round",
        (pairs.one_per_task, pairs.as_scored, pairs.extremes, pairs.gap),
    ),
    (
        "Verdicts and training set of a round",
        (
            training_set.verdicts,
            training_set.corrections,
            training_set.candidates,
            training_set.initial,
            training_set.ratio,
        ),
    ),
    (
        "Evaluations",
        (evals.tasks, evals.outcomes, evals.grades, evals.samples, evals.controls),
    ),
    MODELS,
    (
        "Tokens",
        (lengths.scored, lengths.trained),
    ),
)

AGENT_CONTENTS: Contents = (
    FILES,
    (
        "Tasks and demonstrations",
        (
            agent_tasks.apart,
            agent_tasks.drawn,
            agent_tasks.gold,
            agent_demonstrations.shown,
            agent_demonstrations.general,
            agent_demonstrations.supervised,
        ),
    ),
    (
        "Turns",
        (agent_turns.read_alike, agent_turns.played_again),
    ),
    (
        "Trees of a round",
        (
            agent_trees.searched,
            agent_trees.shape,
            agent_trees.ends,
            agent_trees.backed_up,
            agent_trees.distinct,
            agent_trees.costs,
        ),
    ),
    (
        "Judgements and revisions of a round",
        (
            agent_revisions.judged,
            agent_revisions.labels,
            agent_revisions.paired,
            agent_revisions.turned,
            agent_revisions.spliced,
            agent_revisions.kept,
        ),
    ),
    (
        "Training set of a round",
        (agent_training.rows, agent_training.weights),
    ),
    (
        "Recovery set and evaluations",
        (agent_plays.cuts, agent_plays.from_the_start, agent_plays.from_cuts, agent_plays.played),
    ),
    MODELS,
    (
        "Tokens",
        (agent_training.lengths, agent_training.trained),
    ),
)


@dataclass
class Result:
    """One check: what it says, and what it found; `ran` is False when what it needs is not there."""

    section: str
    title: str
    ran: bool = True
    findings: list[Finding] = field(default_factory=list)

    def mark(self) -> str:
        """The worst that was found: "fault", "warning", "good", or "absent"."""
        levels = {finding.level for finding in self.findings}
        worst = next((level.value for level in Level if level in levels), "good")
        return worst if self.ran or levels else "absent"


@dataclass
class Report:
    """All checks of a checkout, and which tables and models are not there."""

    results: list[Result]
    missing: list[str]
    n_there: int

    def found(self, level: Level) -> list[Finding]:
        """All findings of a level, in the order of the checks."""
        return [finding for result in self.results for finding in result.findings if finding.level is level]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": not self.found(Level.FAULT),
            "findings": [asdict(finding) for result in self.results for finding in result.findings],
            "not_there": self.missing,
            "checks": [{"section": r.section, "title": r.title, "result": r.mark()} for r in self.results],
        }


def title(check: Check) -> str:
    """What holds when a check finds nothing: the first line of its docstring."""
    return (check.__doc__ or check.__name__).splitlines()[0]


def opened(root: Path) -> tuple[Checkout[Any], Contents]:
    """The checkout of the pipeline in `root`, and what is checked of it. Raises as `Checkout`."""
    return (AgentCheckout(root), AGENT_CONTENTS) if is_agent_r(root) else (MoatCheckout(root), CONTENTS)


def verify(root: Path, begin: Callable[[str], None] = lambda title: None) -> Report:
    """Run every check on the pipeline in `root`; `begin` is told the title of each before it runs.

    Raises ParamsError for a params.yaml or dvc.lock that cannot be read, FileNotFoundError when there is nothing to check.
    """
    checkout, contents = opened(root)
    missing = checkout.missing()
    n_there = len(checkout.schemas) + len(checkout.models) - len(missing)
    if not n_there:
        raise FileNotFoundError(f"no table and no model in {root}: `dvc repro` makes them, `dvc pull` fetches them")
    return Report(list(_results(checkout, contents, begin)), [str(path) for path in missing], n_there)


def _results(checkout: Checkout[Any], contents: Contents, begin: Callable[[str], None]) -> Iterator[Result]:
    for section, checks in contents:
        for check in checks:
            begin(title(check))
            result = Result(section, title(check))
            try:
                for finding in check(checkout):
                    result.findings.append(finding)
            except Absent:
                result.ran = False
            yield result


MARKS = {"good": "[green]✓[/]", "fault": "[bold red]✗[/]", "warning": "[yellow]![/]", "absent": "[dim]–[/]"}


def show(report: Report, out: Console) -> None:
    """Print the contents with a mark for each check, then the findings, what is not there, and the sum."""
    section = ""
    for result in report.results:
        if result.section != section:
            section = result.section
            out.print(f"[bold]{section}[/]")
        line = Grid.grid(padding=(0, 1, 0, 0))
        line.add_row(MARKS[result.mark()], Text(result.title, "dim" if result.mark() == "absent" else ""))
        out.print(Padding(line, (0, 0, 0, 2)))
    for level, colour in ((Level.FAULT, "bold red"), (Level.WARNING, "yellow")):
        for finding in report.found(level):
            out.print()
            out.print(f"[{colour}]{level}[/] {escape(finding.path)}", soft_wrap=True)
            out.print(Padding(escape(finding.what), (0, 0, 0, 2)))
            out.print(Padding(f"[dim]→ {escape(finding.remedy)}[/]", (0, 0, 0, 2)))
    out.print()
    if report.missing:
        out.print(Padding(f"[dim]not there: {escape(', '.join(report.missing))}[/]", (0, 0, 1, 0)))
    faults, warnings = len(report.found(Level.FAULT)), len(report.found(Level.WARNING))
    said = f"{report.n_there} tables and models, {sum(result.ran for result in report.results)} checks: "
    said += f"{faults} fault{'s' * (faults != 1)}" if faults else "no fault"
    out.print(said + (f", {warnings} warning{'s' * (warnings != 1)}" if warnings else ""))
