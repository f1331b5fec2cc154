"""The Triton kernels on one NVIDIA GPU: whether they are correct, their time and memory, and training with them.

    python -m benchmarks.gpu check --out DIR   # every kernel against the reference in float64
    python -m benchmarks.gpu time --out DIR    # attention: ours, PyTorch's, other libraries'
    python -m benchmarks.gpu train --out DIR   # training steps, with relative positions and with sinusoids

Rows are written into DIR as they are made. Each piece of work runs in another process, so that one that hangs or breaks
its device loses only its own rows. What does not fit into `--minutes` is left out, and the output says so. The exit
code is 1 if a check failed or something could not run, and 2 without a GPU.

With `--device cpu` and TRITON_INTERPRET=1 in the environment this is a rehearsal: the same code on tiny sizes, in this
process. Its figures mean nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_check, gpu_times, gpu_train
from benchmarks.measure import conditions, keep, preload
from benchmarks.workers import LEFT_OUT, Failure, Task, reason, run_all
from relattn.backends.triton import interpreted

FILES = {"check": "checks-gpu.csv", "time": "attention-gpu.csv", "train": "train-step-gpu.csv"}
KEYS = {"check": ("check",), "time": gpu_times.KEY, "train": gpu_train.KEY}
PATIENCE = {"check": 120.0, "time": 400.0, "train": 600.0}  # seconds for a task, with compilation
Row = dict[str, Any]


def tasks(command: str, device: str) -> dict[str, Task]:
    """Return what a command does, by name, the most important first."""
    if command == "check":
        return gpu_check.tasks(device)
    if command == "train":
        return {
            f"{size}{', compiled' * c}": (gpu_train.time_steps, (size, c, device))
            for size, c in gpu_train.models(device)
        }
    return {str(case): (gpu_times.time_case, (case, methods, device)) for case, methods in gpu_times.cases(device)}


def results(planned: dict[str, Task], command: str, device: str, stop: float) -> Iterator[tuple[str, Any]]:
    """Run tasks until `stop`, on the monotonic clock, and return their names and results, or a `Failure`.

    If a case cannot be timed, its methods are timed alone, each in a new process.
    """
    names, processes = list(planned), min(12, os.cpu_count() or 1) if command == "check" else 1
    if device == "cpu":
        yield from ((name, run_here(*task)) for name, task in planned.items())
        return
    for index, result in run_all(list(planned.values()), processes, PATIENCE[command], stop):
        name, (function, arguments) = names[index], planned[names[index]]
        if command == "time" and isinstance(result, Failure) and result != LEFT_OUT and len(arguments[1]) > 1:
            case, methods, _ = arguments
            alone = {f"{name}, {method}": (function, (case, (method,), device)) for method in methods}
            yield from results(alone, command, device, stop)
        else:
            yield name, result


def run_here(function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return Failure(reason(error))


def rows_of(command: str, name: str, result: Any) -> list[Row]:
    """Return the rows of a result."""
    if command == "check":
        return [{"check": name, "result": result.reason if isinstance(result, Failure) else "passed"}]
    return [] if isinstance(result, Failure) else result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=tuple(FILES))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the results")
    parser.add_argument("--minutes", type=float, default=20.0, help="time after which nothing more is started")
    parser.add_argument("--commit", help="commit of this tree, if git does not know it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a rehearsal")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no NVIDIA GPU here; --device cpu with TRITON_INTERPRET=1 rehearses without one\n")
    if interpreted() != (options.device == "cpu"):
        parser.exit(2, "--device cpu requires TRITON_INTERPRET=1 in the environment, and a GPU requires its absence\n")
    return options


def main(arguments: list[str] | None = None) -> int:
    import triton

    options = parse(arguments)
    command, device, stop = options.command, options.device, time.monotonic() + 60 * options.minutes
    held: Row = {**conditions(), "triton": triton.__version__}
    if device == "cuda":
        held |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    held |= {"commit": options.commit} if options.commit else {}
    print("; ".join(f"{name} {value}" for name, value in held.items()), flush=True)
    preload(["benchmarks.gpu_check", "benchmarks.gpu_times", "relattn.backends.triton.operators"])
    planned, failed = tasks(command, device), 0
    for name, result in results(planned, command, device, stop):
        if isinstance(result, Failure):
            failed += 1
            print(f"FAILED  {name}: {result.reason}", flush=True)
        rows = [{**row, **held} for row in rows_of(command, name, result)]
        if rows:
            keep(options.out / FILES[command], rows, KEYS[command])
        for row in rows:
            print("  ".join(f"{column} {value}" for column, value in row.items() if column not in held), flush=True)
    print(f"{len(planned)} pieces of work, {failed} failed or left out; written to {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
