"""The tools of `arithmetic` and `maths`."""

from collections.abc import Mapping
from types import MappingProxyType

from moat.actions import references, substitute
from moat.calculator import CalculationError, CalculationErrorKind, calculate, format_number
from moat.tools.base import Tool, ToolError, ToolErrorKind

_KINDS = {
    CalculationErrorKind.TOO_LARGE: ToolErrorKind.SIZE,
    CalculationErrorKind.DIVISION_BY_ZERO: ToolErrorKind.NO_RESULT,
}


def calculator(arguments: str, results: Mapping[str, str]) -> str:
    """The tool Calculator: exact arithmetic on an expression. Raises ToolError.

    Each result goes in inside parentheses, so that it stays one operand: `R1 ** 2` of -3 is 9, and `R1.5` is an error.
    """
    operands = {name: f"({results[name]})" for name in references(arguments)}
    try:
        return format_number(calculate(substitute(arguments, operands)))
    except CalculationError as error:
        raise ToolError(_KINDS.get(error.kind, ToolErrorKind.BAD_ARGUMENT), f"{error.kind}: {error.message}") from error


CALCULATOR_TOOLS: Mapping[str, Tool] = MappingProxyType({"Calculator": calculator})
MATHS_TOOLS = CALCULATOR_TOOLS
