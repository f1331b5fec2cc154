"""Writing so that a file or a directory is either there in full or not there at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from relattn.translation.errors import InputError, reason, require

PART = ".*.part"  # what a process that is killed may leave in a directory


@contextmanager
def putting(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to make a file or a directory at; at the end it is synced and renamed into place.

    A directory takes the place of another that was there, and a moment without either lies between two renames.

    Raises:
        InputError: it cannot be written (a full disk, no permission); what stood at `path` before still does.
    """
    name = f".{uuid.uuid4().hex[:16]}"  # whatever the length of the other's
    aside, old = path.with_name(f"{name}.part"), path.with_name(f"{name}.old")
    try:
        yield aside
        _sync(aside)
        if aside.is_dir():
            _swap(aside, path, old)
        else:
            aside.replace(path)
        _sync(path.parent, inside=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}; what was there before is kept") from error
    finally:
        remove(old)
        remove(aside)


def require_replaceable(path: Path, names: Collection[str], what: str) -> None:
    """Refuse a place that holds anything but a directory of these files, all or some of them.

    Args:
        path: the place; nothing may be there, or an empty directory.
        names: of the files.
        what: such a directory is called.

    Raises:
        InputError: something else stands there.
    """
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise InputError(f"{path}: a file stands there; a {what} is a directory")
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in names)
    if strangers:
        raise InputError(f"{path}: not overwritten, for it holds more than a {what}: {strangers[0]}")


def require_outside(path: Path, source: Path) -> None:
    """Raise an `InputError` if an output is its own source, or inside of it; links are followed."""
    outside = not path.resolve().is_relative_to(source.resolve())
    require(outside, f"{path}: must be outside of {source}, which it is made from")


def require_files(path: Path, *names: str, what: str) -> None:
    """Refuse, by an InputError, a directory that has not all of some files; `what` such a directory is called."""
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise InputError(f"{path}: not a complete {what}: it has no {', no '.join(missing)}")


def _swap(aside: Path, path: Path, old: Path) -> None:
    """Put the directory `aside` at `path`; what stood there is at `old` then, or where it was if that fails."""
    had_one = path.exists()
    if had_one:
        path.rename(old)
    try:
        aside.rename(path)
    except OSError:
        if had_one:
            old.rename(path)
        raise


def remove(path: Path) -> None:
    """Take away a file, a link or a directory, as far as it can be; an error here must not hide one that led here."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file as `putting` does."""
    with putting(path) as aside:
        aside.write_bytes(content)


@contextmanager
def output(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Open a file for what is to come and yield what writes it, all at once; a file is replaced as `putting` does.

    What is not a regular file (a device, a pipe, a link) is written through and stays what it is.

    Raises:
        InputError: it cannot be opened, told before anything else is done, or not be written.
    """
    if path.is_symlink() or (path.exists() and not stat.S_ISREG(path.stat().st_mode)):
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:

                def through(content: bytes) -> None:
                    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        file.truncate()
                    file.write(content)

                yield through
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {reason(error)}") from error
        return
    with putting(path) as aside, open(aside, "wb") as file:
        yield file.write


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines of CSV."""
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue()


def as_size(count: int) -> str:
    """A number of bytes, as it is told."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _sync(path: Path, *, inside: bool = True) -> None:
    """Make a file or a directory durable, with the files in a directory."""
    if inside and path.is_dir():
        for file in path.iterdir():
            _sync(file)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
