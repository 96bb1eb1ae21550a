"""Files and folders that appear whole or not at all: moat/publish.py."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.exceptions import ComputeError
from safetensors import SafetensorError

from moat.publish import DiskFullError, ReadOnlyError, publish, publish_text

FULL = {
    "pyarrow": OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "polars": ComputeError("No space left on device (os error 28)"),
}
OTHERS = [OSError(errno.EACCES, "Permission denied"), ValueError("28"), KeyboardInterrupt(), ComputeError("bad value")]


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "planner" / "1"


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_file_appears_at_the_end(target):
    """Until the block ends there is only the temporary file, on the same file system, and after it only the target."""
    with publish(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert not target.exists()
    assert content(target.parent) == {"1": b"new"}


def test_a_folder_replaces_the_old_one(target):
    """Nothing of the old folder stays, hidden files and subfolders included."""
    for names in (("old", "both", ".hidden", "sub/old"), ("both", "sub/new")):
        with publish(target) as temporary:
            for name in names:
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).write_text(names[0])
    assert content(target.parent) == {"1/both": b"both", "1/sub/new": b"both"}


def test_a_file_may_replace_a_folder(target):
    """The target's kind is the new one's."""
    with publish(target) as temporary:
        temporary.mkdir()
    publish_text(target, "new")
    assert content(target.parent) == {"1": b"new"}


@pytest.mark.parametrize("error", [*FULL.values(), *OTHERS], ids=repr)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_error_leaves_the_old_target(target, kind, error):
    """Half-written and failed: the old bytes are there, and nothing else."""

    def fill(path, text):
        if kind == "folder":
            path.mkdir()
            path = path / "weights"
        path.write_text(text)

    with publish(target) as temporary:
        fill(temporary, "old")
    before = content(target.parent)

    def fail():
        with publish(target) as temporary:
            fill(temporary, "half")
            raise error

    with pytest.raises((type(error), DiskFullError)):
        fail()
    assert content(target.parent) == before


def test_a_writer_that_writes_nothing_is_an_error(target):
    """The old target stays, and no empty one appears."""
    publish_text(target, "old")
    with pytest.raises(FileNotFoundError), publish(target):
        pass
    assert content(target.parent) == {"1": b"old"}


def test_what_an_earlier_crash_left_is_not_mixed_in(target):
    """A temporary folder of a killed process with the same id is emptied first."""
    with publish(target) as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("a")
    temporary.mkdir()
    (temporary / "stale").write_text("stale")
    with publish(target) as temporary:
        temporary.mkdir()
        (temporary / "b").write_text("b")
    assert content(target.parent) == {"1/b": b"b"}


def test_text_is_utf8_with_plain_line_ends(target):
    """Equal bytes on every machine."""
    publish_text(target, "a\nä → €\n")
    assert target.read_bytes() == "a\nä → €\n".encode()


# --- DVC's links ------------------------------------------------------------------------------------------------------


@pytest.mark.trap(53)
@pytest.mark.parametrize("link", ["hardlink", "symlink"])
def test_a_link_into_the_cache_is_replaced_and_never_edited(tmp_path, target, link):
    """DVC's outputs may be read-only links: the new bytes stand at the target, the old ones in the cache."""
    cache = tmp_path / "cache"
    cache.write_text("old")
    cache.chmod(0o444)
    target.parent.mkdir(parents=True)
    target.hardlink_to(cache) if link == "hardlink" else target.symlink_to(cache)
    publish_text(target, "new")
    assert (cache.read_text(), target.read_text(), target.is_symlink()) == ("old", "new", False)


