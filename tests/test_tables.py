"""Typed, keyed Parquet files of reproducible bytes: moat/tables.py and moat/schemas/."""

import importlib
import json
import pkgutil
import time

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import moat.schemas
from moat.tables import METADATA_KEY, Column, Table, TableError, metadata

COLUMNS = (
    Column("task_id", pa.string(), "The task."),
    Column("k", pa.int32(), "The candidate."),
    Column("nll", pa.float64(), "A number, or null.", nullable=True),
    Column("plans", pa.list_(pa.string()), "Several texts."),
)
THINGS = Table("things", 3, ("task_id", "k"), COLUMNS)


def row(task_id="a", k=0, nll=1.5, plans=("x",)):
    return {"task_id": task_id, "k": k, "nll": nll, "plans": list(plans)}


ROWS = [row("b", 1), row("a", 10, None), row("a", 2, float("nan"), ()), row("ä", 0, float("inf")), row("B", 0, -0.0)]
KEYS = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.integers(-(2**31), 2**31 - 1))
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "things.parquet"


def rewritten(path, change, **meta):
    """Write ROWS, then the same file anew by pyarrow alone, with `change` made to the Arrow table."""
    THINGS.write(path, ROWS, {})
    table = change(pq.read_table(path))
    own = {METADATA_KEY: json.dumps({"table": "things", "version": 3, "facts": {}} | meta).encode()}
    pq.write_table(table.replace_schema_metadata(own), path)


# --- writing ----------------------------------------------------------------------------------------------------------


def test_rows_are_sorted_by_key_and_read_back(path):
    """Text by its code points (B < a < b < ä), numbers by value (2 < 10), and every cell as it was."""
    THINGS.write(path, ROWS, {})
    frame = THINGS.read(path)
    assert frame.select("task_id", "k").rows() == [("B", 0), ("a", 2), ("a", 10), ("b", 1), ("ä", 0)]
    assert frame["nll"].to_list()[2:] == [None, 1.5, float("inf")]
    assert str(frame["nll"][1]) == "nan"
    assert frame["plans"].to_list() == [["x"], [], ["x"], ["x"], ["x"]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.dictionaries(KEYS, NUMBERS, max_size=12), st.randoms(use_true_random=False))
def test_equal_rows_are_equal_bytes(tmp_path, cells, order):
    """Whatever the order of rows and of columns, and as dictionaries or as a frame: one file, and all values back."""
    rows = [row(task, k, nll) for (task, k), nll in cells.items()]
    first, second, third = (tmp_path / name for name in ("1.parquet", "2.parquet", "3.parquet"))
    THINGS.write(first, rows, {"a": 1, "b": 2})
    shuffled = [dict(order.sample(list(r.items()), len(r))) for r in order.sample(rows, len(rows))]
    THINGS.write(second, shuffled, {"b": 2, "a": 1})
    assert first.read_bytes() == second.read_bytes()
    if rows:
        THINGS.write(third, pl.DataFrame(shuffled, schema_overrides={"nll": pl.Float64}), {"a": 1, "b": 2})
        assert first.read_bytes() == third.read_bytes()
    assert {(r["task_id"], r["k"]): r["nll"] for r in THINGS.read(first).to_dicts()} == cells


def test_a_file_does_not_know_when_it_was_written(path, monkeypatch):
    """Written again a year later, by the clock, it has the same bytes."""
    THINGS.write(path, ROWS, {"counts": {"kept": 5}})
    before, now = path.read_bytes(), time.time() + 365 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    THINGS.write(path, ROWS, {"counts": {"kept": 5}})
    assert path.read_bytes() == before


def test_facts_are_kept_with_the_table(path):
    """The file says what it is and what made it."""
    THINGS.write(path, ROWS, {"engine": "hf", "counts": {"kept": 5}})
    assert metadata(path) == {"table": "things", "version": 3, "facts": {"engine": "hf", "counts": {"kept": 5}}}


def test_an_empty_table_keeps_its_columns(path):
    """No rows: a file all the same, of the right types."""
    THINGS.write(path, [], {})
    frame = THINGS.read(path)
    assert (len(frame), frame.columns) == (0, ["task_id", "k", "nll", "plans"])


@pytest.mark.parametrize("as_frame", [False, True])
@pytest.mark.parametrize(("change", "said"), [({"zz": 1}, r"unknown \['zz'\]"), ({"nll": ...}, r"missing \['nll'\]")])
def test_columns_must_be_those_of_the_schema(path, change, said, as_frame):
    """A missing or an unknown column is named, with the file; nothing is written."""
    rows = [{name: value for name, value in (row() | change).items() if value is not ...}]
    with pytest.raises(TableError, match=rf"things\.parquet: .*{said}"):
        THINGS.write(path, pl.DataFrame(rows) if as_frame else rows, {})
    assert not path.exists()


def test_a_null_is_refused_where_none_is_allowed(path):
    """Only a column that says so may be empty."""
    with pytest.raises(TableError, match=r"things\.parquet: column 'task_id' .*empty"):
        THINGS.write(path, [row(), row(task_id=None)], {})


