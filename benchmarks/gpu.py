"""The Triton kernels on one NVIDIA GPU: correctness, time and memory, and training steps (benchmarks/README.md).

Rows are written as they are measured. Each task runs in another process, so a task that hangs or breaks the device
loses only its own rows. A rehearsal on a CPU runs the same code with tiny sizes in one process. Its times mean nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_check, gpu_times, measure
from benchmarks.workers import LEFT_OUT, Failure, Task, call, run_all
from relattn.backends.triton import interpreted

FILES = {"check": "checks-gpu.csv", "time": "attention-gpu.csv", "train": "train-step-gpu.csv"}
KEYS = {"check": ("check",), **gpu_times.KEYS}
PATIENCE = {"check": 120.0, "time": 400.0, "train": 600.0}  # seconds per task, with compilation
PRELOADED = ["benchmarks.gpu_check", "benchmarks.gpu_times", "relattn.backends.triton.operators"]


def tasks(command: str, device: str) -> dict[str, Task]:
    """Return the tasks of a command by name, the most important first."""
    if command == "check":
        return gpu_check.tasks(device)
    if command == "train":
        return {
            f"{size}{', compiled' * compiles}": (gpu_times.time_steps, (size, compiles, device))
            for size, compiles in gpu_times.trained_models(device)
        }
    return {str(case): (gpu_times.time_case, (case, methods, device)) for case, methods in gpu_times.cases(device)}


def results(planned: dict[str, Task], command: str, device: str, stop: float) -> Iterator[tuple[str, Any]]:
    """Run tasks and yield their names with their results, or a `Failure`. No task starts after the time `stop`.

    If a case cannot be timed, each of its methods is timed in a new process.
    """
    if device == "cpu":
        yield from ((name, call(*task)) for name, task in planned.items())
        return
    names, processes = list(planned), min(12, os.cpu_count() or 1) if command == "check" else 1
    for index, result in run_all(list(planned.values()), processes, PATIENCE[command], stop):
        name, (function, arguments) = names[index], planned[names[index]]
        if command == "time" and isinstance(result, Failure) and result != LEFT_OUT and len(arguments[1]) > 1:
            case, methods, _ = arguments
            alone = {f"{name}, {method}": (function, (case, (method,), device)) for method in methods}
            yield from results(alone, command, device, stop)
        else:
            yield name, result


def parse_flags(flags: list[str] | None) -> argparse.Namespace:
    parser = measure.command("gpu", __doc__)
    parser.add_argument("command", choices=tuple(FILES))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the CSV files")
    parser.add_argument("--minutes", type=float, default=20.0, help="time after which no task starts (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal without a GPU")
    options = measure.parse(parser, flags=flags)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no NVIDIA GPU here; --device cpu with TRITON_INTERPRET=1 rehearses without one\n")
    if interpreted() != (options.device == "cpu"):
        parser.exit(2, "--device cpu requires TRITON_INTERPRET=1 in the environment, and a GPU requires its absence\n")
    return options


def main(flags: list[str] | None = None) -> int:
    import triton

    options = parse_flags(flags)
    command, device, stop = options.command, options.device, time.monotonic() + 60 * options.minutes
    options.out /= FILES[command]
    options.conditions["triton"] = triton.__version__
    if device == "cuda":
        options.conditions |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    measure.preload(PRELOADED)
    planned, failed = tasks(command, device), 0
    for name, result in results(planned, command, device, stop):
        reason = result.reason if isinstance(result, Failure) else ""
        if reason:
            failed += 1
            print(f"FAILED  {name}: {reason}", flush=True)
        rows = [] if reason else result
        if command == "check":
            rows = [{"check": name, "result": reason or "passed"}]
        if rows:
            measure.record(options, rows, KEYS[command])
    print(f"{len(planned)} tasks, {failed} failed or left out; written to {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
