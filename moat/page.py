"""A web page as the tools of `web` see it: its candidate elements, in document order.

The column `context` of a Mind2Web step holds a page as JSON, with short keys left out where they are empty:

    {"elements": [{"id": "12", "tag": "button", "attributes": {"aria_label": "Find"}, "text": "Search", "options": []}, …]}

`id` is the publisher's node id, unique on the page; `text` is what the element and all inside it say; `options` are what
a drop-down offers. In place of `text` (and of `tag`, `attributes` and `options`) an element may give `html`, a DOM snippet
whose first element is meant (its text, where it has no element); it is parsed when the page is read.

HTML is parsed by lxml in its recovering mode: no network, no entity of a document's own, no scripts run, comments and
processing instructions left out, nesting and length bounded. Broken HTML gives what can be read of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

MAX_HTML = 5_000_000  # characters of a page or a snippet; Mind2Web's largest cleaned page has 1.44 million
MAX_ELEMENTS = 10_000  # candidates of a page; Mind2Web has up to about 4,000
MAX_TEXT = 400  # characters kept of an element's text; beyond that it is a container, not something to click on
MAX_VALUE = 200  # characters kept of an attribute's value, and of an option
MAX_OPTIONS = 200  # options kept of a drop-down

ATTRIBUTES = (
    "alt",
    "aria_description",
    "aria_label",
    "id",
    "input_checked",
    "input_value",
    "label",
    "name",
    "option_selected",
    "placeholder",
    "role",
    "text_value",
    "title",
    "type",
    "value",
)
"""Attributes kept, by Mind2Web's spelling (`aria_label`; `aria-label` is read as the same): those that say what an
element is for. Class names and positions do not."""

NODE_ID = "backend_node_id"
_ID = re.compile(r"[^\s\[\]|]+")
_SILENT = {"script", "style", "noscript", "template", "head"}  # what is inside is no text of the page


class PageError(ValueError):
    """A page that cannot be read; the message says which element and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Element:
    """One candidate: its node id, its tag in lower case, the kept attributes, its text, and a drop-down's options."""

    id: str
    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    options: tuple[str, ...] = ()

    def words(self) -> str:
        """All that the element says of itself, as one text: what a ranker reads."""
        return " ".join([self.tag, self.text, *self.attributes.values(), *self.options]).strip()


