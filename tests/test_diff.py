"""moat/diff.py and moat/telling.py: two frames compared by key, against a comparison of dictionaries."""

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.diff import DiffError, SchemaChange, What, comparable, compare, schema_changes, unequal
from moat.telling import LOOKED_AT, SHOWN
from moat.words import Edit

KEY = ("task_id", "k")
TYPES = {
    "task_id": pl.String,
    "k": pl.Int32,
    "text": pl.String,
    "outcome": pl.String,
    "nll": pl.Float64,
    "samples_nll": pl.List(pl.Float64),
    "turns": pl.List(pl.Struct({"action": pl.String, "n": pl.Int64})),
}
COLUMNS = [name for name in TYPES if name not in KEY]
NUMBER = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 0.5000001, 0.505, math.nan, math.inf]))
VALUES = st.fixed_dictionaries(
    {
        "text": st.one_of(st.none(), st.sampled_from(["", "a b", "a c", "[bold]"])),
        "outcome": st.sampled_from(["reached", "not_reached"]),
        "nll": NUMBER,
        "samples_nll": st.one_of(st.none(), st.lists(st.sampled_from([0.5, 0.5000001, 0.505, math.nan]), max_size=2)),
        "turns": st.lists(st.fixed_dictionaries({"action": st.sampled_from("xy"), "n": st.integers(0, 1)}), max_size=2),
    }
)
TABLE = st.dictionaries(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)), VALUES, max_size=8)


def frame(rows):
    """Rows by key as a frame of all columns, in the order given."""
    return pl.DataFrame([{"task_id": t, "k": k} | values for (t, k), values in rows.items()], schema=TYPES)


