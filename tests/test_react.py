"""Turns of ReAct: moat/react.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.react import Several, Turn, TurnError, TurnErrorKind, parse


@pytest.mark.parametrize(
    ("text", "thought", "action"),
    [
        ("Thought: I need planks.\nAction: get 2 oak logs", "I need planks.", "get 2 oak logs"),
        ("Thought:\nI need planks.\n\nAction:\nget 2 oak logs\n", "I need planks.", "get 2 oak logs"),
        ("Thought: one line Action: search[red mug]", "one line", "search[red mug]"),
        ("Action: look around", "", "look around"),
        ("No label here.\nAction: look around", "No label here.", "look around"),
        ("Thought: an (Action: x) life\nAction: wait", "an (Action: x) life", "wait"),
        ("Thought: x\nAction: get 1 stick\nObservation: Got 1 stick", "x", "get 1 stick"),
        ("Thought: x\nAction: get 1 stick Observation: Got 1 stick", "x", "get 1 stick"),
        ("Thought: x\nAction: get 1 stick\n\nNow I shall see.", "x", "get 1 stick"),
        ("Thought: x\nAction:   eat   <the> Reaction: ☃ ", "x", "eat   <the> Reaction: ☃"),
        ("Thought: a\nThought: b\nAction: wait", "b", "wait"),
    ],
)
def test_a_thought_and_an_action(text, thought, action):
    for several in Several:
        assert parse(text, several) == Turn(thought, action)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Thought: a\nAction: one\nAction: two", Turn("a", "two")),
        ("Thought: a\nAction: one\nObservation: made up\nThought: b\nAction: two", Turn("b", "two")),
        ("Action: one Action: one", Turn("", "one")),
    ],
)
def test_of_several_actions_the_last_counts_or_none(text, last):
    assert parse(text) == parse(text, Several.LAST) == last
    with pytest.raises(TurnError, match="actions in") as caught:
        parse(text, Several.REFUSE)
    assert caught.value.kind is TurnErrorKind.SEVERAL


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", TurnErrorKind.NONE),
        ("Thought: I do nothing.", TurnErrorKind.NONE),
        ("action: wait", TurnErrorKind.NONE),
        ("Reaction: wait", TurnErrorKind.NONE),
        ("Action:", TurnErrorKind.EMPTY),
        ("Thought: x\nAction: \n ", TurnErrorKind.EMPTY),
        ("Action: one\nAction:", TurnErrorKind.EMPTY),
        ("Action: Observation: x", TurnErrorKind.EMPTY),
    ],
)
def test_a_turn_without_an_action_is_refused_by_reason(text, kind):
    with pytest.raises(TurnError) as caught:
        parse(text)
    assert caught.value.kind is kind


LINES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Zs"]) | st.just(" "), max_size=30)


@given(LINES.map(str.strip), LINES.map(str.strip).filter(bool))
def test_the_usual_form_is_read_back(thought, action):
    if any(f"{label}:" in text for label in ("Thought", "Action", "Observation") for text in (thought, action)):
        return
    assert parse(Turn(thought, action).text, Several.REFUSE) == Turn(thought, action)


@given(st.lists(st.sampled_from(["Thought:", "Action:", "Observation:", " ", "\n", "a", "☃", "get 1 x", ":"]), max_size=12))
def test_whatever_is_said_gives_a_turn_on_one_line_or_a_reason(parts):
    text = "".join(parts)
    try:
        turn = parse(text)
    except TurnError:
        return
    assert turn.action == turn.action.strip() != ""
    assert "\n" not in turn.action
    assert turn.action in text
    assert turn.thought in text
