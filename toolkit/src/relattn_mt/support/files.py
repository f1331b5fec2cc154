"""Write files and directories completely or not at all."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from relattn_mt.support.errors import InputError, reading, reason, require, writing
from relattn_mt.support.types import AnyPath

_LEFTOVER = re.compile(r"\.relattn-[0-9a-f]{16}\.part")  # name of what a killed process may leave half-written
CAN_SYNC_DIRECTORIES = os.name != "nt"  # Windows syncs only files, which must be open for writing


@contextmanager
def putting(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` for a new file or directory, which is synced and renamed at the end.

    A link stays, and what it leads to is written. A new directory replaces an old one by two renames; between them,
    neither is at `path`. An interruption there puts the old one back.

    Raises:
        InputError: Writing failed (a full disk, no permission); what was at `path` before is kept.
    """
    given = path
    path = real_path(path) if path.is_symlink() else path
    name = f".relattn-{os.urandom(8).hex()}"  # short, even if the name of `path` has the maximum length
    aside = path.with_name(f"{name}.part")
    old = path.with_name(f"{name}.old")
    try:
        yield aside
        _sync(aside)
        if aside.is_dir():
            if path.exists():
                path.rename(old)
            aside.rename(path)
        else:
            aside.replace(path)
        _sync(path.parent, inside=False)
    except OSError as error:
        raise InputError(f"{given}: cannot be written: {reason(error)}; what was there before is kept") from error
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
        remove(old)
        remove(aside)


def is_leftover(path: Path) -> bool:
    """Return whether a file or directory is one that a killed process left half-written. `putting` gives such names."""
    return _LEFTOVER.fullmatch(path.name) is not None


def require_replaceable(path: Path, names: Sequence[str], what: str) -> None:
    """Raise an InputError unless `path` is free, or a directory with no other files than those that are replaced.

    Args:
        path: Path of the output directory.
        names: Names of the files that may be replaced. The first must be there, unless the directory is empty.
        what: Name of such a directory in messages.

    Raises:
        InputError: `path` is a file, or a directory with other files.
    """
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise InputError(f"{path}: a {what} must be a directory, got a file")
    ours = names if (path / names[0]).is_file() else []
    if other_files := sorted(each.name for each in path.iterdir() if each.name not in ours or each.is_dir()):
        raise InputError(f"{path}: not replaced, because it contains more than a {what}: {other_files[0]}")


def require_regular(*paths: AnyPath) -> None:
    """Raise an InputError if a path is a pipe or a device, which may block forever and can be read only once."""
    for path in map(Path, paths):
        special = path.exists() and not (path.is_file() or path.is_dir())
        require(not special, f"{path} must be a regular file, got a pipe or a device")


def require_unique_entries(path: Path) -> None:
    """Raise an InputError if a zip archive, such as a checkpoint of PyTorch, has two entries of one name."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        require(len({*names}) == len(names), f"{path}: damaged: it must have each entry once, got one twice")


def real_path(path: AnyPath) -> Path:
    """Return an absolute path without links. In a loop of links, where `Path.resolve` fails, they stay."""
    return Path(os.path.realpath(path))


def require_outside(path: Path, source: Path) -> None:
    """Raise an `InputError` if an output is its own source, or inside of it; links are followed."""
    outside = not real_path(path).is_relative_to(real_path(source))
    require(outside, f"{path}: must be outside of {source}, which it is made from")


def require_files(path: Path, *names: str, what: str) -> None:
    """Raise an InputError unless a directory has all these files. `what` names such a directory in messages."""
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise InputError(f"{path}: not a complete {what}: it has no {', no '.join(missing)}")


def remove(path: Path) -> None:
    """Remove a file, a link or a directory. Errors are ignored, so that they do not hide an earlier one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def read_bytes(path: AnyPath) -> bytes:
    """Return the content of a file. Raise an InputError if it cannot be read."""
    with reading(path, "cannot be read"):
        return Path(path).read_bytes()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes. Raise an InputError if it cannot be read."""
    with reading(path, "cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file with `putting`."""
    with putting(path) as aside:
        aside.write_bytes(content)


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a directory, given their contents by name."""
    for name, content in files.items():
        (directory / name).write_bytes(content)


@contextmanager
def output(path: Path) -> Iterator[Callable[[bytes | memoryview], object]]:
    """Open a file and yield a function that writes its content. A regular file is replaced with `putting`.

    A device, a pipe or a link is written directly and is not replaced.

    Raises:
        InputError: The file cannot be opened, which is known before the block runs, or cannot be written.
    """
    if path.is_symlink() or (path.exists() and not stat.S_ISREG(path.stat().st_mode)):
        with writing(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:

            def write_through(content: bytes | memoryview) -> None:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    file.truncate()
                file.write(content)

            yield write_through
        return
    with putting(path) as aside, open(aside, "wb") as file:
        yield file.write


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines of CSV."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()


def as_size(count: int) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _sync(path: Path, *, inside: bool = True) -> None:
    """Sync a file, or a directory with its files, to disk."""
    if inside and path.is_dir():
        for file in path.iterdir():
            _sync(file)
    if not CAN_SYNC_DIRECTORIES and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if CAN_SYNC_DIRECTORIES else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
