"""The data in tests/mutations, and the runner tests/mutants.py on a project of one module."""

import ast
import re

import pytest

from tests import mutants

MODULE = "def double(x):\n    return 2 * x\n"
TEST = """import pytest
from small import double

def test_two():
    assert double(2) == 4

@pytest.mark.parametrize("x", [0, 1])
def test_cases(x):
    assert double(x) == 2 * x
"""
TWO = "tests/test_small.py::test_two"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A project of one module and its tests; gives a function that runs one mutation of it and returns what was said."""
    monkeypatch.setattr(mutants, "LIBRARIES", ["pytest", "hypothesis"])
    (tmp_path / "tests" / "mutations").mkdir(parents=True)
    (tmp_path / "small.py").write_text(MODULE)
    (tmp_path / "tests" / "test_small.py").write_text(TEST)

    def attempt(old, new, *tests, more="", options=()):
        entry = (
            f"[[mutation]]\ntrap = [1]\nfile = 'small.py'\nold = '{old}'\nnew = '{new}'\ntests = {list(tests)}\nwhy = 'w'\n"
        )
        (tmp_path / "tests" / "mutations" / "area.toml").write_text(entry + more)
        said = []
        return mutants.main(list(options), tmp_path, said.append), "\n".join(said)

    return attempt


@pytest.fixture(scope="module")
def kept(root):
    """The mutations of tests/mutations."""
    return mutants.read(root / "tests" / "mutations")


@pytest.fixture(scope="module")
def marked(root):
    """The numbers of every test's trap marker: {file::name: numbers}."""
    found = {}
    for path in sorted((root / "tests").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for mark in getattr(node, "decorator_list", []):
                if ast.unparse(mark).startswith("pytest.mark.trap("):
                    found[f"tests/{path.name}::{node.name}"] = [number.value for number in mark.args]
    return found


def test_the_kept_mutations_can_be_applied(root, kept):
    """Each changes text that occurs once, of a trap that there is, and names tests that there are."""
    assert kept
    for mutation in kept:
        assert mutants.mutated(root, mutation)
        assert set(mutation.trap) <= set(range(1, 61)), mutation.name
        for test in mutation.tests:
            path, _, name = test.partition("::")
            text = (root / path).read_text()
            assert not name or re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE), f"{mutation.name}: no {test}"


def test_a_test_is_for_three_traps_at_most(marked):
    """Numbers of traps that there are."""
    for name, numbers in marked.items():
        assert 1 <= len(numbers) <= 3, name
        assert set(numbers) <= set(range(1, 61)), name


@pytest.mark.parametrize("trap", [*range(1, 38), *range(41, 44), *range(46, 55)])
def test_every_trap_has_a_test_that_kills_a_mutation(marked, kept, trap):
    """Of training, tools, environments, tables, the DAG: a kept mutation falls into it; a test with its number notices."""
    tests = {name for name, numbers in marked.items() if trap in numbers}
    assert tests
    assert any(trap in mutation.trap and tests & set(mutation.tests) for mutation in kept)


def test_a_change_that_a_test_notices_is_killed(small):
    """3 * 2 is not 4, and one case of the parametrised test is enough (3 * 0 is 0)."""
    code, said = small("2 * x", "3 * x", TWO, "tests/test_small.py::test_cases")
    assert (code, "killed   area:1" in said) == (0, True)


def test_a_change_that_no_test_notices_survives(small):
    """x + x is 2 * x."""
    code, said = small("2 * x", "x + x", TWO)
    assert (code, "SURVIVED area:1" in said, f"{TWO}: passed" in said) == (1, True, True)


def test_every_named_test_must_fail(small):
    """x * x is wrong for 1 and right for 2: killed by one of the two named tests, which is not enough."""
    code, said = small("2 * x", "x * x", TWO, "tests/test_small.py::test_cases")
    assert (code, f"{TWO}: passed" in said) == (1, True)


@pytest.mark.parametrize(
    ("new", "reason"),
    [("2 * (x", "could not collect"), ("2 * y", "untested: NameError"), ('__import__("os")._exit(0)', "no result")],
)
def test_a_change_that_is_no_program_is_not_killed(small, new, reason):
    """A module that cannot be imported, a name that is not there, a process that is gone: nothing was tested."""
    code, said = small("2 * x", new, TWO)
    assert (code, reason in said) == (1, True)


def test_quick_tries_the_first_of_every_file(small):
    """The second one would survive."""
    second = "[[mutation]]\ntrap = []\nfile = 'small.py'\nold = '2 * x'\nnew = 'x + x'\ntests = ['" + TWO + "']\nwhy = 'w'\n"
    code, said = small("2 * x", "3 * x", TWO, more=second, options=["--quick"])
    assert (code, "1 mutations, 1 killed, 0 survived" in said) == (0, True)


@pytest.mark.parametrize(("old", "times"), [("4 * x", 0), ("x", 2)])
def test_a_text_that_does_not_occur_once_is_refused(small, old, times):
    """The file has changed, or the text is too short: there is no telling what would be mutated."""
    code, said = small(old, "y", TWO)
    assert (code, f"occurs {times} times in small.py, not once" in said) == (2, True)


def test_a_test_that_does_not_pass_by_itself_is_refused(small):
    """It would kill every mutation: here, a test that is not there."""
    code, said = small("2 * x", "3 * x", "tests/test_small.py::test_nothing")
    assert (code, "without any mutation" in said, "test_nothing: no result" in said) == (2, True, True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("[[mutation]]\nfile = 'a'", "missing or unknown"),
        ("[other]", "nothing else"),
        ("[[mutation]]\ntrap=[]\nfile='a'\nold='b'\nnew='b'\ntests=['t']\nwhy=''", "changes nothing"),
        ("[[mutation]]\ntrap=[]\nfile='a'\nold='b'\nnew='c'\ntests=[]\nwhy=''", "names no tests"),
    ],
)
def test_wrong_data_is_refused(tmp_path, entry, message):
    """Unknown or missing fields, a mutation that is none."""
    (tmp_path / "area.toml").write_text(entry)
    with pytest.raises(mutants.DataError, match=message):
        mutants.read(tmp_path)
