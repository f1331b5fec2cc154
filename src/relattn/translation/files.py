"""Writing a file so that it is either there in full or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

from relattn.translation.errors import InputError


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside `path`, sync it to disk, then rename it into place.

    Raises:
        InputError: the file cannot be written (a full disk, no permission); what stood at `path` before still does.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; what was there before is kept") from error
    finally:
        aside.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make a rename inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
