"""Lumos' plan and ground files: moat/sources/lumos.py. The rows are our own, in the publisher's format."""

from dataclasses import replace

import pytest

from moat.sources import lumos
from moat.sources.base import Dropped, Metric, Record, Turn


def row(number, *messages, dataset="maths", **fields):
    told = [{"role": role, "content": content} for role, content in messages]
    return {"dataset": dataset, "id": f"{dataset}_{number}", "messages": told} | fields


def plan_row(number, task, subgoals, **fields):
    asked = f"Make a plan.\nTask: {task}; Initial Environment Description: None."
    return row(number, ("user", asked), ("assistant", subgoals), **fields)


def ground_row(number, task, subgoals, actions, **fields):
    asked = f"Ground the subgoals.\n\nTools: Calculator.\n\nTask: {task} \nSubgoals to be grounded: {subgoals}\n"
    return row(number, ("user", asked), ("assistant", actions), **fields)


PENS, PENS_PLAN = "Two packs of 3 pens; how many?", "Subgoal 1: Multiply; or add; Subgoal 2: Say it"
CUPS, CUPS_PLAN = "Task: how many of 8 cups are left\nafter 5?", "Subgoal 1: Take them away."
PENS_ACTIONS, CUPS_ACTIONS = "R1 = Calculator(2 * 3); R2 = R1", "R1 = Calculator(8 - 5)"
PLANS = [plan_row(0, PENS, PENS_PLAN), plan_row(1, CUPS, f" {CUPS_PLAN}\n", note={"kept": [1]})]
GROUNDS = [ground_row(0, CUPS, CUPS_PLAN, CUPS_ACTIONS + " "), ground_row(1, PENS, PENS_PLAN, PENS_ACTIONS)]

TURNS_PLAN = row(
    5,
    ("user", f"Make a plan.\nTask: {PENS}; Initial Environment Description: None."),
    ("assistant", "Subgoal 1: Multiply"),
    ("user", "The executed result for Subgoal 1 is 6. Should we stop planning?"),
    ("assistant", "No, I will keep planning. Subgoal 2: Halve it"),
    ("user", "The executed result for Subgoal 2 is 3.5. Should we stop planning?"),
    ("assistant", "Yes, I will stop planning."),
    dataset="complex_qa",
)
TURNS_GROUND = row(
    9,
    ("user", f"Ground it.\n\nTask: {PENS} \nSubgoal to be grounded: Subgoal 1: Multiply\n"),
    ("assistant", "R1 = KnowledgeQuery(pens); R2 = QA([R1], Question: How many?)"),
    (
        "user",
        "Subgoal to be grounded: Subgoal 2: Halve it The grounding could be based on the following results: "
        "The execution result for Subgoal 1 is 6\n",
    ),
    ("assistant", "R3 = Calculator(R2 / 2)"),
    dataset="complex_qa",
)


def read(plans, grounds, iterative=False):
    return list(lumos.read(enumerate(plans, 1), enumerate(grounds, 1), iterative))


def reasons(items):
    return sorted(item.reason for item in items if isinstance(item, Dropped))


@pytest.mark.trap(35)
def test_rows_are_joined_on_the_task_and_not_on_the_running_index():
    pens, cups = read(PLANS, GROUNDS)
    assert (pens.text, pens.actions) == (PENS, PENS_ACTIONS)
    assert (cups.text, cups.actions) == (CUPS, CUPS_ACTIONS)
    assert pens.subgoals == PENS_PLAN
    assert (pens.domain, pens.metric, pens.gold_answer, pens.turns) == ("maths", Metric.NUMBER, "", ())


@pytest.mark.trap(35)
def test_of_rows_with_the_same_task_those_with_the_same_subgoals_are_joined():
    plans = [plan_row(0, PENS, "Subgoal 1: Add"), plan_row(1, PENS, "Subgoal 1: Multiply")]
    grounds = [
        ground_row(0, PENS, "Subgoal 1: Multiply", "R1 = Calculator(2 * 3)"),
        ground_row(1, PENS, "Subgoal 1: Add", "R1 = Calculator(3 + 3)"),
    ]
    assert [record.actions for record in read(plans, grounds)] == ["R1 = Calculator(3 + 3)", "R1 = Calculator(2 * 3)"]