@pytest.mark.parametrize("bad", [row(k="one"), row(k=2**40), row(task_id=5), row(plans=(1,)), row(k=True)])
def test_a_value_that_does_not_fit_is_refused(path, bad):
    """Another type, or a number too large for the column: an error that names the file and the table."""
    with pytest.raises(TableError, match=r"things\.parquet: .*table 'things'"):
        THINGS.write(path, [row(k=7), bad], {})


def test_a_repeated_key_is_refused(path):
    """Equal keys would make the order, and so the bytes, depend on the input: the key is named."""
    with pytest.raises(TableError, match=r"things\.parquet: .*\{'task_id': 'a', 'k': 2\} twice"):
        THINGS.write(path, [row("a", 2), row("b", 2), row("a", 2, 3.0)], {})


def test_a_refused_table_leaves_the_old_one(path):
    """The file that was there is untouched, and nothing lies beside it."""
    THINGS.write(path, ROWS, {})
    before = path.read_bytes()
    with pytest.raises(TableError):
        THINGS.write(path, [row(), row()], {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named_with_the_remedy(path):
    """Not there: which file, which table, and what to run."""
    with pytest.raises(FileNotFoundError, match=r"things\.parquet is missing \(table 'things'\).*dvc repro.*dvc pull"):
        THINGS.read(path)


@pytest.mark.trap(60)
@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_a_torn_file_is_named_with_the_remedy(path, share):
    """Cut anywhere, as a full disk leaves it: refused, with what to do."""
    THINGS.write(path, ROWS, {})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(TableError, match=r"things\.parquet is not a readable Parquet file.*dvc checkout"):
        THINGS.read(path)


@pytest.mark.parametrize("said", [b"{not json", b"[1]", b"\xff"])
def test_a_file_that_says_nonsense_of_itself_is_refused(path, said):
    """As one that says nothing: named, with what to do."""
    THINGS.write(path, ROWS, {})
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"moat": said}), path)
    with pytest.raises(TableError, match=r"things\.parquet says it is table 'None'.*dvc repro"):
        THINGS.read(path)


@pytest.mark.parametrize(
    ("meta", "said"), [({"version": 2}, r"'things' version 2"), ({"table": "other"}, r"'other' version 3")]
)
def test_another_table_or_version_is_refused(path, meta, said):
    """What the file says of itself against what the code reads."""
    rewritten(path, lambda table: table, **meta)
    with pytest.raises(TableError, match=rf"things\.parquet says it is table {said}; this code reads 'things' version 3"):
        THINGS.read(path)


def test_a_foreign_parquet_file_is_refused(path):
    """A file of the right columns that no table of ours wrote."""
    path.parent.mkdir()
    pl.DataFrame([row()]).write_parquet(path)
    with pytest.raises(TableError, match=r"things\.parquet says it is table 'None'"):
        THINGS.read(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["nll"]), r"column 'nll' .*missing"),
        (lambda t: t.append_column("zz", pa.array([1] * len(t))), r"unknown columns \['zz'\]"),
        (lambda t: t.set_column(1, "k", t["k"].cast(pa.int64())), r"column 'k' holds int64, not int32"),
        (lambda t: t.set_column(2, "nll", t["nll"].cast(pa.float32())), r"column 'nll' holds float, not double"),
        (lambda t: t.set_column(0, "task_id", pa.array([None, *"abcd"])), r"column 'task_id' .*empty"),
        (lambda t: pa.concat_tables([t, t.slice(2, 1)]), r"\{'task_id': 'a', 'k': 10\} twice"),
    ],
    ids=["missing", "unknown", "type", "narrower", "null", "key"],
)
def test_a_file_that_breaks_its_contract_is_refused(path, change, said):
    """Columns, types, nulls and key are checked again on reading; the error names the file and the column."""
    rewritten(path, change)
    with pytest.raises(TableError, match=rf"things\.parquet: .*{said}"):
        THINGS.read(path)


# --- the schemas ------------------------------------------------------------------------------------------------------


def schemas():
    for info in pkgutil.iter_modules(moat.schemas.__path__):
        module = importlib.import_module(f"moat.schemas.{info.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Table))


@pytest.mark.parametrize("table", schemas(), ids=lambda table: table.name)
def test_every_schema_is_sound(table):
    """Distinct columns, a sentence each, a key of columns that are never null, and nothing that is a time."""
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert set(table.key) <= {column.name for column in table.columns if not column.nullable}
    assert all(column.doc.endswith(".") for column in table.columns)
    assert not any(pa.types.is_temporal(column.type) for column in table.columns)


def test_every_table_has_its_module():
    """One table a module, of the module's name, so that a change reruns only the stages that use it."""
    assert [table.name for table in schemas()] == [info.name for info in pkgutil.iter_modules(moat.schemas.__path__)]


@pytest.mark.parametrize(
    "rows",
    [
        [row(k=1.5)],
        [row(k=2**70)],
        [row(), row(task_id="b") | {"typo": 2}],
        [row(), {name: value for name, value in row(task_id="b").items() if name != "nll"}],
        [row(plans=["x", None])],
        [row() | {"plans": "ab"}],
    ],
    ids=["fraction", "huge", "late unknown", "late missing", "null in a list", "text as a list"],
)
def test_nothing_is_changed_on_the_way(path, rows):
    """What a conversion would cut, drop or split is refused, and nothing is written."""
    with pytest.raises(TableError, match=r"things\.parquet: "):
        THINGS.write(path, rows, {})
    assert not path.exists()
