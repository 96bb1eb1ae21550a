"""A user's own rows with the documented columns, and conversations: moat/sources/columns.py and chat.py."""

import pytest

from moat.sources import chat, columns
from moat.sources.base import Metric, Passage, Record, SourceError, Turn

ROW = {"text": "What is 2 plus 3?", "gold_answer": "5", "domain": "maths", "metric": "number"}
ADD = "R1 = Calculator(2 + 3)"


def one(**changes):
    (item,) = columns.read([(1, ROW | changes)])
    return item


def test_lists_of_subgoals_and_actions_are_turns():
    record = one(subgoals=["Add", "Say"], actions=[ADD, "R2 = R1"])
    assert record == Record(
        number=1,
        text="What is 2 plus 3?",
        domain="maths",
        metric=Metric.NUMBER,
        gold_answer="5",
        subgoals="Subgoal 1: Add; Subgoal 2: Say",
        actions=f"{ADD}; R2 = R1",
        turns=(Turn("Add", ADD), Turn("Say", "R2 = R1")),
    )


def test_texts_are_a_plan_and_actions_at_once():
    record = one(subgoals="Subgoal 1: Add; twice; Subgoal 2: Say", actions=f"{ADD}; R2 = R1")
    assert (record.subgoals, record.actions) == ("Subgoal 1: Add; twice; Subgoal 2: Say", f"{ADD}; R2 = R1")
    assert record.turns == ()


def test_domain_and_metric_may_be_settings():
    (record,) = columns.read([(1, {"text": "Q", "gold_answer": "yes"})], "qa", "yes_no")
    assert (record.domain, record.metric) == ("qa", Metric.YES_NO)


@pytest.mark.trap(32)
@pytest.mark.parametrize(
    ("given", "gold"), [(5, "5"), (5.0, "5"), (2.5, "2.5"), (-3, "-3"), (True, "yes"), (" 1,000 ", "1,000")]
)
def test_an_answer_is_text_and_no_number_is_cut(given, gold):
    assert one(gold_answer=given).gold_answer == gold


def test_passages_and_a_step_of_an_episode():
    record = one(
        domain="web",
        metric="web_step",
        passages=[{"title": "T", "text": "P"}, {"text": "Q"}],
        episode="e",
        step=True,
        context="{}",
        subgoals=["Open", "Pay"],
        actions=["R1 = CLICK(Env, QUERY: open)", "R2 = CLICK(Env, QUERY: pay)"],
    )
    assert record.passages == (Passage("T", "P"), Passage("", "Q"))
    assert (record.episode, record.step, record.subgoals) == ("e", True, "Subgoal 1: Pay")
    assert (record.actions, len(record.turns)) == ("R2 = CLICK(Env, QUERY: pay)", 2)


def test_an_unknown_column_is_an_error_that_names_it():
    with pytest.raises(SourceError, match="row 1: unknown columns goldanswer"):
        one(goldanswer="5")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": None}, "malformed row"),
        ({"domain": "mathematics"}, "malformed row"),
        ({"metric": None}, "malformed row"),
        ({"subgoals": ["Add"], "actions": [ADD, "R2 = R1"]}, "malformed row"),
        ({"subgoals": "Add", "actions": "Calculator(2)"}, columns.NOT_ACTIONS),
        ({"subgoals": ["A", "B"], "actions": [ADD, ADD]}, columns.NOT_ACTIONS),
        ({"step": True}, "malformed row"),
        ({"passages": ["P"]}, "malformed row"),
        ({"gold_answer": [5]}, "malformed row"),
    ],
)
def test_a_row_that_is_not_as_documented_is_dropped(changes, reason):
    assert one(**changes).reason == reason


# --- conversations ----------------------------------------------------------------------------------------------------


def talk(*messages, **fields):
    told = [{"role": role, "content": content} for role, content in messages]
    (item,) = chat.read([(1, {"id": 3, "messages": told, "domain": "maths", "metric": "number"} | fields)])
    return item


SYSTEM, ASK = ("system", "Be brief."), ("user", "What is 2 plus 3?")


def test_a_plan_and_its_actions_are_a_task_at_once():
    record = talk(
        SYSTEM, ASK, ("assistant", "Subgoal 1: Add; Subgoal 2: Say"), ("assistant", f"{ADD}; R2 = R1"), gold_answer=5
    )
    assert record == one(subgoals=["Add", "Say"], actions=f"{ADD}; R2 = R1")


def test_a_plan_and_actions_by_turns_are_turns():
    record = talk(
        ASK,
        ("assistant", "Subgoal 1: Add"),
        ("assistant", ADD),
        ("user", "The result is 5. Stop?"),
        ("assistant", "No, I will keep planning. Subgoal 2: Say"),
        ("grounder", "R2 = R1"),
        ("tool", "5"),
        ("assistant", "Yes, I will stop planning."),
        gold_answer="5",
    )
    assert record == one(subgoals=["Add", "Say"], actions=[ADD, "R2 = R1"])


def test_sharegpt_is_read_alike():
    told = [
        {"from": "human", "value": "What is 2 plus 3?"},
        {"from": "planner", "value": "Add"},
        {"from": "gpt", "value": ADD},
    ]
    (record,) = chat.read([(1, {"conversations": told, "gold_answer": "5"})], "maths", "number")
    assert record == one(subgoals=["Add"], actions=[ADD])


def test_without_a_gold_answer_a_conversation_is_a_demonstration():
    assert talk(ASK, ("assistant", "Subgoal 1: Add"), ("assistant", ADD)).gold_answer == ""


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([SYSTEM], chat.NO_TASK),
        ([ASK, ("assistant", "It is 5.")], chat.NEITHER),
        ([ASK, ("assistant", ADD)], chat.OUT_OF_TURN),
        ([ASK, ("planner", "Add"), ("planner", "Add")], chat.OUT_OF_TURN),
        ([ASK, ("planner", "Add"), ("grounder", ADD), ("planner", "Say")], chat.OUT_OF_TURN),
        ([ASK, ("narrator", "Then")], "malformed row"),
        ([ASK, ("planner", "Add"), ("grounder", "R1 = ")], columns.NOT_ACTIONS),
    ],
)
def test_a_conversation_that_is_no_task_is_dropped(messages, reason):
    assert talk(*messages).reason == reason


def test_an_unknown_field_of_a_conversation_is_an_error():
    with pytest.raises(SourceError, match="unknown fields answer"):
        talk(ASK, answer="5")
