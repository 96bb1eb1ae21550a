"""The tools of every domain with what they read, and running actions with them.

What a domain's tools need beyond an action's arguments is opened once per stage: the corpus and its reader for `qa`, the
ranking of a page's elements for `web`, a server for WebShop itself. `arithmetic` and `maths` need nothing, nor does the
shop in process. A task's `context` says the rest: its page, or its goal in the shop.

A tool that asks a model (QA) cannot do so in the midst of one program, or every question would be a batch of its own. So
programs run until a question is open, all open questions are asked in one batch, and the programs with an open question
run again with its answer known; tools give equal results for equal arguments, so running again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from moat.actions import ActionSyntaxError, parse
from moat.executor import Execution, Outcome, execute, outcome
from moat.page import Page, PageError
from moat.ranking import Ranker, lexical
from moat.sessions import Session, format_reward
from moat.sources.base import Metric, Passage
from moat.tools.base import Tool
from moat.tools.maths import CALCULATOR_TOOLS, MATHS_TOOLS
from moat.tools.web import web_tools
from moat.tools.webshop import webshop_tools
from moat.turns import history
from moat.worlds.shop import open_session

if TYPE_CHECKING:
    from moat.corpus import Corpus
    from moat.params import Tools
    from moat.reader import Reader
    from moat.stage import Stage
    from moat.tools.qa import Question


@dataclass(frozen=True, slots=True)
class Goal:
    """What actions are run against: the tools' domain and context, the actions of earlier turns, the gold answer."""

    domain: str
    gold_answer: str
    metric: Metric = Metric.NUMBER
    context: str = ""
    earlier: tuple[str, ...] = ()


def goal_of(row: Mapping[str, Any]) -> Goal:
    """What the actions of a task's row are run against; for a turn, after the gold turns before it."""
    earlier = tuple(turn.actions for turn in history(row) or ())
    return Goal(row["domain"], row["gold_answer"], Metric(row["metric"]), row["context"], earlier)


class ToolboxError(ValueError):
    """A task whose tools cannot be opened; the message says what is missing."""


@dataclass
class Library:
    """What the tools of `qa` read: a corpus or the live Wikipedia, and the model that answers from passages (or none)."""

    corpus: Corpus
    found: int
    kept: int
    wikipedia: Callable[[str], list[Passage]] | None = None
    reader: Reader | None = None
    known: dict[Question, str | None] = field(default_factory=dict)

    def tools(self) -> Mapping[str, Tool]:
        """The five tools, with the answers that are known so far."""
        from moat.tools.qa import known_answers, no_reader, qa_tools

        read = no_reader if self.reader is None else known_answers(self.known)
        code = MATHS_TOOLS["Code"]
        return qa_tools(self.corpus, read, code, found=self.found, kept=self.kept, wikipedia=self.wikipedia)


