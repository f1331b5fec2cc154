"""Lock a directory, so that one process at a time works in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from relattn_mt.support.errors import InputError
from relattn_mt.support.files import is_leftover, remove

LOCK = ".relattn.lock"  # file name; a killed process leaves it


@contextmanager
def locked(directory: Path, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Lock a directory until the block or the process ends, and remove files that a killed process left half-written.

    The directory is created if necessary. With `wait`, a process waits until the directory is free. Without it, the
    directory is removed at the end if it was created and is empty.

    Raises:
        InputError: Another process has locked it, and `wait` is False.
    """
    created = [] if wait else [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / LOCK, timeout=-1 if wait else 0):
            try:
                for path in filter(is_leftover, [*directory.glob(".*"), *directory.glob("*/.*")]):
                    remove(path)
                yield
            finally:
                remove(directory / LOCK)  # before it is released, so that a waiting process sees that it is gone
    except Timeout as error:
        raise InputError(f"{directory}: another process is {doing}") from error
    finally:
        for path in created:
            with suppress(OSError):  # not empty
                path.rmdir()
