"""How things are measured: medians over alternating repeats, memory in a process of its own, conditions beside both.

Alternating the contestants within a repeat spreads whatever else the machine does over all of them, and the spread
(the middle half of the repeats) is reported with the median. Peak memory is what a fresh process reaches above what
it held before the work, since a process never gives its own peak back.
"""

import csv
import ctypes
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from relattn.translation import processor

MOST_REPEATS = 50
LONG = 1.0  # seconds from which a first run is as good as any
PROCESSES = multiprocessing.get_context("forkserver")  # forks of one that has imported what is preloaded, and no more


@dataclass(frozen=True)
class Timing:
    median: float  # seconds
    low: float  # first quartile, seconds
    high: float  # third quartile, seconds
    repeats: int


def alternate(
    works: dict[str, Callable[[], Any]],
    repeats: int,
    seconds: float = 0.0,
    clock: Callable[[Callable[[], Any]], float | None] | None = None,
) -> dict[str, Timing]:
    """Times each of `works`, one after the other in every round, after one warm-up each.

    Each gets `repeats` rounds, and up to `MOST_REPEATS` while they take no more than `seconds`; those of the quick are
    spread over those of the slow. A warm-up of `LONG` seconds or more is the first repeat. `clock` runs one and gives
    its seconds, by default those on the wall, or None where it failed: then it runs no more and has no timing.
    """
    clock = measured if clock is None else clock
    taken: dict[str, list[float]] = {}
    rounds = {}
    for name, work in works.items():
        first = clock(work)
        if first is None:
            continue
        taken[name] = []
        rounds[name] = max(repeats, min(MOST_REPEATS, int(seconds / first)))
        if first >= LONG:
            taken[name].append(first)
            rounds[name] -= 1
    most = max(rounds.values(), default=0)
    for turn in range(most):
        for name in list(taken):
            if turn * rounds[name] // most < (turn + 1) * rounds[name] // most:
                time_taken = clock(works[name])
                if time_taken is None:
                    del taken[name]
                else:
                    taken[name].append(time_taken)
    return {name: summary(times) for name, times in taken.items()}


def measured(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def summary(times: Sequence[float]) -> Timing:
    if len(times) < 2:
        return Timing(times[0], times[0], times[0], len(times))
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times))


def apart(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function returns in a fresh process, with as many threads as here.

    It and its arguments are sent to that process and the result comes back: a module's own function, plain values.

    Raises:
        MemoryError: the process died, whatever of.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=answer, args=(sender, torch.get_num_threads(), function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise MemoryError(f"a process of its own died: {arguments}") from error
    finally:
        process.join()


def answer(sender: Connection, threads: int, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(threads)
    sender.send(function(*arguments))
    sender.close()


def peak_memory(prepare: Callable[..., Callable[[], object]], small: tuple, arguments: tuple) -> int:
    """Bytes that one run of `prepare(*arguments)()` needs beyond its prepared inputs, in a fresh process.

    A run with the arguments `small` comes first, since a first call loads much that is no part of the work.
    """
    return int(apart(prepared_peak, prepare, small, arguments))


def preload(modules: Sequence[str]) -> None:
    """Has the fresh processes start with these imported, which saves seconds each."""
    PROCESSES.set_forkserver_preload([__name__, *modules])


def prepared_peak(prepare: Callable[..., Callable[[], object]], small: tuple, arguments: tuple) -> int:
    prepare(*small)()
    return peak_here(prepare(*arguments))


def peak_here(work: Callable[[], object]) -> int:
    """Bytes that a run needs beyond what this process holds; in one that has held no more before."""
    settle()
    before = resident()
    work()
    return max(0, highest() - before)


def settle() -> None:
    """Gives back freed memory and sets the peak to what is held now, where the system can: imports have used some."""
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(0)
    counters = Path("/proc/self/clear_refs")
    if counters.exists():
        counters.write_text("5")


def highest() -> int:
    """Bytes of memory this process has held at most. Linux's own count, since `getrusage` inherits the parent's."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident() -> int:
    """Bytes of memory this process holds now; its peak so far where the system does not say."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return highest()


def family(pid: int) -> list[int]:
    """A process and all that came of it, while they are there; Linux."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(found for child in " ".join(lists).split() for found in family(int(child)))]


def available_memory() -> int:
    """Bytes of memory the machine can give, by its own account."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def keep(path: Path, rows: Sequence[dict[str, object]], key: Sequence[str]) -> None:
    """Puts rows into a CSV, which has their columns, in the place of those with the same `key` or at the end."""
    held: dict[tuple[str, ...], dict[str, object]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            held = {tuple(str(row.get(name)) for name in key): dict(row) for row in csv.DictReader(file)}
    held |= {tuple(str(row[name]) for name in key): row for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(held.values())
    aside.replace(path)


def conditions() -> dict[str, str]:
    """What a number means nothing without: commit, processor, threads, versions."""
    return {
        "commit": commit(),
        "device": processor.describe(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str:
    """The checkout's commit, with a plus where files differ from it; "none" outside a checkout and without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        described = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "none"
    return described.stdout.strip() if described.returncode == 0 else "none"
