"""Rows of files and of the hub: moat/sources/files.py."""

import gzip
import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moat.sources import files
from moat.sources.base import SourceError
from moat.sources.files import hub_rows, open_rows

ROWS = [{"a": number, "b": "é;\n]" * number, "c": [{"d": None}]} for number in range(5)]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


def written(folder, data):
    path = folder / "rows"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        LINES,
        LINES + b"\n",
        b"\xef\xbb\xbf" + LINES,
        gzip.compress(LINES),
        zstd(LINES),
        json.dumps(ROWS).encode(),
        json.dumps(ROWS, indent=2).encode(),
        gzip.compress(b"\n [" + LINES.replace(b"\n", b" , ") + b" ]\n"),
    ],
    ids=["lines", "last line break", "mark", "gzip", "zstd", "array", "indented", "gzipped array"],
)
def test_a_file_is_read_by_its_content(tmp_path, data):
    assert list(open_rows(written(tmp_path, data))) == list(enumerate(ROWS, 1))


def test_parquet_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BATCH", 2)
    pq.write_table(pa.Table.from_pylist([{"a": row["a"]} for row in ROWS]), tmp_path / "rows")
    assert list(open_rows(tmp_path / "rows")) == [(number + 1, {"a": number}) for number in range(5)]


@pytest.mark.parametrize("chunk", [1, 2, 7, 50])
def test_where_an_array_is_cut_does_not_matter(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(files, "CHUNK", chunk)
    assert list(open_rows(written(tmp_path, json.dumps(ROWS).encode()))) == list(enumerate(ROWS, 1))


def test_an_array_is_not_read_to_its_end_for_its_first_row(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 10)
    assert next(open_rows(written(tmp_path, b'[{"a": 1},\n' + b'{"b": 2},' * 5_000 + b"broken"))) == (1, {"a": 1})


def test_blank_lines_count_as_lines(tmp_path):
    assert list(open_rows(written(tmp_path, b'\n{"a": 1}\n\n{"a": 2}\n'))) == [(2, {"a": 1}), (4, {"a": 2})]


def test_a_file_without_rows_gives_none(tmp_path):
    assert list(open_rows(written(tmp_path, b" \n"))) == []
    assert list(open_rows(written(tmp_path, b"[ ]"))) == []


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        (b'{"a": 1}\n{"a": 2', "line 2", "not a JSON value"),
        (b'{"a": NaN}', "line 1", "NaN"),
        (b'[{"a": 1},\n{"a": }]', "row 2, near line 1", "not a JSON array"),
        (b'[{"a": 1} {"a": 2}]', "row 2", "expected `,`"),
        (b'[{"a": 1}', "row 2", "not a JSON array"),
        (b'[{"a": 1},', "row 2", "not a JSON array"),
        (b'[{"a": 1}] {}', "after row 1", "more text"),
        (b'{"a": "\xff"}', "rows", "0xff is not UTF-8"),
        (gzip.compress(LINES)[:-20], "rows", "damaged"),
        (zstd(LINES)[:-5], "rows", "damaged"),
        (b"PAR1 and no more", "rows", "damaged"),
        (b'{"a": ' + b"[" * 200_000, "line 1", "not a JSON value"),
        (b"[" * 200_000, "row 1", "not a JSON array"),
    ],
)
def test_a_broken_file_is_told_with_its_place(tmp_path, data, where, what):
    path = written(tmp_path, data)
    with pytest.raises(SourceError) as error:
        list(open_rows(path))
    assert str(path) in str(error.value)
    assert where in str(error.value)
    assert what in str(error.value)


def test_a_row_over_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_ROW", 20)
    monkeypatch.setattr(files, "CHUNK", 5)
    for data in (b'{"a": "%s"}', b'[{"a": "%s"}]'):
        with pytest.raises(SourceError, match=r"line 1|row 1"):
            list(open_rows(written(tmp_path, data % (b"x" * 100))))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(SourceError, match="there is no such file"):
        list(open_rows(tmp_path / "none"))


@pytest.mark.parametrize("data", [LINES, gzip.compress(LINES), json.dumps(ROWS).encode()])
def test_the_progress_comes_to_the_size(tmp_path, data):
    path, told = written(tmp_path, data), []
    list(open_rows(path, told.append))
    assert sum(told) == path.stat().st_size


def test_the_progress_of_parquet_comes_to_the_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BATCH", 3)
    told = []
    pq.write_table(pa.Table.from_pylist([{"a": 1}] * 10), tmp_path / "rows")
    list(open_rows(tmp_path / "rows", told.append))
    assert sum(told) == (tmp_path / "rows").stat().st_size
    assert len(told) == 4


REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for `datasets` that answers with what is given, and what it was asked."""

    def stand_in(answer):
        asked = {}

        def load_dataset(*names, **how):
            asked.update(names=names, **how)
            return answer()

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        return asked

    return stand_in


def test_the_hub_is_asked_for_a_fixed_revision_and_streamed(hub):
    asked = hub(lambda: iter([{"a": 1}, {"a": 2}]))
    told = []
    assert list(hub_rows("owner/name", "main", "train", REVISION, told.append)) == [(1, {"a": 1}), (2, {"a": 2})]
    assert (asked["names"], asked["revision"], asked["split"]) == (("owner/name", "main"), REVISION, "train")
    assert asked["streaming"] is True
    assert told == [1, 1]


@pytest.mark.parametrize("revision", ["", "main", "v1.0", REVISION[:-1]])
def test_a_revision_that_can_change_is_refused(hub, revision):
    hub(lambda: iter([]))
    with pytest.raises(SourceError, match="set the commit"):
        list(hub_rows("owner/name", None, "train", revision))


def test_without_a_network_it_says_what_to_put_where(hub):
    def fails():
        yield {"a": 1}
        raise ConnectionError("no route")

    hub(fails)
    rows = hub_rows("owner/name", "main", "train", REVISION)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(SourceError) as error:
        next(rows)
    for said in (
        "owner/name main",
        REVISION,
        "after row 1",
        "no route",
        "hf download owner/name",
        "under data/sources",
        "`files`",
    ):
        assert said in str(error.value)
