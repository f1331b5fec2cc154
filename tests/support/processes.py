"""Processes and their descendants, for tests that kill them."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return the id of a process and the ids of its descendants."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(each for child in " ".join(lists).split() for each in family(int(child)))]


def kill_family(pid: int) -> None:
    """Kill a process and its descendants, which may have sessions of their own."""
    for each in family(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
