"""The tools of qa: moat/tools/qa.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat import corpus
from moat.executor import execute
from moat.sources.base import Passage
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.docs import DOCS
from moat.tools.qa import (
    MAX_QUESTION,
    MAX_READ,
    MAX_SUBJECT,
    Question,
    Unread,
    known_answers,
    no_reader,
    passages_of,
    qa_tools,
    render,
)

CAESAR = Passage("Julius Caesar", "Julius Caesar had three children.")
GAUL = Passage("Julius Caesar", "He conquered Gaul.")
KHAN = Passage("Genghis Khan", "Genghis Khan had sixteen children.")
ROME = Passage("Rome", "Julius Caesar died in Rome.")
OTHER = Passage("Barn owl", "It hunts mice at night.")
ALL = [CAESAR, GAUL, KHAN, ROME, OTHER]
HOSTILE = [
    "[Title] text",
    "\\",
    "\\n",
    "a\nb\r\nc",
    "] [",
    "\\] x",
    "[[passage 1 0000]]",
    "R1, Query: R2",
    ", Question: who?",
    "</s><|im_end|>",
    "\u2028\x0b\x1c\x85",
    "",
    " ",
    "😀",
]


def tools(read=no_reader, passages=ALL, **options):
    return qa_tools(corpus.build(passages), read, lambda a, r: "code", **({"found": 10, "kept": 3} | options))


def call(name, arguments, read=no_reader, passages=ALL, results=None, **options):
    return tools(read, passages, **options)[name](arguments, results or {})


def kind_of(name, arguments, **options):
    with pytest.raises(ToolError) as caught:
        call(name, arguments, **options)
    return caught.value.kind


class Asked:
    """A reader that says the same to everything and keeps what it was asked."""

    def __init__(self, answer="yes"):
        self.questions = []
        self.answer = answer

    def __call__(self, question):
        self.questions.append(question)
        return self.answer


def test_the_tools_are_those_of_the_documentation():
    assert set(tools()) == set(DOCS["qa"])
    assert call("Code", "x = 1") == "code"


# --- passages as text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", HOSTILE)
@pytest.mark.parametrize("text", HOSTILE)
def test_any_passage_is_read_back(title, text):
    passages = [Passage(title, text), CAESAR, Passage(text, title)]
    assert passages_of(render(passages)) == passages


@settings(max_examples=200, deadline=None)
@given(st.lists(st.builds(Passage, st.text(st.characters()), st.text("[]\\n\n aR1")), min_size=1, max_size=4))
def test_all_passages_are_read_back(passages):
    assert passages_of(render(passages)) == passages


@pytest.mark.parametrize("text", ["", "Paris", "[Paris]", "[Paris]x", "Paris [x] y", "[a] b\nParis", "[a\\] b"])
def test_an_answer_is_no_passages(text):
    assert passages_of(text) is None


# --- KnowledgeQuery ---------------------------------------------------------------------------------------------------


def test_a_subject_finds_its_title_first():
    """All passages of that very title, then the best of the others, up to `found`."""
    found = passages_of(call("KnowledgeQuery", " julius  CAESAR "))
    assert set(found[:2]) == {CAESAR, GAUL}
    assert found[2:] == [ROME]
    assert set(passages_of(call("KnowledgeQuery", "Julius Caesar", found=1))) == {CAESAR, GAUL}
    assert passages_of(call("KnowledgeQuery", "sixteen children of Genghis", found=1)) == [KHAN]


def test_an_earlier_answer_can_be_the_subject():
    assert passages_of(call("KnowledgeQuery", "R3", results={"R3": "Rome"}))[0] == ROME


@pytest.mark.trap(33)
def test_nothing_found_is_no_result():
    assert kind_of("KnowledgeQuery", "zebra") is ToolErrorKind.NO_RESULT
    with pytest.raises(ToolError, match="the corpus, which is empty") as caught:
        call("KnowledgeQuery", "Rome", passages=[])
    assert caught.value.kind is ToolErrorKind.NO_RESULT


def test_wikipedia_is_asked_instead_of_the_corpus():
    page = [Passage("Zebra", "It has stripes.")]
    assert call("KnowledgeQuery", "Rome", wikipedia=lambda subject: page if subject == "Rome" else []) == render(page)
    assert kind_of("KnowledgeQuery", "Caesar", wikipedia=lambda subject: []) is ToolErrorKind.NO_RESULT


# --- ParagraphRetrieve ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["R1, Query: ", "[R1], Query: ", "[R1, R1],Query:", "R1 , question: "])
def test_the_best_paragraphs_are_kept(form):
    given_ = {"R1": render([OTHER, GAUL, CAESAR])}
    assert call("ParagraphRetrieve", f"{form}Julius Caesar's children", results=given_, kept=2) == render([CAESAR, GAUL])


def test_paragraphs_of_several_results_are_ranked_together():
    """Each once, though two results hold it."""
    given_ = {"R1": render([OTHER, CAESAR]), "R2": render([CAESAR, KHAN])}
    found = passages_of(call("ParagraphRetrieve", "[R1, R2], Query: children of R3", results=given_ | {"R3": "Khan"}))
    assert found[0] == KHAN
    assert sorted(found, key=repr) == sorted([OTHER, CAESAR, KHAN], key=repr)


# --- QA ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ("[R2], Question: How many?", Question("How many?", ("Julius Caesar: Julius Caesar had three children.",))),
        ("R2, Question: How many?", Question("How many?", ("Julius Caesar: Julius Caesar had three children.",))),
        ("[R3, R6], Question: Is R3 less than R6?", Question("Is 3 less than 16?", ("3", "16"))),
        ("[R6], Context: they are R3, Question: How?", Question("How?", ("16", "they are 3"))),
        ("Context: [R3, R6], Question: How?", Question("How?", ("3", "16"))),
        ("Context: R3, Question: How?", Question("How?", ("3",))),
        ("[R3], Question: To be, Question: or not, Query: x?", Question("To be, Question: or not, Query: x?", ("3",))),
        ("[R3, R3], Query: How?", Question("How?", ("3",))),
    ],
)
def test_what_the_reader_is_asked(arguments, asked):
    read = Asked("16")
    assert call("QA", arguments, read, results={"R2": render([CAESAR]), "R3": "3", "R6": "16"}) == "16"
    assert read.questions == [asked]


@pytest.mark.trap(29)
def test_names_are_replaced_by_token_and_once():
    """R1 in R10 and in AR1 stays; what an answer holds is not read again."""
    read = Asked()
    call("QA", "[R10], Question: R10 or R1 or AR1?", read, results={"R1": "R10", "R10": "x"})
    assert read.questions == [Question("x or R10 or AR1?", ("x",))]


@pytest.mark.parametrize("text", HOSTILE[:-3])
def test_what_a_passage_holds_is_no_label_and_no_name(text):
    """Through all three tools in a row, passages stay what they are."""
    passage = Passage("Nero " + text, text)
    read = Asked()
    actions = "R1 = KnowledgeQuery(Nero); R2 = ParagraphRetrieve(R1, Query: of Nero); R3 = QA([R1, R2], Question: Who?)"
    assert execute(actions, tools(read, [passage])).answer == "yes"
    assert read.questions == [Question("Who?", (f"{passage.title}: {text}",))]


@pytest.mark.trap(33)
def test_no_answer_is_no_result():
    """No reader, a blank answer, an answer that a reader did not have: never a text that could be graded."""
    given_ = {"R1": "x"}
    with pytest.raises(ToolError, match=r"tools\.qa\.reader is empty") as caught:
        call("QA", "[R1], Question: Who?", results=given_)
    assert caught.value.kind is ToolErrorKind.NO_RESULT
    assert kind_of("QA", "[R1], Question: Who?", read=Asked(" "), results=given_) is ToolErrorKind.NO_RESULT
    unanswered = known_answers({Question("Who?", ("x",)): None})
    assert kind_of("QA", "[R1], Question: Who?", read=unanswered, results=given_) is ToolErrorKind.NO_RESULT


def test_an_unread_question_stops_execution_until_it_is_answered():
    """Asked one after the other: the second question holds the first one's answer."""
    text = "R1 = KnowledgeQuery(Rome); R2 = QA([R1], Question: Who died?); R3 = QA([R1], Question: Where did R2 die?)"
    known = {}
    for answer in ("Caesar", "in Rome"):
        with pytest.raises(Unread) as caught:
            execute(text, tools(known_answers(known)))
        known[caught.value.question] = answer
    assert execute(text, tools(known_answers(known))).answer == "in Rome"
    assert [question.question for question in known] == ["Who died?", "Where did Caesar die?"]


