"""Finished rows outlive a kill: moat/journal.py."""

import errno
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.journal import Journal, JournalError
from moat.publish import DiskFullError

BATCHES = [{"a": [1, 2], "b": "x"}, {"c": None}, {"d": 0.1}]


def filled(folder, batches=BATCHES):
    journal = Journal(folder)
    for batch in batches:
        journal.add(batch)
    journal.close()
    return folder / "0.jsonl"


def known(folder):
    journal = Journal(folder)
    return {key for batch in BATCHES for key in batch if key in journal}


def test_what_was_added_is_there_at_once_and_later(tmp_path):
    """In the same journal, and in one opened afterwards, value for value."""
    filled(tmp_path)
    journal = Journal(tmp_path)
    assert {key: journal[key] for key in "abcd"} == {"a": [1, 2], "b": "x", "c": None, "d": 0.1}
    assert "e" not in journal


@given(st.data())
def test_any_torn_end_costs_only_the_last_batch(tmp_path_factory, data):
    """However many bytes of the last line a kill left, the lines before it are read, and the next batch is added soundly."""
    folder = tmp_path_factory.mktemp("journal")
    path = filled(folder)
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: data.draw(st.integers(last, len(whole) - 1))])
    assert known(folder) == {"a", "b", "c"}
    filled(folder, [{"d": 0.1}])
    assert known(folder) == {"a", "b", "c", "d"}
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"00000000", b"\xff", b"{"], ids=["checksum", "bytes", "no checksum"])
def test_a_damaged_line_in_the_middle_names_the_file_the_line_and_the_remedy(tmp_path, damage):
    """A torn end comes from a kill; damage before the end from a disk, and is told."""
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = damage + lines[1][len(damage) :]
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=r"0\.jsonl, line 2 is damaged: delete the file; its rows are then asked again"):
        Journal(tmp_path)


def test_a_wrong_value_does_not_pass_for_the_right_one(tmp_path):
    """A flipped digit is no JSON error; the checksum tells."""
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"[1,2]", b"[1,3]"))
    with pytest.raises(JournalError, match="line 1"):
        Journal(tmp_path)


def test_two_writers_have_a_file_each(tmp_path):
    """Two experiments that share a folder never write one file, and a later run reads both."""
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.add({"a": 1})
    second.add({"b": 2})
    first.add({"c": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl"]
    assert known(tmp_path) == {"a", "b", "c"}
    first.close()
    second.close()
    filled(tmp_path, [{"d": 4}])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_batch_is_on_the_disk_when_add_returns(tmp_path):
    """SIGKILL right after `add` loses nothing."""
    code = (
        "import os, signal, sys; from pathlib import Path; from moat.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); journal.add({'a': 1}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert known(tmp_path) == {"a"}


@pytest.mark.trap(60)
def test_a_full_disk_is_told_with_its_place(tmp_path, monkeypatch):
    """ENOSPC while a batch is written becomes DiskFullError, which names the journal; what was there stays."""
    filled(tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=f"disk full while writing {tmp_path}"):
        Journal(tmp_path).add({"e": 1})
    monkeypatch.undo()
    assert known(tmp_path) == {"a", "b", "c", "d"}


def test_lines_are_plain_json(tmp_path):
    """A checksum, a blank, and JSON that any tool reads."""
    path = filled(tmp_path)
    assert [json.loads(line.split(" ", 1)[1]) for line in path.read_text().splitlines()] == BATCHES
