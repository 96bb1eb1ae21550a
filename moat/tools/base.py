"""What every tool is: a function of an action's raw arguments and the results so far.

A tool puts results into its arguments itself (`moat.actions.substitute`), because how depends on the tool: an expression
needs parentheses around them, a question does not. When a tool is called, every name that its arguments refer to has a
result. Every result is text, as printed and as later actions see it.

A tool raises ToolError for whatever its arguments cause, and bounds its own time and memory. Any other exception from a
tool is a fault of the tool, not of the text, and is passed on.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

Tool = Callable[[str, Mapping[str, str]], str]
"""(raw arguments, result texts by name) -> result text; raises ToolError."""


class ToolErrorKind(StrEnum):
    """Why a tool gives no result."""

    BAD_ARGUMENT = "bad_argument"  # the arguments are not what the tool takes
    NO_RESULT = "no_result"  # they are, and there is nothing to give: no solution, no passage, no element
    TIME = "time"  # the tool's bound on steps or time was reached
    SIZE = "size"  # a bound on lengths, depths or numbers was reached


class ToolError(Exception):
    """A tool can give no result for its arguments; `kind` says why, for counting, and the message says where."""

    def __init__(self, kind: ToolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