def equal(one, other, tolerance):
    """Whether two values are equal, written out."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or one == other or abs(one - other) <= tolerance
    return one == other


def keys(found):
    return [tuple(row.values()) for row in found]


@settings(deadline=None, max_examples=150)
@given(TABLE, TABLE, st.randoms(), st.sampled_from([0.0, 1e-3]), st.integers(1, 3))
def test_it_is_what_a_loop_over_dictionaries_finds(one, other, random, tolerance, n_pieces):
    """In any order of the rows, in any number of pieces, with and without a tolerance."""
    shuffled = dict(random.sample(list(other.items()), len(other)))
    what = What(KEY, COLUMNS, ["text"], tolerance)
    cut = [pl.col("task_id").hash(0) % n_pieces == n for n in range(n_pieces)]
    found = compare(frame(one).lazy(), frame(shuffled).lazy(), what, cut)
    both = sorted(one.keys() & other.keys())
    differ = {key: [c for c in COLUMNS if not equal(one[key][c], other[key][c], tolerance)] for key in both}
    assert found.rows == (len(one), len(other))
    assert (found.n_added, found.n_removed) == (len(other.keys() - one.keys()), len(one.keys() - other.keys()))
    assert keys(found.added) == sorted(other.keys() - one.keys())[:5]
    assert keys(found.removed) == sorted(one.keys() - other.keys())[:5]
    assert found.n_changed == sum(bool(columns) for columns in differ.values())
    assert found.columns == {name: sum(name in columns for columns in differ.values()) for name in COLUMNS}
    assert found.equal == (one.keys() == other.keys() and not any(differ.values()))
    turned = [key for key in both if "outcome" in differ[key]]
    assert keys(found.turned.right) == [key for key in turned if other[key]["outcome"] == "reached"]
    assert keys(found.turned.wrong) == [key for key in turned if one[key]["outcome"] == "reached"]
    assert (found.turned.n_right, found.turned.n_wrong) == (len(found.turned.right), len(found.turned.wrong))
    assert {tuple(e.key.values()) for e in found.examples} <= {key for key in both if "text" in differ[key]}
    assert len(found.examples) == min(SHOWN, sum("text" in columns for columns in differ.values()))
    by_task = [{}, {}]
    for tables, rows in zip(by_task, (one, other), strict=True):
        for (task, _), row in rows.items():
            if row["nll"] is not None and math.isfinite(row["nll"]):
                tables.setdefault(task, []).append(row["nll"])
    means = [{task: sum(values) / len(values) for task, values in tables.items()} for tables in by_task]
    moved = {task: means[1][task] - means[0][task] for task in means[0].keys() & means[1].keys()}
    ppl = found.perplexity
    assert ppl.n == len(moved)
    assert (ppl.n_lower, ppl.n_higher) == tuple(sum(s * by > tolerance for by in moved.values()) for s in (-1, 1))
    if moved:
        expected = [math.exp(sum(mean[task] for task in moved) / len(moved)) for mean in means]
        assert (ppl.before, ppl.after) == pytest.approx(tuple(expected))


def test_ppl_of_a_task_is_the_geometric_mean_over_its_rows_in_each_table():
    """By hand: task a falls from exp(2) to exp(1), b rises; the largest moves come first, and are PPL, not NLL."""
    types = {"task_id": pl.String, "k": pl.Int32, "nll": pl.Float64}
    one = pl.LazyFrame({"task_id": ["a", "a", "b"], "k": [0, 1, 0], "nll": [1.0, 3.0, 0.5]}, types)
    other = pl.LazyFrame({"task_id": ["a", "b", "c"], "k": [7, 0, 0], "nll": [1.0, 1.0, 9.0]}, types)
    found = compare(one, other, What(KEY, ["nll"])).perplexity
    assert (found.n, found.n_lower, found.n_higher) == (2, 1, 1)
    assert found.fell == [("a", math.exp(2), math.exp(1))]
    assert found.rose == [("b", math.exp(0.5), math.exp(1))]
    assert found.before == pytest.approx(math.exp((2 + 0.5) / 2))


@pytest.mark.parametrize("side", [0, 1])
def test_a_key_that_is_there_twice_is_an_error_that_names_table_and_key(side):
    rows = {("a", 0): {"text": "x", "outcome": "reached", "nll": 0.0, "samples_nll": [], "turns": []}}
    frames = [frame(rows), frame(rows)]
    frames[side] = pl.concat([frames[side], frames[side]])
    with pytest.raises(DiffError, match=rf"{['left', 'right'][side]} has the key .*'task_id': 'a', 'k': 0") as error:
        compare(frames[0].lazy(), frames[1].lazy(), What(KEY, COLUMNS, names=("left", "right")))
    assert "--key" in str(error.value)


def test_tables_of_keys_alone_and_empty_tables_can_be_compared():
    one = pl.LazyFrame({"task_id": ["a", "b"]})
    found = compare(one, pl.LazyFrame({"task_id": ["b", "c"]}), What(["task_id"], []))
    assert (found.n_added, found.n_removed, found.n_changed) == (1, 1, 0)
    empty = pl.LazyFrame(schema=TYPES)
    assert compare(empty, empty, What(KEY, COLUMNS, ["text"])).equal


def test_a_null_key_is_a_key():
    one, other = pl.LazyFrame({"id": ["a", None], "x": [1, 2]}), pl.LazyFrame({"id": [None, "a"], "x": [3, 1]})
    found = compare(one, other, What(["id"], ["x"]))
    assert (found.n_added, found.n_removed, found.n_changed) == (0, 0, 1)


def test_the_most_telling_row_is_one_that_turned_with_the_fewest_changed_words():
    """Before rows whose text alone changed, however little."""
    rows = [
        ("little", "one two three", "one two four", "reached"),
        ("turned much", "one two three", "five six seven", "not_reached"),
        ("turned little", "one two three", "one two six", "not_reached"),
        ("same", "one two three", "one two three", "not_reached"),
    ]
    one = pl.LazyFrame([{"id": name, "text": before, "outcome": "reached", "n": 1} for name, before, _, _ in rows])
    other = pl.LazyFrame([{"id": name, "text": after, "outcome": outcome, "n": 2} for name, _, after, outcome in rows])
    found = compare(one, other, What(["id"], ["text", "outcome", "n"], ["text"])).examples
    assert [example.key["id"] for example in found] == ["turned little", "turned much", "little"]
    assert found[0].values == {"outcome": ("reached", "not_reached"), "n": (1, 2)}
    assert [(part.edit, part.text) for part in found[0].texts["text"]] == [
        (Edit.SAME, "one two "),
        (Edit.REMOVED, "three"),
        (Edit.ADDED, "six"),
    ]


def test_the_rows_that_are_looked_at_are_those_that_turned():
    """One row that turned, with the longest change, after many that changed a little."""
    n = 3 * LOOKED_AT
    one = pl.LazyFrame({"id": range(n), "text": ["a b"] * n, "success": [False] * n})
    text = ["a c"] * (n - 1) + ["quite another text, and longer"]
    other = pl.LazyFrame({"id": range(n), "text": text, "success": [False] * (n - 1) + [True]})
    assert compare(one, other, What(["id"], ["text", "success"], ["text"])).examples[0].key == {"id": n - 1}


def test_lists_are_told_as_lines():
    turns = [[{"action": "get 1 log", "ok": True}], [{"action": "get 2 log", "ok": True}]]
    one, other = (pl.LazyFrame({"id": [1], "turns": [value]}) for value in turns)
    (example,) = compare(one, other, What(["id"], ["turns"], ["turns"])).examples
    assert [(part.edit, part.text) for part in example.texts["turns"]] == [
        (Edit.SAME, "action: get "),
        (Edit.REMOVED, "1"),
        (Edit.ADDED, "2"),
        (Edit.SAME, " log, ok: True"),
    ]


def test_a_column_may_come_go_or_change_its_type():
    first = pl.Schema({"id": pl.Int32, "gone": pl.String, "other": pl.Int32})
    second = pl.Schema({"id": pl.Int32, "other": pl.Float64, "new": pl.Boolean})
    assert schema_changes(first, second) == [
        SchemaChange("gone", "String", None),
        SchemaChange("other", "Int32", "Float64"),
        SchemaChange("new", None, "Boolean"),
    ]
    assert comparable(pl.Int32(), pl.Float64())
    assert not comparable(pl.Int32(), pl.String())


def test_numbers_of_two_types_are_compared_by_value():
    assert unequal(pl.Series([1, 2], dtype=pl.Int32), pl.Series([1.0, 2.5])).to_list() == [False, True]
    assert unequal(pl.Series([1, 2], dtype=pl.Int32), pl.Series([1.0, 2.5]), 0.5).to_list() == [False, False]
