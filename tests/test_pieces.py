"""moat/pieces.py: two files cut alike."""

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.pieces import pieces

KEYS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=40)


def write(path, keys, group):
    frame = pl.DataFrame(
        {"task_id": [f"t{a:04}" for a, _ in keys], "k": [b for _, b in keys]}, {"task_id": pl.String, "k": pl.Int32}
    )
    pq.write_table(frame.to_arrow(), path, row_group_size=group)
    return path


@settings(deadline=None)
@given(KEYS, KEYS, st.booleans(), st.integers(1, 9))
def test_every_row_is_in_one_piece_and_equal_keys_in_the_same(tmp_path_factory, one, other, in_order, group):
    place = tmp_path_factory.mktemp("pieces")
    order = sorted if in_order else list
    paths = [write(place / name, order(keys), group) for name, keys in (("one", one), ("other", other))]
    filters = pieces(*paths, ["task_id", "k"], rows=6, unsorted=11)
    where = {}
    for path in paths:
        frames = [pl.scan_parquet(path).filter(piece).collect() for piece in filters]
        assert pl.concat(frames).sort("task_id", "k").equals(pl.read_parquet(path).sort("task_id", "k"))
        for number, frame in enumerate(frames):
            for task in set(frame["task_id"]):
                assert where.setdefault(task, number) == number


@pytest.mark.parametrize("in_order", [True, False])
def test_large_files_are_cut(tmp_path, in_order):
    """Sorted ones at row groups, into pieces of about the size asked for; others into as few passes as fit."""
    keys = [(n // 4, n % 4) for n in range(4000)]
    if not in_order:
        keys.reverse()
    paths = [write(tmp_path / name, keys, 100) for name in ("one", "other")]
    filters = pieces(*paths, ["task_id", "k"], rows=1000, unsorted=2000)
    sizes = [pl.scan_parquet(paths[0]).filter(piece).collect().height for piece in filters]
    assert sum(sizes) == 4000
    assert len(sizes) == (4 if in_order else 2)


def test_sorted_files_are_cut_where_row_groups_begin(tmp_path):
    keys = [(n, 0) for n in range(9)]
    path = write(tmp_path / "one", keys, 1)
    filters = pieces(path, path, ["task_id", "k"], rows=3)
    found = [pl.scan_parquet(path).filter(piece).collect()["task_id"].to_list() for piece in filters]
    assert found == [[f"t{n:04}" for n in range(first, first + 3)] for first in (0, 3, 6)]


def test_a_row_without_a_key_is_in_a_piece_too(tmp_path):
    frame = pl.DataFrame({"task_id": ["a", None, "b", "c"]})
    pq.write_table(frame.to_arrow(), tmp_path / "one", row_group_size=2)
    filters = pieces(tmp_path / "one", tmp_path / "one", ["task_id"], rows=2)
    assert [frame.filter(piece)["task_id"].to_list() for piece in filters] == [["a", None], ["b", "c"]]