@dataclass(frozen=True, slots=True)
class Page:
    """Candidate elements in document order, their ids unique."""

    elements: tuple[Element, ...]

    def __post_init__(self) -> None:
        if len(self.elements) > MAX_ELEMENTS:
            raise PageError(f"{len(self.elements)} elements, more than {MAX_ELEMENTS}: keep the best-ranked candidates")
        seen: set[str] = set()
        for number, element in enumerate(self.elements, 1):
            if not _ID.fullmatch(element.id):
                raise PageError(
                    f"element {number}: an id has no blanks, [, ] or | and is not empty, unlike {element.id[:50]!r}"
                )
            if element.id in seen:
                raise PageError(f"element {number}: the id {element.id[:50]} is there twice")
            seen.add(element.id)

    @classmethod
    def from_json(cls, context: str) -> Page:
        """Read a page from the text of the column `context`. Raises PageError."""
        try:
            data = json.loads(context)
        except (ValueError, RecursionError) as error:
            raise PageError(f"the page is not JSON: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("elements"), list):
            raise PageError('the page is not {"elements": [...]}')
        return cls(tuple(_element(item, number) for number, item in enumerate(data["elements"], 1)))

    def to_json(self) -> str:
        """The text of the column `context`; `from_json` gives back an equal page."""
        elements = []
        for element in self.elements:
            item: dict[str, Any] = {"id": element.id, "tag": element.tag}
            if element.attributes:
                item["attributes"] = dict(sorted(element.attributes.items()))
            if element.text:
                item["text"] = element.text
            if element.options:
                item["options"] = list(element.options)
            elements.append(item)
        return json.dumps({"elements": elements}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_mind2web(cls, cleaned_html: str, candidates: Iterable[Mapping[str, Any] | str]) -> Page:
        """The page of a Mind2Web step, from its `cleaned_html` and its `pos_candidates` and `neg_candidates` together.

        A candidate is an object with `backend_node_id`, or (as in Multimodal-Mind2Web) the JSON text of one. Elements come
        in document order, so that their order does not tell the positive ones from the others; a candidate that is not in
        the HTML is left out (`Page.ids` says which are there). Raises PageError.
        """
        wanted = {_candidate_id(candidate, number) for number, candidate in enumerate(candidates, 1)}
        elements: dict[str, Element] = {}
        root = parse_html(cleaned_html)
        for node in root.iter() if root is not None else ():
            node_id = node.get(NODE_ID, "")
            if node_id in wanted and node_id not in elements:
                elements[node_id] = _from_node(node_id, node)
        return cls(tuple(elements.values()))

    @property
    def ids(self) -> Sequence[str]:
        """The elements' ids, in document order."""
        return [element.id for element in self.elements]


def parse_html(html: str) -> Any:
    """The root of an HTML text or snippet as an lxml element, or None when it holds no element. Raises PageError."""
    if len(html) > MAX_HTML:
        raise PageError(f"{len(html)} characters of HTML, more than {MAX_HTML}")
    parser = etree.HTMLParser(
        recover=True, no_network=True, huge_tree=False, remove_comments=True, remove_pis=True, encoding="utf-8"
    )
    # As bytes: a text with an encoding declaration is refused otherwise, and lone surrogates cannot be read at all.
    data = html.replace("\0", " ").encode("utf-8", "replace")
    try:
        return etree.fromstring(data, parser) if data.strip() else None
    except etree.LxmlError as error:
        raise PageError(f"the HTML cannot be read: {error}") from error


def _candidate_id(candidate: Mapping[str, Any] | str, number: int) -> str:
    try:
        read = json.loads(candidate) if isinstance(candidate, str) else candidate
    except ValueError as error:
        raise PageError(f"candidate {number} is not JSON: {error}") from error
    if not isinstance(read, Mapping) or not isinstance(read.get(NODE_ID), (str, int)):
        raise PageError(f"candidate {number} has no {NODE_ID}")
    return str(read[NODE_ID])


def _element(item: Any, number: int) -> Element:
    """An element from its JSON object."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        raise PageError(f"element {number} is no object with a text `id`")
    if "html" in item:
        if not isinstance(item["html"], str) or item.keys() - {"id", "html"}:
            raise PageError(f"element {number}: `html` is a text and stands with `id` alone")
        root = parse_html(item["html"])
        body = next(root.iter("body"), root) if root is not None else None
        if body is None or not len(body):
            return Element(item["id"], "", text="" if body is None else _text(body))
        return _from_node(item["id"], body[0])
    unknown = item.keys() - {"id", "tag", "attributes", "text", "options"}
    attributes, options = item.get("attributes", {}), item.get("options", [])
    if unknown:
        raise PageError(f"element {number}: unknown keys {sorted(unknown)}")
    if not isinstance(attributes, dict) or not isinstance(options, list):
        raise PageError(f"element {number}: `attributes` is an object of texts, `options` a list of texts")
    texts = [item.get("tag", ""), item.get("text", ""), *attributes.values(), *options]
    if not all(isinstance(text, str) for text in texts):
        raise PageError(f"element {number}: tag, text, attributes and options are texts")
    return Element(item["id"], item.get("tag", ""), attributes, item.get("text", ""), tuple(options))


def _from_node(node_id: str, node: Any) -> Element:
    attributes = {}
    for name, value in node.attrib.items():
        known = name.lower().replace("-", "_")
        if known in ATTRIBUTES and value.strip():
            attributes[known] = " ".join(value.split())[:MAX_VALUE]
    options: list[str] = []
    if node.tag == "select":
        for option in node.iter("option"):
            said = _text(option) or " ".join((option.get("label") or option.get("value") or "").split())
            if said and len(options) < MAX_OPTIONS:
                options.append(said[:MAX_VALUE])
    return Element(node_id, str(node.tag).lower(), attributes, "" if options else _text(node), tuple(options))


def _text(node: Any) -> str:
    """The text of a node and all inside it, single-spaced, up to MAX_TEXT characters."""
    words: list[str] = []
    length = 0
    events = etree.iterwalk(node, events=("start", "end"))
    for event, part in events:
        if event == "start" and part.tag in _SILENT:
            events.skip_subtree()
            said = None
        else:
            said = part.text if event == "start" else (part.tail if part is not node else None)
        for word in (said or "").split():
            words.append(word)
            length += len(word) + 1
        if length > MAX_TEXT:
            break
    return " ".join(words)[:MAX_TEXT].rstrip()
