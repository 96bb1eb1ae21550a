"""Steps on a page: moat/tools/web.py."""

import math

import pytest

from moat.actions import parse
from moat.page import Element, Page
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.docs import DOCS
from moat.tools.web import MAX_ARGUMENT, read_arguments, web_tools
from moat.web_steps import render_step, score_step

PAGE = Page(
    (
        Element("1", "a", {}, "Home"),
        Element("2", "input", {"type": "text", "placeholder": "From: departure town"}),
        Element("3", "input", {"type": "text", "placeholder": "To: arrival town"}),
        Element("4", "select", {"name": "class", "aria_label": "Travel class"}, "", ("Economy", "Business")),
        Element("5", "button", {"type": "submit"}, "Search trains"),
        Element("6", "a", {"title": "Help and contact"}, "?"),
        Element("7", "select", {"aria_label": "Passengers"}, "", ("1", "2", "3")),
        Element("8", "textarea", {"aria_label": "Message to the driver"}),
    )
)
TOOLS = web_tools(PAGE)
RESULTS = {"R1": "CLICK [1]", "R12": "TYPE [2] x"}


def run(name, arguments):
    return TOOLS[name](arguments, RESULTS)


def kind(name, arguments, tools=TOOLS):
    with pytest.raises(ToolError) as caught:
        tools[name](arguments, RESULTS)
    return caught.value.kind


def test_the_tools_are_those_that_the_documentation_names():
    assert list(TOOLS) == list(DOCS["web"])


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ("Env, QUERY: Search trains", "CLICK [5]"),
        ("Env, QUERY: search", "CLICK [5]"),
        ("R1, QUERY: search trains", "CLICK [5]"),
        ("R12, QUERY: the search button", "CLICK [5]"),
        ("  Env  ,  QUERY:  home  ", "CLICK [1]"),
        ("Env,QUERY:home", "CLICK [1]"),
        ("Env, QUERY: Help", "CLICK [6]"),
        ("Env, QUERY: contact, please", "CLICK [6]"),
        ("Env, QUERY: [link] Home", "CLICK [1]"),
        ("Env, QUERY: HOME", "CLICK [1]"),
        ("Env, QUERY: home (page)", "CLICK [1]"),
        ("Env, QUERY: R1 home", "CLICK [1]"),
        ("Env,\nQUERY: search\ntrains", "CLICK [5]"),
        ("Env, QUERY: departure", "CLICK [2]"),
        ("Env, QUERY: Business", "CLICK [4]"),
        ("Env, QUERY: passengers", "CLICK [7]"),
        ("Env, QUERY: TEXT home", "CLICK [1]"),
    ],
)
def test_click(arguments, step):
    assert run("CLICK", arguments) == step


@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        ("", ToolErrorKind.BAD_ARGUMENT),
        ("Env", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY:", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY:  ", ToolErrorKind.BAD_ARGUMENT),
        ("QUERY: home", ToolErrorKind.BAD_ARGUMENT),
        ("Page, QUERY: home", ToolErrorKind.BAD_ARGUMENT),
        ("R0, QUERY: home", ToolErrorKind.BAD_ARGUMENT),
        ("Env QUERY: home", ToolErrorKind.BAD_ARGUMENT),
        ("Env, home", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY: home, TEXT: x", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY: helicopter", ToolErrorKind.NO_RESULT),
        ("Env, QUERY: ???", ToolErrorKind.NO_RESULT),
        (f"Env, QUERY: {'x' * (MAX_ARGUMENT + 1)}", ToolErrorKind.SIZE),
        ("Env, QUERY: home" + " " * 1_000_000, ToolErrorKind.SIZE),
    ],
)
def test_click_fails(arguments, failure):
    assert kind("CLICK", arguments) is failure


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ("Env, QUERY: departure, TEXT: Ricky Kej", "TYPE [2] Ricky Kej"),
        ("Env, QUERY: arrival town, TEXT: Rome", "TYPE [3] Rome"),
        ("R1, QUERY: arrival, TEXT: Rome", "TYPE [3] Rome"),
        ("Env, QUERY: town, TEXT: Rome", "TYPE [2] Rome"),
        ("Env,QUERY:arrival,TEXT:Rome", "TYPE [3] Rome"),
        ("Env, QUERY: arrival, TEXT: Rome, Italy", "TYPE [3] Rome, Italy"),
        ("Env, QUERY: arrival, TEXT: a, TEXT: b", "TYPE [3] a, TEXT: b"),
        ("Env, QUERY: arrival, TEXT:   two\n words ", "TYPE [3] two words"),
        ("Env, QUERY: arrival, TEXT: R12", "TYPE [3] R12"),
        ("Env, QUERY: arrival, TEXT: [12] | x", "TYPE [3] [12] | x"),
        ("Env, QUERY: arrival, TEXT: 0", "TYPE [3] 0"),
        ("Env, QUERY: arrival, TEXT: née", "TYPE [3] née"),
        ("Env, QUERY: message, TEXT: wait", "TYPE [8] wait"),
        ("Env, QUERY: message, to the driver, TEXT: wait", "TYPE [8] wait"),
        ("Env, QUERY: search trains, TEXT: x", "TYPE [5] x"),
    ],
)
def test_type(arguments, step):
    assert run("TYPE", arguments) == step