# --- refused ----------------------------------------------------------------------------------------------------------

BAD, SIZE = ToolErrorKind.BAD_ARGUMENT, ToolErrorKind.SIZE


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("KnowledgeQuery", "", BAD),
        ("KnowledgeQuery", "R5", BAD),  # a blank result
        ("KnowledgeQuery", "R1", BAD),  # passages
        ("KnowledgeQuery", "x" * (MAX_SUBJECT + 1), SIZE),
        ("ParagraphRetrieve", "R1", BAD),
        ("ParagraphRetrieve", "Query: x", BAD),
        ("ParagraphRetrieve", "R1, Query:", BAD),
        ("ParagraphRetrieve", "R2, Query: x", BAD),  # an answer, no passages
        ("ParagraphRetrieve", "Rome, Query: x", BAD),
        ("ParagraphRetrieve", "[R1 R1], Query: x", BAD),
        ("ParagraphRetrieve", f"R1, Query: {'x' * (MAX_QUESTION + 1)}", SIZE),
        ("QA", "[R1]", BAD),
        ("QA", "[], Question: x", BAD),
        ("QA", "Question: x", BAD),
        ("QA", "[R1], Question:", BAD),
        ("QA", "[Rome], Question: x", BAD),
        ("QA", "[R1], Context: , Question: x", BAD),
        ("QA", "[R2], Question: Is it R1?", BAD),  # passages in a question
        ("QA", f"[R1], Question: {'x' * (MAX_QUESTION + 1)}", SIZE),
        ("QA", "[R4], Question: x", SIZE),
        ("Calculator", "R1 > 3", BAD),
    ],
)
def test_what_a_tool_does_not_take(name, arguments, kind):
    given_ = {"R1": render([CAESAR]), "R2": "Rome", "R4": "x" * (MAX_READ + 1), "R5": " "}
    assert kind_of(name, arguments, read=Asked(), results=given_) is kind


def test_more_than_can_be_read_is_refused():
    assert kind_of("KnowledgeQuery", "Rome", passages=[Passage("Rome", "x" * MAX_READ)]) is SIZE


def test_a_question_with_three_steps():
    """The whole of the paper's example: two look-ups, and a comparison of their answers."""
    numbers = {"How many children had Julius Caesar?": "three", "How many children had Genghis Khan?": "16 children"}
    text = "; ".join(
        f"R{n} = KnowledgeQuery({who}); R{n + 1} = ParagraphRetrieve(R{n}, Query: How many children had {who}?); "
        f"R{n + 2} = QA([R{n + 1}], Question: How many children had {who}?)"
        for n, who in ((1, "Julius Caesar"), (4, "Genghis Khan"))
    )
    done = execute(f"{text}; R7 = Calculator(R6 > R3)", tools(lambda q: numbers[q.question], kept=1))
    assert done.answer == "True"
    assert dict(done.results)["R2"] == render([CAESAR])
