"""Runs a grounder's actions with real tools, and says what came of them: an answer, or a typed failure.

Tools are those of `moat.tools`; which of them a domain has, and with what they read, is `moat.toolbox`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from moat.actions import Action, ActionSyntaxError, parse, references, split_values
from moat.grading import grade
from moat.sources.base import Metric
from moat.tools.base import Tool, ToolError

MAX_ACTIONS = 200  # of a text: a call of a tool can take half a second
MAX_RESULT = 500_000  # characters


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
    An action with several names takes a result of as many values. The answer is the last name's.
    """
    if not text.strip():
        return Execution(None, Failure.EMPTY, "no actions", ())
    try:
        actions = parse(text)
    except ActionSyntaxError as error:
        return Execution(None, Failure.SYNTAX, str(error), ())
    if len(actions) > MAX_ACTIONS:
        return Execution(None, Failure.SIZE, f"{len(actions):,} actions, more than {MAX_ACTIONS}", ())
    results: dict[str, str] = dict(known)
    ran: dict[str, str] = {}
    for action in actions:
        failure, message = _run(action, tools, results)
        if failure is not None:
            return Execution(None, failure, f"{action.name[:50]}: {message}", tuple(ran.items()))
        ran |= {name: results[name] for name in action.names}
    return Execution(results[actions[-1].names[-1]], None, "", tuple(ran.items()))


def _run(action: Action, tools: Mapping[str, Tool], results: dict[str, str]) -> tuple[Failure | None, str]:
    """Run one action and put what it comes to into `results`; or why it comes to nothing."""
    missing = next((name for name in references(action.arguments) if name not in results), None)
    if action.tool is not None and action.tool not in tools:
        return Failure.UNKNOWN_TOOL, f"no tool {action.tool[:50]}; there are {', '.join(tools)}"
    if missing is not None:
        return Failure.UNDEFINED_REFERENCE, f"no earlier action gives {missing[:50]}"
    if action.tool is None:
        result = results[action.arguments]
    else:
        try:
            result = tools[action.tool](action.arguments, MappingProxyType(results))
        except ToolError as error:
            return Failure(error.kind.value), f"{action.tool}: {error}"
    if len(result) > MAX_RESULT:
        return Failure.SIZE, f"a result of {len(result):,} characters, more than {MAX_RESULT:,}"
    values = [result] if not action.others else split_values(result)
    if len(values) != len(action.names):
        return Failure.NO_RESULT, f"{len(values)} values for {len(action.names)} names"
    results |= zip(action.names, values, strict=True)
    return None, ""


def outcome(execution: Execution, gold_answer: str, metric: Metric = Metric.NUMBER) -> Outcome:
    """Whether an execution reached the gold answer; a failure stays the failure it is."""
    if execution.failure is not None:
        return Outcome(execution.failure.value)
    return Outcome.REACHED if grade(metric, execution.answer, gold_answer).correct else Outcome.NOT_REACHED
