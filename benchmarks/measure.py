"""Common parts of the benchmarks: timing, peak memory, conditions, and CSV files of results.

Methods that are compared run alternately, so that other load on the machine affects all. Peak memory is measured in a
new process, since the peak of a process never decreases. Nothing here imports `relattn`: `benchmarks.against` chooses
which version to import.
"""

import argparse
import csv
import ctypes
import datetime
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
from relattn.backends.native.library import KERNELS

RESULTS = Path(__file__).parent / "results"
MOST_REPEATS = 50
LONG = 1.0  # seconds; a warm-up run that takes longer counts as a repeat
PROCESSES = multiprocessing.get_context("forkserver")  # new processes that share only the preloaded imports
CPUINFO = Path("/proc/cpuinfo")
Name = TypeVar("Name", bound=Hashable)
Row = dict[str, Any]  # a row of a CSV file


@dataclass(frozen=True)
class Timing:
    median: float  # seconds
    low: float  # first quartile, seconds
    high: float  # third quartile, seconds
    repeats: int

    def columns(self) -> Row:
        """Return the columns of a row of results."""
        ms = {"ms": self.median, "ms low": self.low, "ms high": self.high}
        return {**{name: round(1e3 * value, 4) for name, value in ms.items()}, "repeats": self.repeats}


def alternate(
    works: dict[Name, Callable[[], Any]],
    repeats: int,
    seconds: float = 0.0,
    clock: Callable[[Callable[[], Any]], float] | None = None,
) -> dict[Name, Timing]:
    """Time functions alternately, after one warm-up run each.

    Args:
        works: Functions to time, by name.
        repeats: Minimum number of timed runs per function.
        seconds: Fast functions are repeated up to this total time, and at most `MOST_REPEATS` times. Their runs are
            spread over those of slow functions.
        clock: Function that runs another and returns its time in seconds. By default `measured`.
    """
    clock = clock or measured
    taken: dict[Name, list[float]] = {}
    rounds = {}
    for name, work in works.items():
        first = clock(work)
        rounds[name] = max(repeats, min(MOST_REPEATS, int(seconds / first)))
        taken[name] = [first] if first >= LONG else []
        rounds[name] -= len(taken[name])
    most = max(rounds.values(), default=0)
    for turn in range(most):
        for name, work in works.items():
            if turn * rounds[name] // most < (turn + 1) * rounds[name] // most:
                taken[name].append(clock(work))
    return {name: summary(times) for name, times in taken.items()}


def measured(work: Callable[[], object]) -> float:
    """Run a function and return its wall-clock time in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def summary(times: Sequence[float]) -> Timing:
    """Return the median and the quartiles of times in seconds."""
    if len(times) < 2:
        return Timing(times[0], times[0], times[0], len(times))
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times))


def context() -> Any:
    """Return how new processes start. CUDA does not survive a fork."""
    return multiprocessing.get_context("spawn") if torch.cuda.is_available() else PROCESSES


def apart(function: Callable[..., Any], *arguments: object, seconds: float | None = None) -> Any:
    """Call a function in a new process with the same number of threads, and return its result.

    The function must be defined at module level. Arguments and result are pickled.

    Raises:
        MemoryError: The process died.
        TimeoutError: The process had no result after `seconds`. It was killed.
    """
    receiver, sender = context().Pipe(duplex=False)
    arguments = (sender, torch.get_num_threads(), function, arguments)
    process = context().Process(target=answer, args=arguments, daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            process.kill()
            raise TimeoutError("no answer in time")
        return receiver.recv()
    except EOFError as error:
        raise MemoryError("its process died") from error
    finally:
        process.join(5.0)  # a process that hangs in the GPU's driver never ends


def answer(sender: Connection, threads: int, function: Callable[..., Any], arguments: tuple) -> None:
    """Call a function and send its result; runs in the process of `apart`."""
    torch.set_num_threads(threads)
    sender.send(function(*arguments))
    sender.close()


def preload(modules: Sequence[str]) -> None:
    """Import modules once for all new processes, which saves seconds per process."""
    PROCESSES.set_forkserver_preload([__name__, *modules])


def peak_memory(prepare: Callable[..., Callable[[], object]], small: tuple, arguments: tuple) -> int:
    """Return the bytes that `prepare(*arguments)()` needs beyond its prepared inputs, in a new process.

    The process first runs with the arguments `small`, since a first call loads libraries.
    """
    return int(apart(prepared_peak, prepare, small, arguments))


def prepared_peak(prepare: Callable[..., Callable[[], object]], small: tuple, arguments: tuple) -> int:
    """Measure `peak_memory` in this process."""
    prepare(*small)()
    return peak_here(prepare(*arguments))


def peak_here(work: Callable[[], object]) -> int:
    """Run a function, and return the bytes it needs beyond what this process holds.

    On systems without Linux's counters, a result is too small if the process used more memory before the call.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(0)  # return freed memory to the system
    counters = Path("/proc/self/clear_refs")
    if counters.exists():
        counters.write_text("5")  # reset the peak to the current size
    before = resident()
    work()
    return max(0, highest() - before)


def field_in_bytes(path: str, name: str) -> int | None:
    """Return a field of a file of /proc whose unit is kB; None if there is none."""
    for line in Path(path).read_text().splitlines() if Path(path).exists() else ():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None


