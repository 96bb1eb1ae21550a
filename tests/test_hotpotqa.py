"""HotpotQA: moat/sources/hotpotqa.py. The rows are our own, in the publisher's format."""

import pytest

from moat.actions import parse
from moat.sources import hotpotqa
from moat.sources.base import Metric, Passage

KETTLE, MUSTER, ULM = "Blue Kettle (film)", "Ada Muster", "Ulm"
CONTEXT = [
    [KETTLE, ["Blue Kettle is a film.", " Ada Muster directed it."]],
    [MUSTER, ["Ada Muster was born in Ulm."]],
    [ULM, ["Ulm is a town."]],
]
ROW = {
    "_id": "x1",
    "question": "Where was the director of Blue Kettle born?",
    "answer": "Ulm",
    "type": "bridge",
    "level": "hard",
    "context": CONTEXT,
    "supporting_facts": [[KETTLE, 1], [MUSTER, 0]],
}


def one(**changes):
    (item,) = hotpotqa.read([(1, ROW | changes)], "dev")
    return item


def test_paragraphs_are_passages_and_the_answer_is_matched_exactly():
    record = one()
    assert record.passages[0] == Passage(KETTLE, "Blue Kettle is a film. Ada Muster directed it.")
    assert len(record.passages) == 3
    assert (record.metric, record.gold_answer, record.split) == (Metric.EXACT_MATCH, "Ulm", "dev")


def test_a_bridge_goes_from_the_named_title_to_the_one_that_its_facts_name():
    record = one()
    assert [turn.subgoal for turn in record.turns] == [
        "Look up Blue Kettle",
        "Find in it what leads on to the answer",
        "Look that up",
        "Answer the question from both",
    ]
    assert [action.tool for action in parse(record.actions)] == [
        "KnowledgeQuery",
        "ParagraphRetrieve",
        "QA",
        "KnowledgeQuery",
        "ParagraphRetrieve",
        "QA",
    ]
    assert MUSTER not in record.actions  # not known before it is found


def test_a_comparison_looks_up_both_in_the_question_s_order():
    record = one(question="Did Ada Muster see Blue Kettle?", answer="yes")
    assert record.actions == (
        "R1 = KnowledgeQuery(Ada Muster); R2 = ParagraphRetrieve(R1, Query: Did Ada Muster see Blue Kettle?); "
        "R3 = KnowledgeQuery(Blue Kettle); R4 = ParagraphRetrieve(R3, Query: Did Ada Muster see Blue Kettle?); "
        "R5 = QA([R2, R4], Question: Did Ada Muster see Blue Kettle?)"
    )
    assert len(record.turns) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"supporting_facts": [[KETTLE, 0], [MUSTER, 0]]},  # the sentence does not name the other title
        {"supporting_facts": [[KETTLE, 9], [MUSTER, 0]]},  # no such sentence
        {"supporting_facts": [[KETTLE, 1]]},
        {"supporting_facts": [[KETTLE, 1], ["Not there", 0]]},
        {"question": "Where was she born?"},
        {"question": "Where was the director of Blue Kettle, R2, born?"},  # would read as a result
        {"question": "Where was the director of Blue Kettle :) born?"},
        {"supporting_facts": None, "context": None},
    ],
)
def test_facts_that_do_not_suffice_give_a_question_to_evaluate_on(changes):
    record = one(**changes)
    assert (record.gold_answer, record.subgoals, record.actions, record.turns) == ("Ulm", "", "", ())


def test_the_hub_s_columns_read_the_same():
    columns = {
        "context": {"title": [one[0] for one in CONTEXT], "sentences": [one[1] for one in CONTEXT]},
        "supporting_facts": {"title": [KETTLE, MUSTER], "sent_id": [1, 0]},
    }
    assert one(**columns) == one()


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": None},
        {"question": " "},
        {"context": [[KETTLE]]},
        {"context": [[KETTLE, "text"]]},
        {"context": {"title": [KETTLE], "sentences": []}},
        {"supporting_facts": [[1, 1]]},
    ],
)
def test_a_malformed_row_is_dropped(changes):
    assert one(**changes).reason == "malformed row"
