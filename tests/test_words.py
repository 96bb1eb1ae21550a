"""moat/words.py: two texts, word by word."""

from hypothesis import example, given
from hypothesis import strategies as st

from moat.words import ALIGNED, KEPT, LONGEST, Edit, Part, changed, parts, shortened

TEXT = st.text("ab -\n+ü", max_size=40)


def joined(found, left_out):
    return "".join(part.text for part in found if part.edit is not left_out)


@given(TEXT, TEXT)
@example("a ", "a a ")  # what both begin with and what both end with are the same words
def test_without_what_is_added_it_is_the_first_text_and_without_what_is_removed_the_second(before, after):
    found = parts(before, after)
    assert (joined(found, Edit.ADDED), joined(found, Edit.REMOVED)) == (before, after)
    assert all(part.text for part in found)
    assert any(part.edit is not Edit.SAME for part in found) == (before != after)


def test_one_word_of_many_is_the_only_change():
    found = parts("R1 = Calculator(2 + 3); R2 = Calculator(R1 * 4)", "R1 = Calculator(2 + 3); R2 = Calculator(R1 / 4)")
    assert found == [
        Part(Edit.SAME, "R1 = Calculator(2 + 3); R2 = Calculator(R1 "),
        Part(Edit.REMOVED, "*"),
        Part(Edit.ADDED, "/"),
        Part(Edit.SAME, " 4)"),
    ]
    assert changed(found) == 2


def test_very_long_changes_are_not_aligned_word_by_word():
    """Aligning takes the square of the words; equal ends are still told apart."""
    before = " ".join(f"a{n}" for n in range(ALIGNED))
    found = parts(f"start {before} end", "start b end")
    assert [part.edit for part in found] == [Edit.SAME, Edit.REMOVED, Edit.ADDED, Edit.SAME]
    assert joined(found, Edit.ADDED) == f"start {before} end"


def test_what_is_equal_is_cut_to_the_ends_that_stand_at_a_change():
    long = "x" * 500
    first, middle, last = Part(Edit.SAME, long), Part(Edit.ADDED, "y" * 2 * LONGEST), Part(Edit.SAME, long)
    cut = [part.text for part in shortened([first, middle, last])]
    assert cut == ["…" + "x" * KEPT, "y" * LONGEST + "…", "x" * KEPT + "…"]
    both = shortened([Part(Edit.ADDED, "a"), first, Part(Edit.ADDED, "b")])[1].text
    assert both == "x" * KEPT + "…" + "x" * KEPT
    short = [Part(Edit.SAME, "z" * 2 * KEPT)]
    assert shortened(short) == short
