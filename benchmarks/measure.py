"""How things are measured: medians over alternating repeats, memory in a process of its own, conditions beside both.

Alternating the contestants within a repeat spreads whatever else the machine does over all of them, and the spread
(the middle half of the repeats) is reported with the median. Peak memory is what a fresh process reaches above what
it held before the work, since a process never gives its own peak back.
"""

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
from pathlib import Path

import torch


@dataclass(frozen=True)
class Timing:
    median: float  # seconds
    low: float  # first quartile, seconds
    high: float  # third quartile, seconds


def alternate(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Times each of `works`, one after the other in every repeat, after one warm-up each."""
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: summary(times) for name, times in seconds.items()}


def summary(times: Sequence[float]) -> Timing:
    if len(times) < 2:
        return Timing(times[0], times[0], times[0])
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high)


def peak_memory(prepare: Callable[..., Callable[[], object]], *arguments: object) -> int:
    """Bytes that one run of `prepare(*arguments)()` needs beyond its prepared inputs, in a fresh process.

    `prepare` and its arguments are sent to that process, so they are a module's own function and plain values.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=report_peak, args=(sender, prepare, arguments))
    process.start()
    sender.close()
    try:
        return int(receiver.recv())
    except EOFError as error:
        raise MemoryError(f"the process that measures memory died: {arguments}") from error
    finally:
        process.join()


def report_peak(sender, prepare: Callable[..., Callable[[], object]], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    work = prepare(*arguments)
    before = resident()
    work()
    sender.send(max(0, highest() - before))
    sender.close()


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


def available_memory() -> int:
    """Bytes of memory the machine can give, by its own account."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def conditions() -> dict[str, str]:
    """What a number means nothing without: commit, processor, threads, versions."""
    return {
        "commit": commit(),
        "device": processor(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str:
    """The checkout's commit, with a plus where files differ from it; "none" outside a checkout."""
    here = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() if described.returncode == 0 else "none"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
