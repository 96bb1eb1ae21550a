"""Runs a grounder's actions with real tools, and says what came of them: an answer, or a typed failure.

Every result is text, as printed and as later actions see it. A tool is a function of an action's raw arguments and the
results so far; it puts the results into its arguments itself (`moat.actions.substitute`), because how depends on the
tool: an expression needs parentheses around them, a question does not. When a tool is called, every name that its
arguments refer to has a result.

A tool raises ToolError for whatever its arguments cause, and bounds its own time and memory. Any other exception from a
tool is a fault of the tool, not of the text, and is passed on. The tools here raise no other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from moat.actions import ActionSyntaxError, parse, references, substitute
from moat.answers import same_answer
from moat.calculator import CalculationError, calculate, format_number

Tool = Callable[[str, Mapping[str, str]], str]
"""(raw arguments, result texts by name) -> result text; raises ToolError."""


class ToolError(Exception):
    """A tool can give no result for its arguments."""


class Failure(StrEnum):
    """Why actions gave no answer."""

    EMPTY = "empty"
    SYNTAX = "syntax"
    UNKNOWN_TOOL = "unknown_tool"
    UNDEFINED_REFERENCE = "undefined_reference"
    TOOL_ERROR = "tool_error"


class Outcome(StrEnum):
    """What actions came to, measured by the gold answer; every Failure is an Outcome of the same value.

    `unanswered`: there are no actions, because the engine failed on the request; nothing is known of the model.
    """

    REACHED = "reached"
    NOT_REACHED = "not_reached"
    EMPTY = "empty"
    SYNTAX = "syntax"
    UNKNOWN_TOOL = "unknown_tool"
    UNDEFINED_REFERENCE = "undefined_reference"
    TOOL_ERROR = "tool_error"
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


def execute(text: str, tools: Mapping[str, Tool]) -> Execution:
    """Run an action text with the tools of its domain. Whatever a model wrote, this returns."""
    if not text.strip():
        return Execution(None, Failure.EMPTY, "no actions", ())
    try:
        actions = parse(text)
    except ActionSyntaxError as error:
        return Execution(None, Failure.SYNTAX, str(error), ())
    results: dict[str, str] = {}
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
                failure, message = Failure.TOOL_ERROR, f"{action.tool}: {error}"
        if failure is not None:
            return Execution(None, failure, f"{action.name[:50]}: {message}", tuple(results.items()))
    return Execution(results[actions[-1].name], None, "", tuple(results.items()))


def outcome(execution: Execution, gold_answer: str) -> Outcome:
    """Whether an execution reached the gold answer; a failure stays the failure it is."""
    if execution.failure is not None:
        return Outcome(execution.failure.value)
    return Outcome.REACHED if same_answer(execution.answer, gold_answer) else Outcome.NOT_REACHED


def calculator(arguments: str, results: Mapping[str, str]) -> str:
    """The tool Calculator: exact arithmetic on an expression. Raises ToolError.

    Each result goes in inside parentheses, so that it stays one operand: `R1 ** 2` of -3 is 9, and `R1.5` is an error.
    """
    operands = {name: f"({results[name]})" for name in references(arguments)}
    try:
        return format_number(calculate(substitute(arguments, operands)))
    except CalculationError as error:
        raise ToolError(f"{error.kind}: {error.message}") from error


MATHS_TOOLS: Mapping[str, Tool] = MappingProxyType({"Calculator": calculator})

TOOLS: Mapping[str, Mapping[str, Tool]] = MappingProxyType({"maths": MATHS_TOOLS})
"""The tools of each domain, by the name that actions call them."""

TOOL_DOCS: Mapping[str, str] = MappingProxyType(
    {"Calculator": "Calculator(expression) -> number: evaluates an arithmetic expression"}
)
"""One line for each tool, by its name."""


def documentation(domain: str) -> str:
    """The action list of a domain and its documentation, as a grounder's prompt carries them. Raises ValueError."""
    if domain not in TOOLS:
        raise ValueError(f"no domain {domain!r}; there are {', '.join(TOOLS)}")
    return "\n".join([f"Actions: {', '.join(TOOLS[domain])}", *(TOOL_DOCS[tool] for tool in TOOLS[domain])])