@pytest.mark.trap(35)
@pytest.mark.parametrize(
    ("plan", "ground", "expected"),
    [
        (PLANS[0], ground_row(0, "Other", PENS_PLAN, "R1 = Calculator(1)"), [lumos.NO_PLAN_ROW, lumos.NO_PARTNER]),
        (PLANS[0], ground_row(0, PENS, "Subgoal 1: Other", "R1 = Calculator(1)"), [lumos.NO_PLAN_ROW, lumos.OTHER_SUBGOALS]),
        (PLANS[0], ground_row(0, PENS, PENS_PLAN, "R1 = Calculator(1"), [lumos.NO_PARTNER, lumos.NOT_ACTIONS]),
        (plan_row(0, PENS, "Multiply."), GROUNDS[1], [lumos.NO_PLAN_ROW, lumos.NO_PLAN]),
        (row(0, ("user", "Hello"), ("assistant", PENS_PLAN)), GROUNDS[1], [lumos.NO_PLAN_ROW, lumos.NO_TASK]),
        (PLANS[0], ground_row(0, PENS, "", PENS_ACTIONS), [lumos.NO_PARTNER, lumos.NO_GROUND]),
        ({"messages": 1}, GROUNDS[1], [lumos.NO_PLAN_ROW, "malformed row"]),
    ],
)
def test_a_row_that_does_not_parse_or_join_is_dropped_with_a_reason(plan, ground, expected):
    assert reasons(read([plan], [ground])) == sorted(expected)


def test_the_same_row_again_is_dropped():
    assert reasons(read([PLANS[0]] * 2, [GROUNDS[1]] * 2)) == [lumos.REPEATED] * 2


def test_iterative_rows_give_turns_and_the_last_result_as_answer():
    (record,) = read([TURNS_PLAN], [TURNS_GROUND], iterative=True)
    assert record.turns == (
        Turn("Multiply", "R1 = KnowledgeQuery(pens); R2 = QA([R1], Question: How many?)"),
        Turn("Halve it", "R3 = Calculator(R2 / 2)"),
    )
    assert record.subgoals == "Subgoal 1: Multiply; Subgoal 2: Halve it"
    assert record.actions.endswith("Question: How many?); R3 = Calculator(R2 / 2)")
    assert (record.domain, record.metric, record.gold_answer) == ("qa", Metric.EXACT_MATCH, "3.5")


@pytest.mark.parametrize(("plans", "grounds", "iterative"), [(PLANS, GROUNDS, False), ([TURNS_PLAN], [TURNS_GROUND], True)])
def test_exported_rows_are_the_rows_that_were_read(plans, grounds, iterative):
    exported = list(lumos.export(read(plans, grounds, iterative)))
    assert [plan for plan, _ in exported] == plans
    assert sorted((ground for _, ground in exported), key=str) == sorted(grounds, key=str)


def test_a_change_of_a_record_is_exported():
    record = read(PLANS, GROUNDS)[0]
    plan, ground = next(lumos.export([replace(record, text="New?", subgoals="Subgoal 1: A; Subgoal 2: B")]))
    assert plan["messages"][0]["content"] == "Make a plan.\nTask: New?; Initial Environment Description: None."
    assert plan["messages"][1]["content"] == "Subgoal 1: A; Subgoal 2: B"
    assert "Task: New? \nSubgoals to be grounded: Subgoal 1: A; Subgoal 2: B\n" in ground["messages"][0]["content"]


def test_a_record_of_another_source_is_exported_in_a_form_that_is_read_again():
    theirs = Record(3, PENS, "maths", Metric.NUMBER, "6", PENS_PLAN, PENS_ACTIONS)
    ((plan, ground),) = lumos.export([theirs])
    (record,) = read([plan], [ground])
    assert (record.text, record.subgoals, record.actions, record.domain) == (PENS, PENS_PLAN, PENS_ACTIONS, "maths")


def test_a_record_without_a_plan_cannot_be_exported():
    with pytest.raises(ValueError, match="no such row"):
        list(lumos.export([Record(3, PENS, "maths", Metric.NUMBER, "6")]))


@pytest.mark.parametrize(
    ("actions", "domain"),
    [
        ("R1 = SetEquation(x = 1)", "maths"),
        ("R1 = KnowledgeQuery(pens)", "qa"),
        ("R1 = TYPE(Env, QUERY: box, TEXT: pens)", "web"),
        ("R1 = Search(Env, QUERY: pens)", "webshop"),
    ],
)
def test_a_unified_row_s_domain_is_told_by_its_tools(actions, domain):
    plan, ground = (
        plan_row(0, PENS, PENS_PLAN, dataset="unified"),
        ground_row(0, PENS, PENS_PLAN, actions, dataset="unified"),
    )
    (record,) = read([plan], [ground])
    assert record.domain == domain


def test_tools_of_no_domain_are_told():
    assert reasons(read([plan_row(0, PENS, PENS_PLAN, dataset="x")], [ground_row(0, PENS, PENS_PLAN, "R1 = Fly(up)")])) == [
        lumos.NO_DOMAIN
    ]