def highest() -> int:
    """Return the peak memory of this process in bytes."""
    peak = field_in_bytes("/proc/self/status", "VmHWM")  # getrusage includes the parent's peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if peak is None else peak


def resident() -> int:
    """Return the memory of this process in bytes; its peak if the system does not report the current size."""
    current = field_in_bytes("/proc/self/status", "VmRSS")
    return highest() if current is None else current


def available_memory() -> int:
    """Return the memory in bytes that the system can still provide; without Linux's estimate, all of it."""
    available = field_in_bytes("/proc/meminfo", "MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if available is None else available


def command(module: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command, with the docstring of its module as the description."""
    prog, style = f"python -m benchmarks.{module}", argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=prog, description=about, formatter_class=style)


def parse(
    parser: argparse.ArgumentParser, results: str = "", flags: Sequence[str] | None = None, threads: int = 0
) -> argparse.Namespace:
    """Parse the command line of a command that writes rows. Print its conditions and return them as an attribute.

    Options ``--threads`` and ``--commit`` are added. The command ends here if no commit could reproduce its rows.

    Args:
        parser: Parser with the other options.
        results: Name of the default CSV file of an additional option ``--out``. Empty: no such option.
        flags: Command line. By default that of this process.
        threads: Default of ``--threads``. 0: PyTorch's default.
    """
    if results:
        parser.add_argument("--out", type=Path, default=RESULTS / results, help="CSV file of the rows (%(default)s)")
    default = threads or torch.get_num_threads()
    parser.add_argument("--threads", type=int, default=default, help="threads of PyTorch (%(default)s)")
    parser.add_argument("--commit", help="text for the column `commit` (default: the commit of this checkout)")
    arguments = parser.parse_args(flags)
    if arguments.commit is None and (changed := uncommitted()):
        parser.exit(
            2,
            f"{parser.prog}: the sources and benchmarks must have no uncommitted changes, got {', '.join(changed[:3])}"
            f"{', …' * (len(changed) > 3)}; commit them, or name the state of the tree with --commit TEXT\n",
        )
    torch.set_num_threads(arguments.threads)
    arguments.conditions = conditions(arguments.commit)
    print(text_of(arguments.conditions))
    return arguments


def uncommitted() -> list[str]:
    """Return the changed and untracked files of the sources and benchmarks. Results do not count."""
    folders = "library/src", "toolkit/src", "kernels", "benchmarks", ":!benchmarks/results"
    status = git("status", "--porcelain", "--untracked-files=all", "--", *folders)
    return [line[3:] for line in status.splitlines()]


def commit() -> str:
    """Return the commit of this checkout, with a + if `uncommitted`; "none" outside a checkout or without git."""
    described = git("describe", "--always", "--abbrev=10").strip()
    return described + "+" * bool(uncommitted()) if described else "none"


def git(*arguments: str) -> str:
    """Return the output of a git command at the root of this tree; empty if it fails."""
    command = ["git", *arguments]
    try:
        return subprocess.run(command, cwd=RESULTS.parents[1], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def conditions(text: str | None = None) -> dict[str, str]:
    """Return the columns of every row: date, commit (by default of this checkout), processor, threads and versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit() if text is None else text,
        "device": processor(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str:
    """Return the processor's name, family, instruction set in use, and number of cores.

    For example "AMD EPYC (family 26, AVX-512), 2 cores". Intel's family is always 6, so the number of the model follows
    it. ATEN_CPU_CAPABILITY changes the instruction set of PyTorch, and RELATTN_LEVEL that of our kernels. They must
    agree.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    kernels = KERNELS.get(torch.float32)
    if kernels and (capability == "AVX512") != (kernels.level == "avx512"):
        raise SystemExit("ATEN_CPU_CAPABILITY and RELATTN_LEVEL must select the same instruction set")
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or platform.processor() or platform.machine()
    family = fields.get("cpu family")
    details = [f"family {family}"] if family else []
    if family == "6":
        details.append(f"model {fields['model']}")
    details.append(capability.replace("AVX512", "AVX-512"))
    return f"{name.partition(' @')[0]} ({', '.join(details)}), {os.cpu_count()} cores"


def text_of(row: Row, columns: Sequence[str] = ()) -> str:
    """Return a row of results, or some of its columns, as one line of text."""
    return "  ".join(f"{name} {row[name]}" for name in columns or row)


def record(
    arguments: argparse.Namespace, rows: Sequence[Row], key: Sequence[str], shown: Sequence[str] | None = ()
) -> None:
    """Print rows, and write them with the conditions to the file of `parse`.

    They replace rows with the same `key`, processor and number of threads. The file gets the columns of `rows`. Only
    the columns `shown` are printed, by default all, and with None nothing.
    """
    key = (*key, "device", "threads")
    kept: dict[tuple[str, ...], Row] = {}
    if arguments.out.exists():
        with arguments.out.open(newline="", encoding="utf-8") as file:
            kept = {tuple(str(row.get(name)) for name in key): dict(row) for row in csv.DictReader(file)}
    for row in rows:
        if shown is not None:
            print(text_of(row, shown), flush=True)
        whole = {**row, **arguments.conditions}
        kept[tuple(str(whole[name]) for name in key)] = whole
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = arguments.out.with_suffix(".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0] | arguments.conditions), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())
    temporary.replace(arguments.out)
