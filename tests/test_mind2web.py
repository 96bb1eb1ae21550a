"""Mind2Web: moat/sources/mind2web.py. The rows are our own, in the publisher's format."""

import json

import pytest

from moat.page import Page
from moat.sources import mind2web
from moat.sources.base import Metric, Turn

HTML = (
    '<html backend_node_id="1"><div backend_node_id="2"><input backend_node_id="3" aria_label="Town"/>'
    '<button backend_node_id="4">Find (all)<span backend_node_id="5">now</span></button></div></html>'
)


def candidate(node):
    return {"tag": "x", "attributes": json.dumps({"backend_node_id": node}), "backend_node_id": node, "score": 0.1}


def action(operation, value, positive, negative):
    return {
        "action_uid": "u",
        "raw_html": "",
        "cleaned_html": HTML,
        "operation": {"op": operation, "original_op": operation, "value": value},
        "pos_candidates": [candidate(node) for node in positive],
        "neg_candidates": [candidate(node) for node in negative],
    }


ROW = {
    "annotation_id": "e7",
    "confirmed_task": "Find  a hotel in Ulm",
    "website": "own",
    "action_reprs": ["[textbox]  Town -> TYPE: Ulm", "[button]  Find (all) -> CLICK"],
    "actions": [action("TYPE", "Ulm", ["3"], ["4"]), action("CLICK", "", ["5", "4"], ["3"])],
}


def test_a_record_is_a_step_with_its_gold_history():
    first, second = mind2web.read([(2, ROW)], "train")
    assert (first.gold_answer, second.gold_answer) == ("TYPE [3] Ulm", "CLICK [4|5]")
    typed = Turn("Type Ulm into the textbox Town", "R1 = TYPE(Env, QUERY: textbox Town, TEXT: Ulm)")
    clicked = Turn("Click on the button Find (all)", "R2 = CLICK(Env, QUERY: button Find (all))")
    assert (first.turns, second.turns) == ((typed,), (typed, clicked))
    assert (second.subgoals, second.actions) == ("Subgoal 1: Click on the button Find (all)", clicked.actions)
    assert (second.episode, second.step, second.number, second.split) == ("e7", True, 2, "train")
    assert (second.metric, second.domain) == (Metric.WEB_STEP, "web")


def test_a_page_holds_all_candidates_in_document_order():
    first, second = mind2web.read([(1, ROW)])
    assert Page.from_json(first.context).ids == ["3", "4"]
    assert Page.from_json(second.context).ids == ["3", "4", "5"]


@pytest.mark.parametrize("positive", [[], ["99"]])
def test_a_step_without_its_element_gives_no_record_and_stays_in_the_history(positive):
    row = ROW | {"actions": [action("TYPE", "Ulm", positive, ["4"]), ROW["actions"][1]]}
    dropped, second = mind2web.read([(1, row)])
    assert (dropped.reason, dropped.detail[:6]) == (mind2web.NO_ELEMENT, "step 1")
    assert len(second.turns) == 2


def test_brackets_that_do_not_balance_are_left_out_of_the_query():
    row = ROW | {"action_reprs": ["[textbox]  Town :) -> TYPE: Ulm", ROW["action_reprs"][1]]}
    first, _ = mind2web.read([(1, row)])
    assert first.actions == "R1 = TYPE(Env, QUERY: textbox Town :, TEXT: Ulm)"


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": []},
        {"action_reprs": ROW["action_reprs"][:1]},
        {"action_reprs": ["Town", "Find"]},
        {"annotation_id": None},
        {"actions": [action("HOVER", "", ["3"], []), ROW["actions"][1]]},
        {"actions": [{}, ROW["actions"][1]]},
    ],
)
def test_a_malformed_row_is_dropped_whole(changes):
    (dropped,) = mind2web.read([(1, ROW | changes)])
    assert dropped.reason == "malformed row"
