"""What rows of any format are asked for: a field of the right type, or the reason why there is no record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Unusable(ValueError):  # noqa: N818 - a row that gives no record is data, not an error
    """A row gives no record: a reason to count by, and what is wrong with this row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


MALFORMED = "malformed row"


def mapping(value: Any, what: str = "the row") -> Mapping[str, Any]:
    """`value`, which must be an object."""
    if not isinstance(value, Mapping):
        raise Unusable(MALFORMED, f"{what} is {_kind(value)}, not an object")
    return value


def text(row: Mapping[str, Any], name: str) -> str:
    """The field `name` of a row: a text with more than white space in it, without the white space at its ends."""
    value = row.get(name)
    if not isinstance(value, str):
        raise Unusable(MALFORMED, f"`{name}` is {_kind(value)}, not a text")
    if not value.strip():
        raise Unusable(MALFORMED, f"`{name}` is blank")
    return value.strip()


def items(row: Mapping[str, Any], name: str) -> list[Any]:
    """The field `name` of a row: a list, empty where the field is missing."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unusable(MALFORMED, f"`{name}` is {_kind(value)}, not a list")
    return value


def texts(row: Mapping[str, Any], name: str) -> list[str]:
    """The field `name` of a row: a list of texts, stripped, without the blank ones; empty where the field is missing."""
    values = items(row, name)
    for value in values:
        if not isinstance(value, str):
            raise Unusable(MALFORMED, f"`{name}` holds {_kind(value)}, not only texts")
    return [value.strip() for value in values if value.strip()]


def _kind(value: Any) -> str:
    names = {type(None): "missing", bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else type(value).__name__)