@pytest.mark.parametrize("tool", ["TYPE", "SELECT"])
@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        ("Env, QUERY: town", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY: town, TEXT:", ToolErrorKind.BAD_ARGUMENT),
        ("Env, TEXT: Rome", ToolErrorKind.BAD_ARGUMENT),
        ("Env, TEXT: Rome, QUERY: town", ToolErrorKind.BAD_ARGUMENT),
        ("QUERY: town, TEXT: Rome", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY: , TEXT: Rome", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY: helicopter, TEXT: Rome", ToolErrorKind.NO_RESULT),
        (f"Env, QUERY: town, TEXT: {'x' * (MAX_ARGUMENT + 1)}", ToolErrorKind.SIZE),
    ],
)
def test_type_and_select_fail(tool, arguments, failure):
    assert kind(tool, arguments) is failure


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ("Env, QUERY: travel class, TEXT: Business", "SELECT [4] Business"),
        ("Env, QUERY: class, TEXT: business", "SELECT [4] business"),
        ("R12, QUERY: class, TEXT: Economy", "SELECT [4] Economy"),
        ("Env, QUERY: passengers, TEXT: 2", "SELECT [7] 2"),
        ("Env, QUERY: Passengers 3, TEXT: 3", "SELECT [7] 3"),
        ("Env, QUERY: economy or business, TEXT: Economy", "SELECT [4] Economy"),
        ("Env, QUERY: select class, TEXT: First", "SELECT [4] First"),
        ("Env,QUERY:class,TEXT:Economy", "SELECT [4] Economy"),
        ("Env, QUERY: class (of travel), TEXT: Economy", "SELECT [4] Economy"),
        ("Env, QUERY: class, TEXT: Economy, Plus", "SELECT [4] Economy, Plus"),
        ("Env, QUERY: departure, TEXT: Rome", "SELECT [2] Rome"),
        ("Env, QUERY: select, TEXT: 1", "SELECT [7] 1"),
    ],
)
def test_select(arguments, step):
    assert run("SELECT", arguments) == step


def test_equal_scores_go_to_what_the_operation_is_usual_on_then_to_the_first():
    page = Page(
        (
            Element("1", "div", {}, "Colour"),
            Element("2", "button", {}, "Colour"),
            Element("3", "input", {"type": "submit"}, "Colour"),
            Element("4", "input", {}, "Colour"),
            Element("5", "select", {}, "Colour"),
            Element("6", "input", {"type": "search"}, "Colour"),
            Element("7", "select", {}, "Colour"),
        )
    )
    tools = web_tools(page, lambda query, elements: [0.5] * len(elements))
    assert tools["CLICK"]("Env, QUERY: x", {}) == "CLICK [2]"
    assert tools["TYPE"]("Env, QUERY: x, TEXT: red", {}) == "TYPE [4] red"
    assert tools["SELECT"]("Env, QUERY: x, TEXT: red", {}) == "SELECT [5] red"


def test_a_better_score_goes_before_what_is_usual():
    page = Page((Element("1", "select", {}, "a"), Element("2", "div", {}, "b")))
    tools = web_tools(page, lambda query, elements: [-3.0, -2.0])
    assert tools["SELECT"]("Env, QUERY: x, TEXT: red", {}) == "SELECT [2] red"


def test_the_ranker_gets_query_and_elements_alone():
    seen = []

    def rank(query, elements):
        seen.append((query, tuple(elements)))
        return [-math.inf] * (len(elements) - 1) + [0.0]

    assert web_tools(PAGE, rank)["TYPE"]("Env, QUERY: the  town, TEXT: Rome", {}) == "TYPE [8] Rome"
    assert seen == [("the town", PAGE.elements)]


def test_a_page_without_elements_gives_no_result():
    tools = web_tools(Page(()))
    assert kind("CLICK", "Env, QUERY: home", tools) is ToolErrorKind.NO_RESULT


def test_actions_of_the_public_data_reach_their_gold():
    action = parse("R1 = TYPE(Env, QUERY: Type the departure town, TEXT: Ricky Kej)")[0]
    step = run(action.tool, action.arguments)
    assert score_step(step, render_step("TYPE", ["2", "99"], "Ricky Kej")).success


def test_arguments_are_single_spaced():
    assert read_arguments("Env, QUERY: a \t b, TEXT: c\n d", takes_text=True) == ("a b", "c d")
