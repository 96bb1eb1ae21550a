"""Pseudo-code: moat/tools/pseudocode.py."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.pseudocode import MAX_ELEMENTS, MAX_NESTING, MAX_STEPS, run

LIGHT = settings(deadline=None, max_examples=100)
BAD, NONE, TIME, SIZE = ToolErrorKind.BAD_ARGUMENT, ToolErrorKind.NO_RESULT, ToolErrorKind.TIME, ToolErrorKind.SIZE


def kind_of(text, **variables):
    with pytest.raises(ToolError) as caught:
        run(text, variables)
    return caught.value.kind


@pytest.mark.trap(30)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("x = 4", 4),
        ("x = 4; x + 1", 5),
        ("x = 4\ny = x ^ 2\ny - 1", 15),
        ("x = 1; x += 2; x *= 5", 15),
        ("0.1 + 0.2", Fraction(3, 10)),
        (".5 + 2.", Fraction(5, 2)),
        ("1 / 3", Fraction(1, 3)),
        ("7 // 2 + 7 % 2", 4),
        ("-2 ^ 2", -4),
        ("2 ^ -1", Fraction(1, 2)),
        ("$18 × 2 − 1", 35),
        ("3 > 2 and not 1 == 2", True),
        ("1 < 2 < 2 or False", False),
        ("TRUE AND true", True),
        ("3 ≥ 3", True),
        ("'a' == \"a\"", True),
        ("'a' != 'b; c'", True),
        ("2 in [1, 2]", True),
        ("1 if 3 > 2 else 0", 1),
        ("max(1, 5, 3) + min([4, 2]) + abs(-1)", 8),
        ("sum([1, 2, 3]) / len([1, 2])", 3),
        ("sqrt(16) + gcd(4, 6)", 6),
        ("answer = 3; other = 4", 3),
        ("other = 4; result = 5; other = 6", 5),
        ("return 3; answer = 4", 3),
        ("answer = 1\nreturn 2", 2),
        ("x = 2\nprint(x * 3)", 6),
        ("'yes'", "yes"),
        ("(1, 2)", (1, 2)),
        ("\n\n   x = 1\n   x + 1\n", 2),
        ("pass; 3", 3),
    ],
)
def test_statements_give_the_value_of_the_last_or_of_the_answer(text, value):
    assert run(text, {}) == value


@pytest.mark.trap(30)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("If 141 % 1 == 0, 1, 0", 1),
        ("if 148 % 8 == 0, 1, 0", 0),
        ("If a > b, a, b", 3),
        ("IF a < b, a, IF a == b, 0, max(a, b) + 1", 4),
        ("If a > b, 'more, or; less', 'same'", "more, or; less"),
        ("if a > b: x = 1; else: x = 2", 1),
        ("if a < b: x = 1; else: x = 2; x", 2),
        ("if a < b: x = 1 else: x = 2", 2),
        ("if a < b: x = 1; y = 5; else if a == 3: x = 7; else: x = 2", 7),
        ("If a < b then x = 1; else x = 2", 2),
        ("if a > b:\n    x = 10\n    x = x + 1\nelse:\n    x = 0", 11),
        ("if a < b:\n  x = 1\nelif a > 5:\n  x = 2\nelse:\n  x = 3", 3),
        ("x = 0; if a > b: x = 1", 1),
        ("if a > b:\n  if b > 1:\n    return 5\nreturn 6", 5),
    ],
)
def test_branches(text, value):
    assert run(text, {"a": Fraction(3), "b": Fraction(2)}) == value


@pytest.mark.trap(30)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s = 0; for i in range(1, 11): s = s + i; s", 55),
        ("s = 0\nfor i in range(5):\n    s += i\nanswer = s", 10),
        ("s = 0\nfor i in range(10, 0, -3): s += i", 22),
        ("s = 0\nfor x in [1, 1/2]: s += x", Fraction(3, 2)),
        ("n = 1\nwhile n < 100: n = n * 2\nn", 128),
        ("n = 0\nwhile True:\n    n += 1\n    if n > 6: break\nn", 7),
        ("s = 0\nfor i in range(6):\n    if i % 2 == 0: continue\n    s += i\ns", 9),
        ("for i in range(9):\n    if i ^ 2 > 20: return i", 5),
        ("c = 0\nfor i in range(3):\n  for j in range(4):\n    if j == 2: break\n    c += 1\nc", 6),
        ("For i In Range(3): x = i", 2),
    ],
)
def test_loops(text, value):
    assert run(text, {}) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", NONE),
        ("pass", NONE),
        ("for i in range(0): x = 1", NONE),
        ("x + 1", BAD),
        ("x = ", BAD),
        ("1 +", BAD),
        ("if 1: 2", BAD),
        ("if 1 > 0, 2", BAD),
        ("if x", BAD),
        ("1 / 0", NONE),
        ("'a' + 'b'", BAD),
        ("'a' < 'b'", BAD),
        ("True + 1", BAD),
        ("1 and 2", BAD),
        ("[1] * 3", BAD),
        ("[[1]]", BAD),
        ("for x in 5: x", BAD),
        ("for i in range(1/2): i", BAD),
        ("for i in range(1, 5, 0): i", BAD),
        ("break", BAD),
        ("1e5", BAD),
        ("50% * 20", BAD),
        ("x = y = 1", BAD),
        ("x, y = 1, 2", BAD),
        ("foo(1)", BAD),
        ("len(3)", BAD),
        ("min()", BAD),
        ("  x = 1\n y = 2", BAD),
    ],
)
def test_what_is_no_pseudo_code_is_refused(text, kind):
    assert kind_of(text) == kind


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "import os",
        "from os import system",
        "open('/etc/passwd')",
        "exec('1')",
        "eval('1')",
        "getattr(1, 'real')",
        "().__class__.__base__.__subclasses__()",
        "x = 1\nx.real",
        "'a'.upper()",
        "'a'[0]",
        "f'{1}'",
        "lambda: 1",
        "(lambda: 1)()",
        "def f(): return 1",
        "class A: pass",
        "[x for x in range(9)]",
        "{1: 2}",
        "{1}",
        "x := 1",
        "(x := 1)",
        "1j",
        "b'a'",
        "None",
        "...",
        "1 | 2",
        "1 << 9",
        "~1",
        "x: int = 1",
        "del x",
        "global x",
        "assert 1",
        "raise x",
        "try: 1\nfinally: 2",
        "with x: 1",
        "yield 1",
        "await x",
        "@x\ndef f(): 1",
        "while False: 1\nelse: 2",
        "for i in range(2): 1\nelse: 2",
        "min(1, key=2)",
        "max(*[1, 2])",
        "x = 1 if 1 else 2",
        "print(1, 2)",
        "٣ + 1",
        "\x00",
        "\ud800",
        "'\ud800'",
        "range(3)",
        "for i.j in [1]: 1",
        "match x:\n  case 1: 2",
    ],
)
def test_nothing_but_pseudo_code_runs(text):
    assert kind_of(text) == BAD


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    "text",
    [
        "while True: x = 1",
        "for i in range(10**100): x = i",
        "for i in range(1000):\n  for j in range(1000):\n    x = i * j",
        "x = [" + "1, " * 900 + "]\nwhile True: y = 5 in x",
        "x = [" + "1, " * 900 + "]\nwhile True: y = sum(x)",
        "x = [" + "1, " * 900 + "]\nwhile True: y = len(x)",
        "x = [" + "1, " * 900 + "]\nwhile True: y = x == x",
    ],
)
def test_work_without_an_end_is_a_matter_of_time(text):
    assert kind_of(text) == TIME


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "x = 2\nwhile True: x = x * x",
        "x = 3\nfor i in range(9): x = x ** 9",
        "1" * 300,
        "0." + "1" * 300,
        "(" * 10_000 + "1" + ")" * 10_000,
        "(" * 40 + "1" + ")" * 40,
        "-" * 3_900 + "1",
        "not " * 900 + "True",
        "1" + " + 1" * 900,
        "x = [" + "1," * (MAX_ELEMENTS + 1) + "]",
        "x = 1;" * 1_000,
        "".join(f"{' ' * i}if True:\n" for i in range(MAX_NESTING + 2)) + " " * (MAX_NESTING + 2) + "1",
        "factorial(121)",
    ],
)
def test_what_is_too_large_is_refused_by_its_size(text):
    assert kind_of(text) == SIZE


def test_a_loop_within_the_steps_ends():
    turns = MAX_STEPS // 10
    assert run(f"s = 0\nfor i in range({turns}): s += 1\ns", {}) == turns


@LIGHT
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(-99, 99)), max_size=12), st.integers(-99, 99))
def test_assignments_in_sequence_are_those_of_python(changes, start):
    total = start
    for sign, number in changes:
        total = {"+": total + number, "-": total - number, "*": total * number}[sign]
    text = "; ".join([f"x = {start}", *(f"x {sign}= {number}" for sign, number in changes)])
    assert run(text, {}) == total


LINES = [
    "x = 1",
    "x += 2",
    "if x > 1:",
    "else:",
    "elif x == 3:",
    "while x < 9:",
    "for i in range(3):",
    "break",
    "x",
    "return x",
    "x =",
]


@pytest.mark.trap(31)
@settings(deadline=None, max_examples=200)
@given(
    st.text(st.characters(), max_size=40)
    | st.lists(st.tuples(st.integers(0, 3), st.sampled_from(LINES), st.sampled_from(["\n", "; "])), max_size=8).map(
        lambda lines: "".join("  " * indent + line + end for indent, line, end in lines)
    )
)
def test_any_text_gives_a_value_or_a_tool_error(text):
    try:
        value = run(text, {"x": Fraction(1)})
    except ToolError:
        return
    assert isinstance(value, Fraction | bool | str | tuple)
