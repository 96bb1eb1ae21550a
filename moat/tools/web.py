"""The tools of `web`: steps on a page of Mind2Web, which holds still.

    CLICK(page, QUERY: element)    TYPE(page, QUERY: element, TEXT: text)    SELECT(page, QUERY: element, TEXT: option)

`page` is the word `Env`, or the name of an earlier result; both mean the one page that the step is on. A tool ranks the
page's elements for the query and gives the canonical text of the step on the best one (`moat.web_steps`). Equal scores go
to an element that the operation is usual on (a drop-down for SELECT), then to the first on the page.

Query and text are taken as written: a result name inside them is not replaced, because a step is no text to type. The
first `, TEXT:` ends the query, so a query cannot hold one; a text can.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from moat.page import Element, Page
from moat.ranking import Ranker, lexical
from moat.tools.base import Tool, ToolError, ToolErrorKind
from moat.web_steps import render_step

MAX_ARGUMENT = 1_000  # characters of a query, and of a text

_ARGUMENTS = re.compile(
    r"\s*(?P<page>Env|R[1-9][0-9]*)\s*(?:,\s*QUERY:(?P<query>.*?))?(?:,\s*TEXT:(?P<text>.*))?", re.DOTALL
)
_TYPED = {"input", "textarea"}
_TYPED_ROLES = {"textbox", "searchbox", "combobox"}
_NOT_TYPED = {"button", "checkbox", "radio", "submit", "reset", "image", "file", "range", "color", "hidden"}


def web_tools(page: Page, rank: Ranker = lexical) -> Mapping[str, Tool]:
    """CLICK, TYPE and SELECT on one page."""

    def step(operation: str) -> Tool:
        def tool(arguments: str, results: Mapping[str, str]) -> str:
            query, text = read_arguments(arguments, takes_text=operation != "CLICK")
            return render_step(operation, [_best(operation, query, page, rank).id], text)

        return tool

    return {operation: step(operation) for operation in ("CLICK", "TYPE", "SELECT")}


def read_arguments(arguments: str, *, takes_text: bool) -> tuple[str, str]:
    """Query and text ('' where the tool takes none) of a step's arguments, single-spaced. Raises ToolError."""
    if len(arguments) > 3 * MAX_ARGUMENT:
        raise ToolError(ToolErrorKind.SIZE, f"{len(arguments)} characters of arguments, more than {3 * MAX_ARGUMENT}")
    match = _ARGUMENTS.fullmatch(arguments)
    if match is None:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "the arguments are a page (Env or a result), then `QUERY: …`")
    query, text = (" ".join((match[name] or "").split()) for name in ("query", "text"))
    if not query:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "no QUERY says which element is meant")
    if takes_text and not text:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "no TEXT says what to type or choose")
    if not takes_text and match["text"] is not None:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "a click takes no TEXT")
    if max(len(query), len(text)) > MAX_ARGUMENT:
        raise ToolError(ToolErrorKind.SIZE, f"QUERY or TEXT has more than {MAX_ARGUMENT} characters")
    return query, text


def _best(operation: str, query: str, page: Page, rank: Ranker) -> Element:
    scores = rank(query, page.elements)
    found = [
        (score, _usual(operation, element), -position)
        for position, (score, element) in enumerate(zip(scores, page.elements, strict=True))
        if score > -math.inf
    ]
    if not found:
        raise ToolError(ToolErrorKind.NO_RESULT, f"none of {len(page.elements)} elements fits the query {query[:80]!r}")
    return page.elements[-max(found)[2]]


def _usual(operation: str, element: Element) -> bool:
    """Whether the operation is one that this kind of element is there for."""
    if operation == "SELECT":
        return element.tag == "select"
    if operation == "TYPE":
        typed = element.tag in _TYPED and element.attributes.get("type", "text") not in _NOT_TYPED
        return typed or element.attributes.get("role", "") in _TYPED_ROLES
    return element.tag in ("a", "button", "input", "option", "label")
