"""Texts of models and data on a terminal: neither markup nor control characters of theirs may act there."""

from __future__ import annotations

from rich import markup

CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """The text with its control characters written out (`\\x1b`), except line ends and tabs."""
    return text.translate(CONTROL)


def escape(text: str) -> str:
    """The text as rich's markup that says just it."""
    return markup.escape(visible(text))