@pytest.mark.trap(53)
@pytest.mark.parametrize("link", ["hardlink", "symlink"])
def test_a_folder_of_links_is_replaced_and_never_edited(tmp_path, target, link):
    """The same for a model folder: linked file by file, or as a whole."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "weights").write_text("old")
    (cache / "weights").chmod(0o444)
    target.parent.mkdir(parents=True)
    if link == "hardlink":
        target.mkdir()
        (target / "weights").hardlink_to(cache / "weights")
    else:
        target.symlink_to(cache)
    with publish(target) as temporary:
        temporary.mkdir()
        (temporary / "weights").write_text("new")
    assert (content(cache), content(target)) == ({"weights": b"old"}, {"weights": b"new"})


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.trap(60)
@pytest.mark.parametrize("library", FULL)
def test_every_face_of_a_full_disk_is_one_error(target, library):
    """The error names the place and the remedy, keeps what the library said, and is an OSError of ENOSPC."""
    with pytest.raises(DiskFullError, match=r"planner/1.*dvc gc") as caught, publish(target) as temporary:
        temporary.write_text("half")
        raise FULL[library]
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.__cause__ is FULL[library]
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_place_that_cannot_be_written_is_named(target, monkeypatch, number):
    """The artifact, not the temporary file beside it, and what to do, before anything is made."""
    monkeypatch.setattr(Path, "touch", lambda path: (_ for _ in ()).throw(OSError(number, os.strerror(number), str(path))))
    with (
        pytest.raises(ReadOnlyError, match=r"planner/1 cannot be written .*make its folder writable") as caught,
        publish(target),
    ):
        pytest.fail("written to")
    assert caught.value.errno == number
    assert ".tmp" not in str(caught.value)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_any_other_error_passes_through(target, error):
    """Only a full disk is renamed."""
    with pytest.raises(type(error)) as caught, publish(target) as temporary:
        temporary.write_text("half")
        raise error
    assert caught.value is error


@pytest.mark.trap(60)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    "write",
    [
        lambda path: pq.write_table(pa.table({"a": list(range(100_000))}), path),
        lambda path: pl.DataFrame({"a": list(range(100_000))}).write_parquet(path),
        lambda path: Path(path).write_text("text"),
    ],
    ids=["pyarrow", "polars", "plain"],
)
def test_a_device_that_is_full_is_told(target, write):
    """The libraries themselves, writing to the device on which every write fails for want of space."""
    with pytest.raises(DiskFullError), publish(target) as temporary:
        temporary.symlink_to("/dev/full")
        write(temporary)
    assert list(target.parent.iterdir()) == []


# --- a disk that is really full ---------------------------------------------------------------------------------------

FILL = """
import sys
from pathlib import Path
import numpy as np
import polars as pl
from moat.journal import Journal
from moat.publish import DiskFullError, ReadOnlyError, publish, publish_text
from moat.schemas.scores import SCORES

place = Path(sys.argv[1])
publish_text(place / "kept.txt", "kept")
noise = np.random.default_rng(0)
rows = [{"task_id": noise.bytes(16).hex(), "k": 0, "nll": noise.random(), "ppl": 1.0, "n_action_tokens": 1} for _ in range(20_000)]

def journal():
    book = Journal(place / "journal")
    for number in range(100):
        book.add({str(number): noise.bytes(8_000).hex()})

def tensors():
    from safetensors.numpy import save_file
    with publish(place / "model.safetensors") as temporary:
        save_file({"w": noise.random(200_000)}, temporary)

def frame():
    with publish(place / "frame.parquet") as temporary:
        pl.DataFrame(rows).write_parquet(temporary)

for write in (lambda: SCORES.write(place / "scores.parquet", rows, {}), lambda: publish_text(place / "kept.txt", "x" * 10**6), tensors, frame, journal):
    try:
        write()
    except DiskFullError as error:
        print("full", error)
    else:
        sys.exit("no error")
print(sorted(path.name for path in place.iterdir()), (place / "kept.txt").read_text(), len(Journal(place / "journal")._answers) > 0)
"""  # noqa: E501


@pytest.mark.trap(60)
def test_a_full_disk_is_one_error_and_leaves_nothing_torn(tmp_path, root):
    """On a file system of 256 KiB: a table, a text, a model, a frame and a journal each raise DiskFullError.

    What stood there stays whole, no temporary file is left, and the journal's batches before the full disk are read.
    """
    script = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    if sys.platform != "linux" or subprocess.run([*mount[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no user mount a small file system (unshare --map-root-user --mount)")
    done = subprocess.run(
        [*mount, "sh", str(tmp_path), sys.executable, FILL],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *errors, left = done.stdout.splitlines()
    assert len(errors) == 5
    assert all("disk full while writing" in line and "free some space" in line for line in errors)
    assert left == "['journal', 'kept.txt'] kept True"


def test_what_is_published_may_be_read_by_those_whom_the_user_lets(tmp_path):
    """Some libraries write files that their owner alone may read; another user's server could not load them."""
    with publish(tmp_path / "model") as temporary:
        (temporary / "part").mkdir(parents=True)
        for path in (temporary / "weights", temporary / "part" / "more"):
            path.touch(mode=0o600)
    mask = os.umask(0)
    os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").rglob("*") if path.is_file()} == {0o666 & ~mask}
    assert (tmp_path / "model" / "part").stat().st_mode & 0o777 == 0o777 & ~mask
