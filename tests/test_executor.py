"""Running actions: moat/executor.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat import corpus
from moat.actions import substitute
from moat.executor import MAX_ACTIONS, MAX_RESULT, Execution, Failure, Outcome, execute, outcome
from moat.toolbox import Goal, Library, Toolbox
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.docs import DOCS, documentation
from moat.tools.maths import CALCULATOR_TOOLS

LIGHT = settings(deadline=None, max_examples=100)


def run(text):
    return execute(text, CALCULATOR_TOOLS)


# --- answers -------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_last_result():
    assert run("R1 = Calculator(28 * 1/7); R2 = Calculator(28 - R1)") == Execution(
        "24", None, "", (("R1", "4"), ("R2", "24"))
    )


@pytest.mark.trap(29)
def test_r10_is_not_r1_and_a_nought():
    assert run("R1 = Calculator(3); R10 = Calculator(70); R2 = Calculator(R10 - R1)").answer == "67"


@pytest.mark.trap(29)
def test_an_assignment_gives_the_result_it_names():
    assert run("R4 = Calculator(1/3); R5 = R4").results == (("R4", "1/3"), ("R5", "1/3"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("R1 = Calculator(1 - 4); R2 = Calculator(R1 ** 2)", "9"),
        ("R1 = Calculator(1 - 4); R2 = Calculator(2 - R1)", "5"),
        ("R1 = Calculator(1 / 3); R2 = Calculator(1 / R1)", "3"),
        ("R1 = Calculator(1 / 3); R2 = Calculator(R1 * 3)", "1"),
        ("R1 = Calculator(1 + 49); R2 = Calculator(R1% * 10)", "5"),
        ("R1 = Calculator(0 - 5); R2 = Calculator(17 % R1)", "-3"),
        ("R1 = Calculator(3); R2 = Calculator($R1 + $2)", "5"),
    ],
)
def test_a_result_stays_one_operand(text, answer):
    assert run(text).answer == answer


@pytest.mark.parametrize("argument", ["R1.5", "1,R1", "2R1", "R1 R1", "R1(2)"])
def test_a_result_is_never_glued_to_the_digits_beside_it(argument):
    assert run(f"R1 = Calculator(500); R2 = Calculator({argument})").failure == Failure.BAD_ARGUMENT


def test_a_comparison_prints_its_truth():
    assert run("R1 = Calculator(6 > 3)").answer == "True"


def test_a_tool_sees_its_raw_arguments_and_the_results_so_far():
    seen = []

    def tool(arguments, results):
        seen.append((arguments, dict(results)))
        return substitute(arguments, results).upper()

    assert execute("R1 = T(a; b); R2 = T([R1], c)", {"T": tool}).answer == "[A; B], C"
    assert seen == [("a; b", {}), ("[R1], c", {"R1": "A; B"})]


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", Failure.EMPTY),
        (" \n\t", Failure.EMPTY),
        ("I cannot do that.", Failure.SYNTAX),
        ("R1 = Calculator(2", Failure.SYNTAX),
        ("R1 = Calculator(2); R1 = Calculator(3)", Failure.SYNTAX),
        ("R1 = Oracle(2)", Failure.UNKNOWN_TOOL),
        ("R1 = calculator(2)", Failure.UNKNOWN_TOOL),
        ("R1 = Calculator(R2)", Failure.UNDEFINED_REFERENCE),
        ("R1 = Calculator(R1)", Failure.UNDEFINED_REFERENCE),
        ("R1 = R2; R2 = Calculator(1)", Failure.UNDEFINED_REFERENCE),
        ("R1 = Calculator(1 / 0)", Failure.NO_RESULT),
        ("R1 = Calculator(two)", Failure.BAD_ARGUMENT),
        ("R1 = Calculator()", Failure.BAD_ARGUMENT),
    ],
)
@pytest.mark.trap(33)
def test_a_failure_has_its_kind_and_no_answer(text, failure):
    execution = run(text)
    assert (execution.failure, execution.answer) == (failure, None)


def test_a_failure_keeps_the_results_before_it():
    execution = run("R1 = Calculator(2); R2 = Calculator(R1 / 0); R3 = Calculator(3)")
    assert execution.results == (("R1", "2"),)


def test_a_failure_says_where_and_why():
    assert run("R1 = Calculator(1); R2 = Calculator(R1 / 0)").message == (
        "R2: Calculator: division_by_zero: division by zero"
    )


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    "expression", ["9**9**9", "().__class__", "__import__('os')", "(" * 10_000 + ")" * 10_000, "٣", "'" * 5000]
)
def test_an_attack_is_a_failure(expression):
    assert run(f"R1 = Calculator({expression})").failure in (Failure.BAD_ARGUMENT, Failure.SIZE, Failure.SYNTAX)


def test_repeated_squaring_ends_in_a_failure():
    text = "R1 = Calculator(9)" + "".join(f"; R{i + 1} = Calculator(R{i} * R{i})" for i in range(1, 500))
    assert run(text).failure == Failure.SIZE


def test_a_tool_error_becomes_a_failure_and_a_faulty_tool_does_not():
    def tool(arguments, results):
        raise ToolError(ToolErrorKind.TIME, "closed") if arguments == "a" else ZeroDivisionError

    execution = execute("R1 = T(a)", {"T": tool})
    assert (execution.failure, execution.message) == (Failure.TIME, "R1: T: closed")
    with pytest.raises(ZeroDivisionError):
        execute("R1 = T(b)", {"T": tool})


@LIGHT
@given(
    st.text(st.characters())
    | st.text("R12=Calculator();+ \n", max_size=40)
    | st.lists(st.text(max_size=20).map("Calculator({})".format) | st.sampled_from(["R1", "R2"]), max_size=4).map(
        lambda parts: "; ".join(f"R{i} = {part}" for i, part in enumerate(parts, 1))
    )
)
def test_no_text_makes_the_executor_raise(text):
    execution = run(text)
    assert (execution.answer is None) == (execution.failure is not None)


@LIGHT
@given(st.text(st.characters()))
def test_messages_can_be_stored_as_utf8(text):
    assert run(f"R1 = Calculator(x{text})").message.encode()


# --- several results of one action, and bounds ---------------------------------------------------------------------

GIVE = {"Give": lambda arguments, results: arguments, **CALCULATOR_TOOLS}


def test_an_action_gives_every_name_a_value():
    """In order; the last one is the answer. One name takes the result whole."""
    assert execute("R1, R2 = Give(3, 4)", GIVE) == Execution("4", None, "", (("R1", "3"), ("R2", "4")))
    assert execute("R1, R2 = Give(3, 4); R3 = Calculator(R1 * 10 + R2)", GIVE).answer == "34"
    assert execute("R1 = Give(3, 4)", GIVE).answer == "3, 4"


@pytest.mark.trap(33)
@pytest.mark.parametrize("values", ["3", "3, 4, 5"])
def test_another_number_of_values_than_names_is_a_failure(values):
    """Nothing is made up for a name, and nothing is left out."""
    done = execute(f"R1, R2 = Give({values})", GIVE)
    assert (done.answer, done.failure, done.results) == (None, Failure.NO_RESULT, ())


@pytest.mark.trap(31)
def test_a_text_of_too_many_actions_is_not_run():
    """MAX_ACTIONS are, one more none."""
    ran = []
    tools = {"Give": lambda arguments, results: ran.append(arguments) or arguments}
    text = "; ".join(f"R{number} = Give({number})" for number in range(1, MAX_ACTIONS + 1))
    assert execute(text, tools).answer == str(MAX_ACTIONS)
    ran.clear()
    assert execute(f"{text}; R{MAX_ACTIONS + 1} = Give(0)", tools).failure is Failure.SIZE
    assert ran == []


@pytest.mark.trap(31)
@pytest.mark.parametrize(("length", "failure"), [(MAX_RESULT, None), (MAX_RESULT + 1, Failure.SIZE)])
def test_a_result_has_a_largest_length(length, failure):
    assert execute("R1 = Long(x)", {"Long": lambda arguments, results: "9" * length}).failure is failure


# --- outcomes ------------------------------------------------------------------------------------------------------


def test_an_equal_value_reaches_the_gold():
    assert outcome(run("R1 = Calculator(9 / 2)"), "4.5") == Outcome.REACHED


def test_another_value_does_not_reach_the_gold():
    assert outcome(run("R1 = Calculator(9 / 2)"), "4") == Outcome.NOT_REACHED


@pytest.mark.trap(33)
@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("gold", ["no", "False", "0", ""])
def test_a_failure_is_the_outcome_of_its_name_whatever_the_gold(failure, gold):
    assert outcome(Execution(None, failure, "", ()), gold) == failure.value


def test_an_empty_result_reaches_nothing():
    assert outcome(Execution("", None, "", (("R1", ""),)), "no") == Outcome.NOT_REACHED


# --- documentation -------------------------------------------------------------------------------------------------


def test_the_documentation_lists_the_actions_and_a_line_for_each():
    assert documentation("arithmetic") == (
        "Actions: Calculator\nCalculator(expression) -> number: evaluates an arithmetic expression"
    )


@pytest.mark.parametrize("domain", DOCS)
def test_every_documented_tool_is_there_and_no_other(domain):
    """An action of each tool of the domain's list is not the failure `unknown_tool`; one of another domain's is."""
    contexts = {
        "web": '{"elements": [{"id": "1", "tag": "a"}]}',
        "webshop": '{"shop": {"seed": 0, "families": 3, "goal": 0}}',
    }
    toolbox, goal = Toolbox(library=Library(corpus.build([]), 1, 1)), Goal(domain, "", context=contexts.get(domain, ""))
    assert toolbox.knows(goal)
    for tool in {tool for tools in DOCS.values() for tool in tools}:
        unknown = toolbox.execute(f"R1 = {tool}(x)", goal).failure == Failure.UNKNOWN_TOOL
        assert unknown == (tool not in DOCS[domain])


def test_results_of_earlier_turns_are_known():
    """R2 of an earlier turn can be used, and R1 be given anew; the results are this text's own."""
    execution = execute("R1 = Calculator(R1 + R2)", CALCULATOR_TOOLS, {"R1": "3", "R2": "4"})
    assert execution == Execution("7", None, "", (("R1", "7"),))


def test_an_unknown_domain_is_named():
    with pytest.raises(ValueError, match="cooking"):
        documentation("cooking")
