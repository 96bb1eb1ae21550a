"""The tools of `webshop`: a customer's steps in a shop, over any session of `moat.sessions`.

    Search(page, QUERY: words)            searches the shop; goes back to the search bar first where the page has none
    FeatureRetrieve(page)                 opens each product on the page of results and reads it: one product a line
    Pick(features, QUERY: wish)           opens the product that fits the wish best
    Click(page, QUERY: button)            clicks on a button, an option or a product of the present page

`page` is `Env` or the name of an earlier result. There is one page, the present one, so it only says where the grounder
thinks it stands. Pick reads the products out of the result that it is given; without features (the result of a Search) it
goes by titles. A price limit in its wish (`price lower than 40 dollars`, `under $40`) rules out what costs more.

Every result is the text of the page come to, but for the purchase: the Click that ends the episode gives the reward as
text (`0.75`), which is then the answer. Actions that end elsewhere have bought nothing, and their reward is 0.

A failure of the session itself (a server that is gone) is no ToolError; it is passed on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from moat.ranking import coverage
from moat.sessions import Available, Session, format_reward
from moat.tools.base import Tool, ToolError, ToolErrorKind

MAX_QUERY = 1_000  # characters
SEPARATOR = " [SEP] "  # between the parts of a page, in WebShop and here
BACK, PREVIOUS, FEATURES = "back to search", "< prev", "features"
BUTTONS = {"description", "features", "reviews", "attributes", "buy now"}  # of a product's page: they say nothing of it

_PAGE = re.compile(r"\s*(Env|R[1-9][0-9]*)\s*")
_PAGE_AND_QUERY = re.compile(r"\s*(Env|R[1-9][0-9]*)\s*,\s*QUERY:(.*)", re.DOTALL)
_PRODUCT = re.compile(r"B[0-9A-Z]{9}")
_PRICE = re.compile(r"\$([0-9][0-9,]*(?:\.[0-9]+)?)")
_LIMIT = re.compile(
    r"(?:,?\s*(?:and\s+)?(?:with\s+a\s+|at\s+a\s+)?price[sd]?\s+)?\b(?:(?:lower|less|cheaper)\s+than|under|below|at\s+most)"
    r"\s+\$?([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s*dollars)?",
    re.IGNORECASE,
)


def webshop_tools(session: Session) -> Mapping[str, Tool]:
    """Search, FeatureRetrieve, Pick and Click on one session, which has been reset to the task."""

    def search(arguments: str, results: Mapping[str, str]) -> str:
        _, query = _page_and_query(arguments)
        if not _open(session).search:
            _click(session, BACK)
        if not session.available_actions().search:
            raise ToolError(ToolErrorKind.NO_RESULT, "the page has no search bar")
        return session.step(f"search[{query}]").observation

    def feature_retrieve(arguments: str, results: Mapping[str, str]) -> str:
        if _PAGE.fullmatch(arguments) is None:
            raise ToolError(ToolErrorKind.BAD_ARGUMENT, "the argument is a page: Env or a result")
        ids = [button for button in _open(session).clickables if _PRODUCT.fullmatch(button.upper())]
        if not ids:
            raise ToolError(ToolErrorKind.NO_RESULT, "the page lists no products: search first")
        return "\n".join(_read(session, product) for product in ids)

    def pick(arguments: str, results: Mapping[str, str]) -> str:
        page, query = _page_and_query(arguments)
        available = _open(session)
        said = results[page] if page != "Env" else session.observe()
        products = {key: text for key, text in listed(said).items() if key.lower() in available.clickables}
        if not products:
            raise ToolError(ToolErrorKind.NO_RESULT, f"{page} lists no product that is on the page")
        return _click(session, best_fit(query, products).lower())

    def click(arguments: str, results: Mapping[str, str]) -> str:
        _, query = _page_and_query(arguments)
        return _click(session, _button(query, _open(session).clickables))

    return {"Search": search, "FeatureRetrieve": feature_retrieve, "Pick": pick, "Click": click}


def listed(text: str) -> dict[str, str]:
    """The products that a text of parts (a page of results, or features) lists: id to all that is said of it."""
    products: dict[str, str] = {}
    present = ""
    for part in re.split(r"\s*\[SEP\]\s*|\n", text):
        if _PRODUCT.fullmatch(part):
            present = part
            products.setdefault(present, "")
        elif present:
            products[present] = f"{products[present]} {part}".strip()
    return products


def best_fit(wish: str, products: Mapping[str, str]) -> str:
    """The id of the product that covers most of the wish within its price limit, if it names one; of equals the first.

    Raises ToolError when every product costs more than the limit, or none shares a word with the wish.
    """
    limit = _LIMIT.search(wish)
    within = dict(products)
    if limit is not None:
        wish = f"{wish[: limit.start()]} {wish[limit.end() :]}"
        within = {key: text for key, text in products.items() if _affordable(text, Decimal(limit[1]))}
        if not within:
            raise ToolError(ToolErrorKind.NO_RESULT, f"each of {len(products)} products costs more than {limit[1]}")
    scores = coverage(wish, list(within.values()))
    best = max(scores)
    if best == -math.inf:
        raise ToolError(ToolErrorKind.NO_RESULT, f"none of {len(within)} products has a word of the wish")
    return list(within)[scores.index(best)]


def _open(session: Session) -> Available:
    """What can be done now. Raises ToolError when the episode is over."""
    if session.done:
        raise ToolError(ToolErrorKind.NO_RESULT, "the episode is over: something has been bought")
    return session.available_actions()


def _button(query: str, clickables: tuple[str, ...]) -> str:
    """The button that is meant: the one of that name, or the one that shares most of the query's words."""
    for button in clickables:
        if button.casefold() == query.casefold():
            return button
    scores = coverage(query, clickables)
    best = max(scores, default=-math.inf)
    if best == -math.inf:
        raise ToolError(ToolErrorKind.NO_RESULT, f"no button like {query[:80]!r}; there are {', '.join(clickables)[:300]}")
    return clickables[scores.index(best)]


