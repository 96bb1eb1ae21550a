"""Publish a file or a folder whole or not at all: write beside it, sync, rename.

Three libraries report a full disk in three ways; all become one `DiskFullError` that names the place and the remedy.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.umask(MASK := os.umask(0))  # what the user keeps from others; it can only be read by setting it


class DiskFullError(OSError):
    """No space left where an artifact was to be written; nothing half-written is left behind."""


def _is_disk_full(error: BaseException) -> bool:
    """pyarrow raises OSError 28, safetensors a SafetensorError and polars a ComputeError with that text."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error)
    return "os error 28" in text or "No space left on device" in text


class ReadOnlyError(OSError):
    """An artifact's folder that cannot be written to."""


@contextmanager
def disk_full_at(target: Path) -> Iterator[None]:
    """Turn a full disk, whatever library met it while writing `target`, into DiskFullError; other errors pass."""
    try:
        yield
    except BaseException as error:
        if _is_disk_full(error):
            raise DiskFullError(
                errno.ENOSPC, f"disk full while writing {target}: free some space (`dvc gc -w`), then run again"
            ) from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def publish(target: Path) -> Iterator[Path]:
    """Give a temporary path (not yet existing) to write a file or a folder to; on success it becomes `target`.

    An existing target is replaced, never edited: it may be a read-only hard link into DVC's cache. Raises DiskFullError on
    a full disk, whatever library met it, and ReadOnlyError where nothing may be written; any other error passes through. On
    an error `target` is as it was.
    """
    with disk_full_at(target):
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove(temporary)
            temporary.touch()
            temporary.unlink()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            said = f"{target} cannot be written ({error.strerror}): make its folder writable, then run again"
            raise ReadOnlyError(error.errno, said) from error
        try:
            yield temporary
            for path in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
                if not path.is_symlink():  # safetensors' files come as the owner's alone
                    path.chmod((0o777 if path.is_dir() else 0o666) & ~MASK)
                _sync(path)
            if temporary.is_dir() or target.is_dir():
                _remove(target)
            temporary.rename(target)
            _sync(target.parent)
        except BaseException:
            _remove(temporary)
            raise


def publish_text(target: Path, text: str) -> None:
    """Publish a UTF-8 text file."""
    with publish(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
