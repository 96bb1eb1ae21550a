"""Runs a grounder's actions with real tools, and says what came of them: an answer, or a typed failure.

Tools are those of `moat.tools`; which of them a domain has, and with what they read, is `moat.toolbox`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from moat.actions import ActionSyntaxError, parse, references
from moat.grading import grade
from moat.sources.base import Metric
from moat.tools.base import Tool, ToolError


class Failure(StrEnum):
    """Why actions gave no answer: of the text itself, then of a tool (`moat.tools.base.ToolErrorKind`)."""

    EMPTY = "empty"
    SYNTAX = "syntax"
    UNKNOWN_TOOL = "unknown_tool"
    UNDEFINED_REFERENCE = "undefined_reference"
    BAD_ARGUMENT = "bad_argument"
    NO_RESULT = "no_result"
    TIME = "time"
    SIZE = "size"


class Outcome(StrEnum):
    """What actions came to, measured by the gold answer; every Failure is an Outcome of the same value.

    `turn_limit`: iterative planning did not end within its turns. `unanswered`: there are no actions, because the engine
    failed on the request; nothing is known of the model.
    """

    REACHED = "reached"
    NOT_REACHED = "not_reached"
    EMPTY = "empty"
    SYNTAX = "syntax"
    UNKNOWN_TOOL = "unknown_tool"
    UNDEFINED_REFERENCE = "undefined_reference"
    BAD_ARGUMENT = "bad_argument"
    NO_RESULT = "no_result"
    TIME = "time"
    SIZE = "size"
    TURN_LIMIT = "turn_limit"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of an action text.

    Either `answer` is the last action's result and `failure` is None, or `answer` is None and `failure` with `message`
    says why. `results` are the (name, result) pairs of the actions that ran, in order, in both cases.
    """

    answer: str | None
    failure: Failure | None
    message: str
    results: tuple[tuple[str, str], ...]


def execute(text: str, tools: Mapping[str, Tool], known: Mapping[str, str] = MappingProxyType({})) -> Execution:
    """Run an action text with the tools of its domain. Whatever a model wrote, this returns.

    `known` are results of earlier turns by name; the text may refer to them and may give their names anew.
    """
    if not text.strip():
        return Execution(None, Failure.EMPTY, "no actions", ())
    try:
        actions = parse(text)
    except ActionSyntaxError as error:
        return Execution(None, Failure.SYNTAX, str(error), ())
    results: dict[str, str] = dict(known)
    ran: list[str] = []
    for action in actions:
        failure: Failure | None = None
        missing = next((name for name in references(action.arguments) if name not in results), None)
        if action.tool is not None and action.tool not in tools:
            failure, message = Failure.UNKNOWN_TOOL, f"no tool {action.tool[:50]}; there are {', '.join(tools)}"
        elif missing is not None:
            failure, message = Failure.UNDEFINED_REFERENCE, f"no earlier action gives {missing[:50]}"
        elif action.tool is None:
            results[action.name] = results[action.arguments]
        else:
            try:
                results[action.name] = tools[action.tool](action.arguments, MappingProxyType(results))
            except ToolError as error:
                failure, message = Failure(error.kind.value), f"{action.tool}: {error}"
        if failure is not None:
            made = tuple((name, results[name]) for name in ran)
            return Execution(None, failure, f"{action.name[:50]}: {message}", made)
        ran.append(action.name)
    return Execution(results[actions[-1].name], None, "", tuple((name, results[name]) for name in ran))


def outcome(execution: Execution, gold_answer: str, metric: Metric = Metric.NUMBER) -> Outcome:
    """Whether an execution reached the gold answer; a failure stays the failure it is."""
    if execution.failure is not None:
        return Outcome(execution.failure.value)
    return Outcome.REACHED if grade(metric, execution.answer, gold_answer).correct else Outcome.NOT_REACHED
