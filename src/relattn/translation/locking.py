"""A directory in which one process works at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from relattn.translation.errors import InputError
from relattn.translation.files import PART, remove

LOCK = ".lock"  # stays where a process is killed


@contextmanager
def locked(directory: Path, doing: str) -> Iterator[None]:
    """Keep a second process out of a directory; the lock ends with this one, however it ends.

    The directory is made where there is none, and goes again if nothing came into it. What a process that was killed
    left half-written there is taken away.

    Args:
        directory: the place.
        doing: what a process does with it.

    Raises:
        InputError: another process has it.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK, timeout=0)
    try:
        try:
            lock.acquire()
        except Timeout as error:
            raise InputError(f"{directory}: another process is {doing}") from error
        try:
            for part in [*directory.glob(PART), *directory.glob(f"*/{PART}")]:
                remove(part)
            yield
        finally:
            remove(directory / LOCK)  # while it is held: one who waits for it sees that it is gone
            lock.release()
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()  # none that holds anything