class Toolbox:
    """Runs actions with the real tools of their domain.

    `rank` orders a page's elements; `library` is what `qa` reads; `shop` opens a session on a WebShop server. What is None
    is not there, and `knows` says so. Actions of a task are run from its beginning each time, with those of its earlier
    turns, on a session of their own: equal goals and actions give equal results.
    """

    def __init__(
        self,
        rank: Ranker | None = lexical,
        library: Library | None = None,
        shop: Callable[[], Session] | None = None,
    ) -> None:
        self._rank, self._library, self._shop = rank, library, shop

    def knows(self, goal: Goal) -> bool:
        """Whether there is all that this goal's actions need to be run."""
        match goal.domain:
            case "arithmetic" | "maths":
                return True
            case "qa":
                return self._library is not None
            case "web":
                return self._rank is not None
            case "webshop":
                return "shop" in _context(goal) or self._shop is not None
        return False

    def execute(self, actions: str, goal: Goal) -> Execution:
        """Run one action text."""
        return self.run([(actions, goal)])[0]

    def outcome(self, actions: str, goal: Goal) -> Outcome:
        """What one action text comes to."""
        return outcome(self.execute(actions, goal), goal.gold_answer, goal.metric)

    def run(self, programs: Sequence[tuple[str, Goal]]) -> list[Execution]:
        """Run every action text, in order; the actions of earlier turns are run before it, for their results.

        Raises ToolboxError for a goal whose tools are not there, and what a server or a reader raises.
        """
        if self._library is None or self._library.reader is None:
            return [self._run(actions, goal) for actions, goal in programs]
        from moat.tools.qa import Unread

        library, reader = self._library, self._library.reader
        found: dict[int, Execution] = {}
        waiting = list(range(len(programs)))
        while waiting:
            asked: dict[Question, None] = {}
            still: list[int] = []
            for index in waiting:
                try:
                    found[index] = self._run(*programs[index])
                except Unread as unread:
                    asked[unread.question] = None
                    still.append(index)
            if asked:
                library.known |= dict(zip(asked, reader.answer_all(list(asked)), strict=True))
            waiting = still
        return [found[index] for index in range(len(programs))]

    def _run(self, actions: str, goal: Goal) -> Execution:
        match goal.domain:
            case "arithmetic":
                tools = CALCULATOR_TOOLS
            case "maths":
                tools = MATHS_TOOLS
            case "qa" if self._library is not None:
                tools = self._library.tools()
            case "web" if self._rank is not None:
                # Each step has a page of its own, and only this one's is here: an earlier result is the page.
                return execute(actions, web_tools(_page(goal), self._rank), _names(goal.earlier))
            case "webshop":
                session = self._session(goal)
                try:
                    execution = self._after(goal, webshop_tools(session), actions)
                    # What is bought is bought: the reward is the answer, whatever else was tried afterwards.
                    bought = session.done
                    return replace(execution, answer=format_reward(session.reward), failure=None) if bought else execution
                finally:
                    session.close()
            case _:
                raise ToolboxError(
                    f"there is nothing here to run actions of the domain {goal.domain!r} with"
                    + (": run `dvc repro index` first" if goal.domain == "qa" else "")
                )
        return self._after(goal, tools, actions)

    @staticmethod
    def _after(goal: Goal, tools: Mapping[str, Tool], actions: str) -> Execution:
        """Run actions after those of the earlier turns."""
        results: dict[str, str] = {}
        for text in goal.earlier:
            results |= execute(text, tools, results).results
        return execute(actions, tools, results)

    def _session(self, goal: Goal) -> Session:
        """A session at the beginning of the goal's episode."""
        context = _context(goal)
        if "shop" in context:
            try:
                return open_session(goal.context)
            except ValueError as error:
                raise ToolboxError(f"the context of a webshop task names its goal: {error}") from error
        if type(context.get("task")) is not int:
            raise ToolboxError(f"the context of a webshop task names its `shop` or `task`, unlike {goal.context[:100]!r}")
        if self._shop is None:
            raise ToolboxError(
                "no WebShop server: set `servers.webshop` in machine.yaml to the address of AgentGym's WebShop server"
            )
        session: Session = self._shop()
        session.reset(context["task"])
        return session


def _context(goal: Goal) -> dict[str, Any]:
    try:
        context = json.loads(goal.context)
    except (ValueError, RecursionError):
        context = None
    if not isinstance(context, dict):
        raise ToolboxError(f"the context of a {goal.domain} task is a JSON object, not {goal.context[:100]!r}")
    return context


@cache
def _read_page(context: str) -> Page:
    return Page.from_json(context)


def _page(goal: Goal) -> Page:
    try:
        return _read_page(goal.context)
    except PageError as error:
        raise ToolboxError(f"the context of a web task is its page: {error}") from error


def _names(earlier: Iterable[str]) -> dict[str, str]:
    """The results of earlier steps, by name: the page, whatever it was."""
    names: dict[str, str] = {}
    for text in earlier:
        try:
            names |= {action.name: "page" for action in parse(text)}
        except ActionSyntaxError:
            continue
    return names


def open_toolbox(stage: Stage, domains: Iterable[str]) -> Toolbox:
    """The tools that a stage's tasks need, opened with what they read. Raises FileNotFoundError or what a model raises."""
    needed, settings = set(domains), stage.params.tools
    return Toolbox(
        rank=_ranker(settings) if "web" in needed else lexical,
        library=_library(stage) if "qa" in needed else None,
        shop=_server(stage.machine.servers["webshop"]) if "webshop" in stage.machine.servers else None,
    )


def _ranker(settings: Tools) -> Ranker:
    if settings.web.ranker == "lexical":
        return lexical
    from moat.hub import folder_of
    from moat.ranking import cross_encoder

    return cross_encoder(str(folder_of(settings.web.model, settings.web.revision, "tools.web.model")))


def _library(stage: Stage) -> Library:
    from moat import corpus, layout
    from moat.schemas.passages import PASSAGES
    from moat.wikipedia import Wikipedia

    settings = stage.params.tools.qa
    rows = PASSAGES.read(layout.PASSAGES).iter_rows(named=True)
    passages = [Passage(row["title"], row["text"]) for row in rows]
    reader = None
    if settings.reader:
        from moat.reader import open_reader

        reader = open_reader(settings, stage)
    return Library(
        corpus.load(layout.CORPUS_INDEX, passages, corpus.open_encoder(settings)),
        settings.found,
        settings.passages,
        Wikipedia(stage.scratch / "wikipedia").find if settings.wikipedia else None,
        reader,
    )


def _server(url: str) -> Callable[[], Session]:
    from moat.agentgym import Environment, Server

    return Server(url, Environment.WEBSHOP).create
