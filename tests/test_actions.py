"""The action grammar: moat/actions.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.actions import (
    MAX_DEPTH,
    MAX_LENGTH,
    Action,
    ActionSyntaxError,
    UndefinedReference,
    parse,
    references,
    render,
    split_values,
    substitute,
)

LIGHT = settings(deadline=None, max_examples=100)

# Text with balanced brackets, of any kinds, and none left open.
flat = st.text(st.characters(exclude_characters="()[]{}"), max_size=12)
balanced = st.recursive(
    flat,
    lambda inner: st.tuples(flat, st.sampled_from(["()", "[]", "{}", "(]"]), inner, flat).map(
        lambda parts: parts[0] + parts[1][0] + parts[2] + parts[1][1] + parts[3]
    ),
    max_leaves=5,
)
tools = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,10}", fullmatch=True).filter(lambda word: not references(word))
names = st.integers(1, 999).map("R{}".format)


@st.composite
def action_lists(draw):
    actions = []
    left = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    while left:
        name, *left = left
        if draw(st.booleans()):
            others = tuple(left[: draw(st.integers(0, 2))])
            left = left[len(others) :]
            actions.append(Action(name, draw(tools), draw(balanced), others))
        else:
            actions.append(Action(name, None, draw(names)))
    return tuple(actions)


# --- what parses ---------------------------------------------------------------------------------------------------


def test_maths_actions_parse_in_order():
    assert parse("R1 = Calculator(28 * 1/7); R2 = Calculator(28 - R1)") == (
        Action("R1", "Calculator", "28 * 1/7"),
        Action("R2", "Calculator", "28 - R1"),
    )


def test_question_answering_actions_parse():
    text = (
        "R1 = KnowledgeQuery(Julius Caesar); R2 = ParagraphRetrieve(R1, Query: When did Caesar die?); "
        "R3 = QA([R2], Question: When did Caesar die?); R7 = Calculator(R6 > R3)"
    )
    assert parse(text) == (
        Action("R1", "KnowledgeQuery", "Julius Caesar"),
        Action("R2", "ParagraphRetrieve", "R1, Query: When did Caesar die?"),
        Action("R3", "QA", "[R2], Question: When did Caesar die?"),
        Action("R7", "Calculator", "R6 > R3"),
    )


def test_web_actions_parse():
    text = (
        "R1 = TYPE(Env, QUERY: the search box, TEXT: Ricky Kej); R2 = CLICK(R1, QUERY: Search); "
        "R3 = SELECT(R2, QUERY: sort by, TEXT: Newest)"
    )
    assert [action.tool for action in parse(text)] == ["TYPE", "CLICK", "SELECT"]


@pytest.mark.trap(29)
def test_an_assignment_has_no_tool():
    assert parse("R5 = R4") == (Action("R5", None, "R4"),)


@pytest.mark.trap(29)
def test_a_semicolon_inside_an_argument_does_not_split():
    assert parse("R1 = QA([R0], Question: who; when; R2 = x?); R2 = R1") == (
        Action("R1", "QA", "[R0], Question: who; when; R2 = x?"),
        Action("R2", None, "R1"),
    )


@pytest.mark.trap(29)
def test_nested_brackets_belong_to_the_argument():
    assert parse("R1 = Calculator((2 + (3)) * (4 - 1)); R2 = Count([(1, 2), (3, 4)])") == (
        Action("R1", "Calculator", "(2 + (3)) * (4 - 1)"),
        Action("R2", "Count", "[(1, 2), (3, 4)]"),
    )


def test_half_open_intervals_balance():
    assert parse("R1 = Count((0, 1])") == (Action("R1", "Count", "(0, 1]"),)


def test_apostrophes_and_quotes_are_text():
    assert parse("R1 = KnowledgeQuery(Schindler's \"List)")[0].arguments == "Schindler's \"List"


def test_arguments_are_kept_as_written():
    assert parse("R1 = Tool( a \n b )")[0].arguments == " a \n b "


def test_arguments_may_be_empty():
    assert parse("R1 = Define()") == (Action("R1", "Define", ""),)


@pytest.mark.parametrize(
    "text",
    [
        "  R1 = T(a); R2 = R1 ",
        "R1 = T(a)\nR2 = R1",
        "R1 = T(a)\r\n\r\n  R2 = R1\n",
        "R1 = T(a) ;\n R2 = R1;",
        "R1=T(a);R2=R1",
        "R1  =  T (a);  R2 = R1",
    ],
)
def test_white_space_around_actions_is_ignored(text):
    assert parse(text) == (Action("R1", "T", "a"), Action("R2", None, "R1"))


# --- what does not -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("nonsense", 0),
        ("R1", 0),
        ("R1 =", 4),
        ("R1 = 4", 5),
        ("R1 = Calculator", 15),
        ("R1 = Calculator(1 + (2)", 15),
        ("R1 = Calculator(1]", 17),
        ("R1 = R2 + 1", 8),
        ("R1 = R2(3)", 5),
        ("R0 = T(a)", 0),
        ("R01 = T(a)", 0),
        ("r1 = T(a)", 0),
        ("R١ = T(a)", 0),
        ("R1 = Tö(a)", 6),
        ("R1 = T(a) R2 = T(b)", 10),
        ("R1 = T(a);; R2 = T(b)", 10),
        ("; R1 = T(a)", 0),
        ("Sure! R1 = T(a)", 0),
    ],
)
def test_other_text_is_refused_at_its_position(text, position):
    with pytest.raises(ActionSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position


def test_a_name_given_twice_is_refused():
    with pytest.raises(ActionSyntaxError, match="R1 is given twice"):
        parse("R1 = T(a); R2 = T(b); R1 = T(c)")


@pytest.mark.trap(26, 28)
@pytest.mark.parametrize("tail", ["Final answer reached", "<|assistant|>", '{"verdict": "accept"}', "."])
def test_actions_followed_by_anything_else_do_not_parse(tail):
    with pytest.raises(ActionSyntaxError):
        parse(f"R1 = Calculator(2 + 3) {tail}")


def test_the_longest_text_parses_and_one_more_character_does_not():
    text = "R1 = T(" + "a" * (MAX_LENGTH - 8) + ")"
    assert len(parse(text)[0].arguments) == MAX_LENGTH - 8
    with pytest.raises(ActionSyntaxError, match="characters"):
        parse(text + " ")


def test_the_deepest_nesting_parses_and_one_more_bracket_does_not():
    inner = MAX_DEPTH - 1  # the outer pair counts
    assert parse(f"R1 = T({'(' * inner}{')' * inner})")
    with pytest.raises(ActionSyntaxError, match="brackets open"):
        parse(f"R1 = T({'(' * (inner + 1)}{')' * (inner + 1)})")


@LIGHT
@given(st.text(st.characters()) | st.text("R12=();[ \nTx", max_size=40))
def test_any_text_parses_or_is_a_syntax_error(text):
    position = 0
    try:
        parse(text)
    except ActionSyntaxError as error:
        position = error.position
    assert 0 <= position <= len(text)


# --- writing -------------------------------------------------------------------------------------------------------


def test_the_canonical_text_has_single_spaces_and_semicolons():
    assert render(parse("R1=Calculator (28 * 1/7)\nR2 =R1;")) == "R1 = Calculator(28 * 1/7); R2 = R1"


@LIGHT
@given(action_lists())
def test_parsing_what_was_rendered_gives_the_same_actions(actions):
    assert parse(render(actions)) == actions


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [Action("R1", "T", ")")],
        [Action("R1", "T", "a); R2 = T(b")],
        [Action("R1", None, "4")],
        [Action("x", "T", "a")],
        [Action("R1", "T", "a"), Action("R1", "T", "b")],
    ],
)
def test_actions_that_no_text_stands_for_are_not_rendered(actions):
    with pytest.raises(ValueError, match=r".+"):
        render(actions)


# --- references ----------------------------------------------------------------------------------------------------


@pytest.mark.trap(29)
def test_references_are_whole_tokens():
    assert references("R1 + R10*R1, [R2] AR1 R1x R1_ R_1 R0 R01 éR1 R1é $R3 r1") == ["R1", "R10", "R1", "R2", "R3"]


@pytest.mark.trap(29)
def test_substituting_r1_leaves_r10_alone():
    assert substitute("R10 - R1", {"R1": "3", "R10": "70"}) == "70 - 3"


@pytest.mark.trap(29)
@pytest.mark.parametrize("word", ["AR1", "R1x", "R1_", "_R1", "R01", "2R1"])
def test_a_name_inside_a_word_is_not_substituted(word):
    assert substitute(word, {"R1": "3"}) == word


def test_substituted_text_is_not_substituted_again():
    assert substitute("R1 R2", {"R1": "R2", "R2": "\\1 R1"}) == "R2 \\1 R1"


def test_a_missing_result_is_named():
    with pytest.raises(UndefinedReference) as caught:
        substitute("R1 + R10", {"R1": "3"})
    assert caught.value.name == "R10"


# --- several results -----------------------------------------------------------------------------------------------


def test_an_action_may_give_several_results():
    assert parse("R1, R2 = SolveEquation(x + y = 3, x - y = 1); R3 = R2") == (
        Action("R1", "SolveEquation", "x + y = 3, x - y = 1", ("R2",)),
        Action("R3", None, "R2"),
    )


def test_several_names_are_written_with_a_comma_and_a_space():
    assert render(parse("R1 ,R2,  R3=T(a)")) == "R1, R2, R3 = T(a)"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("R1, R2 = R3", 9),
        ("R1, = T(a)", 0),
        ("R1, R1 = T(a)", 0),
        ("R1 = T(a); R2, R1 = T(b)", 11),
        ("R1, x = T(a)", 0),
        ("R1 R2 = T(a)", 0),
    ],
)
def test_names_that_are_no_list_of_new_results_are_refused(text, position):
    with pytest.raises(ActionSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("result", "values"),
    [
        ("6", ("6",)),
        ("-2, 2", ("-2", "2")),
        ("x = 1, y = 2/3", ("1", "2/3")),
        ("(0, 1], 3", ("(0, 1]", "3")),
        ("x == 1", ("x == 1",)),
        ("", ("",)),
    ],
)
def test_the_values_of_a_result_stand_between_its_outer_commas(result, values):
    assert split_values(result) == values


# --- quotes --------------------------------------------------------------------------------------------------------


@pytest.mark.trap(29)
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('R1 = QA([R0], Question: what does ":)" mean?); R2 = R1', '[R0], Question: what does ":)" mean?'),
        ('R1 = TYPE(Env, QUERY: box, TEXT: "f(x"); R2 = R1', 'Env, QUERY: box, TEXT: "f(x"'),
        ('R1 = T("(((", ")"); R2 = R1', '"(((", ")"'),
        ('R1 = T("a); b" (c)); R2 = R1', '"a); b" (c)'),
    ],
)
def test_a_bracket_between_double_quotes_need_not_balance(text, arguments):
    first, second = parse(text)
    assert (first.arguments, second) == (arguments, Action("R2", None, "R1"))


@pytest.mark.parametrize("text", ['R1 = T(12" (30 cm) pipe)', 'R1 = T("a(" b)")', 'R1 = T("a") \n R2 = T(b")'])
def test_what_reads_without_quotes_reads_as_if_they_meant_nothing(text):
    assert "".join(f"{action.name} = T({action.arguments})" for action in parse(text)).count('"') == text.count('"')


@pytest.mark.parametrize(
    ("text", "position"), [("R1 = T(')')", 9), ('R1 = T(:") )', 11), ('R1 = T("a(" b', 6), ('R1 = T(")\n")', 10)]
)
def test_other_quotes_do_not_hide_brackets(text, position):
    with pytest.raises(ActionSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position


# --- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.trap(29)
def test_ten_thousand_actions_parse_and_render():
    text = "; ".join(f"R{i} = Calculator(R{max(i - 1, 1)} + {i} * (2 + 3))" for i in range(1, 10_001))
    actions = parse(text)
    assert (len(actions), actions[-1].name) == (10_000, "R10000")
    assert render(actions) == text


@pytest.mark.parametrize(
    "text", ["R1 = T(" * 70_000, "R1 = T(" + "()" * 240_000, "R1 = T(" + '"' * 490_000, "R1, " * 120_000]
)
def test_a_long_text_that_is_no_sequence_is_a_syntax_error(text):
    with pytest.raises(ActionSyntaxError):
        parse(text)


# --- every text ----------------------------------------------------------------------------------------------------

texts = (
    st.text(st.characters(), max_size=60)
    | st.text('R12=(),"; \nTx[', max_size=60)
    | st.lists(
        st.sampled_from(["R1", "R2", ", ", " = ", "T(", ")", "; ", "\n", '"', "a", "(", "R3 = T(b)"]), max_size=20
    ).map("".join)
)


@settings(deadline=None, max_examples=500)
@given(texts)
def test_a_text_that_parses_is_a_fixed_point_of_rendering(text):
    try:
        actions = parse(text)
    except ActionSyntaxError:
        return
    canonical = render(actions)
    assert (parse(canonical), render(parse(canonical))) == (actions, canonical)


@LIGHT
@given(action_lists(), st.sampled_from([";", "\n", " ;\n", "; "]), st.sampled_from(["", " ", ";"]))
def test_separators_and_spaces_do_not_change_the_actions(actions, separator, end):
    assert parse(separator.join(render([action]) for action in actions) + end) == actions