def _click(session: Session, button: str) -> str:
    """Click on a button; the text of the page come to, or the reward if that ends the episode."""
    if button not in session.available_actions().clickables:
        raise ToolError(ToolErrorKind.NO_RESULT, f"{button!r} is not on the page")
    observed = session.step(f"click[{button}]")
    return format_reward(observed.reward) if observed.done else observed.observation


def _read(session: Session, product: str) -> str:
    """One line with all that a product's pages say of it; the session is back on the page of results afterwards."""
    said = _said(_click(session, product))
    if FEATURES in session.available_actions().clickables:
        said += _said(_click(session, FEATURES))
        _click(session, PREVIOUS)
    _click(session, PREVIOUS)
    return SEPARATOR.join([product.upper(), *said])


def _said(page: str) -> list[str]:
    """The parts of a product's page after its head. The head holds the wish itself, which would fit every product."""
    parts = page.split(SEPARATOR.strip())
    parts = [" ".join(part.split()) for part in parts]
    head = next((place for place, part in enumerate(parts) if part.lower() == PREVIOUS), -1)
    return [part for part in parts[head + 1 :] if part and part.lower() not in BUTTONS and not _PRODUCT.fullmatch(part)]


def _affordable(text: str, limit: Decimal) -> bool:
    """Whether the lowest price said is within the limit; a product without a price is not ruled out."""
    prices = [Decimal(price.replace(",", "")) for price in _PRICE.findall(text)]
    return not prices or min(prices) <= limit


def _page_and_query(arguments: str) -> tuple[str, str]:
    """The page's name and the query, single-spaced. Raises ToolError."""
    if len(arguments) > 2 * MAX_QUERY:
        raise ToolError(ToolErrorKind.SIZE, f"{len(arguments)} characters of arguments, more than {2 * MAX_QUERY}")
    match = _PAGE_AND_QUERY.fullmatch(arguments)
    if match is None:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "the arguments are a page (Env or a result) and `QUERY: …`")
    query = " ".join(match[2].split())
    if not query:
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, "QUERY is empty")
    if len(query) > MAX_QUERY:
        raise ToolError(ToolErrorKind.SIZE, f"QUERY has {len(query)} characters, more than {MAX_QUERY}")
    return match[1], query
