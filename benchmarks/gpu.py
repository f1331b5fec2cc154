"""The Triton kernels on one NVIDIA GPU, in three goes of a few minutes (benchmarks/README.md).

first   ceilings of the chip, correctness of the kernels, times of other tiles, and of the most important cases
second  time and memory of all cases, of Transformer-XL's form and T5's bias, and of DeBERTa's layer
third   training steps; then training of the paper's base model, and translation

Rows are written as they are measured. Tasks run in other processes, so that one that hangs or breaks the device loses
only its own rows. Stack traces of what failed are in failures.txt. A rehearsal on a CPU runs the same code with tiny
sizes in one process. Its times mean nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from relattn.backends.triton import interpreted

from benchmarks import gpu_check, gpu_layers, gpu_tiles, gpu_times, gpu_train, measure
from benchmarks.workers import LEFT_OUT, Failure, Task, call, run_all

FAILURES = "failures.txt"
PRELOADED = ["benchmarks.gpu_check", "benchmarks.gpu_times", "relattn.backends.triton.operators"]


@dataclass(frozen=True)
class Stage:
    """A part of a go.

    Attributes:
        name: Name of the stage.
        file: CSV file of its rows; empty for tasks that only fill the compilers' caches.
        key: Columns that identify a row.
        tasks: Function from the device to the tasks by name, the most important first.
        share: Share of the go's time, counted from its start, after which the stage ends.
        parallel: Whether tasks run at the same time, so that their times mean nothing.
        patience: Seconds per task, after which its process is killed.
    """

    name: str
    file: str
    key: Sequence[str]
    tasks: Callable[[str], dict[str, Task]]
    share: float = 1.0
    parallel: bool = False
    patience: float = 45.0


def stages(go: str, options: argparse.Namespace) -> tuple[Stage, ...]:
    """Return the stages of a go."""

    def compiling(share: float, *tables: str) -> Stage:
        others = {"tiles": gpu_tiles.tasks, "layers": gpu_layers.tasks}

        def tasks(device: str) -> dict[str, Task]:
            found: dict[str, Task] = {}
            for table in tables:
                found |= others[table](device, True) if table in others else gpu_times.compile_tasks(table, device)
            return found

        return Stage("compile", "", (), tasks, share, parallel=True)

    def timing(table: str, share: float = 1.0) -> Stage:
        return Stage(
            "time", "attention-gpu.csv", gpu_times.TIME_KEY, lambda device: gpu_times.time_tasks(table, device), share
        )

    if go == "first":
        return (
            Stage("ceilings", "ceilings-gpu.csv", ("work",), gpu_times.ceiling_tasks),
            compiling(0.2, "short"),
            Stage("check", "checks-gpu.csv", ("check",), gpu_check.tasks, 0.45, parallel=True),
            timing("short", 0.6),
            compiling(0.86, "tiles"),
            Stage("tiles", "tiles-gpu.csv", gpu_tiles.KEY, lambda device: gpu_tiles.tasks(device, False)),
        )
    if go == "second":
        return (
            compiling(0.35, "layers", "long", "forms"),
            Stage("layers", "layers-gpu.csv", gpu_layers.KEY, gpu_layers.tasks, 0.55),
            timing("long", 0.9),
            timing("forms"),
        )
    train = partial(gpu_train.tasks, options.steps, options.text, options.out)
    return (
        Stage("steps", "train-step-gpu.csv", gpu_times.TRAIN_KEY, gpu_times.step_tasks, 0.45, patience=90.0),
        Stage("train", "train-gpu.csv", gpu_train.KEY, train, parallel=True, patience=600.0),
    )


@dataclass
class Go:
    """A go: what it runs, and how long."""

    options: argparse.Namespace
    begin: float = field(default_factory=time.monotonic)
    failed: int = 0

    def results(self, planned: dict[str, Task], stage: Stage) -> Iterator[tuple[str, Any]]:
        """Run tasks and yield their names with their results, or a `Failure`.

        If a case cannot be timed, each of its methods is timed alone; the methods are the second argument.
        """
        if self.options.device == "cpu":
            yield from ((name, call(*task)) for name, task in planned.items())
            return
        names, processes = list(planned), min(12, os.cpu_count() or 1) if stage.parallel else 1
        stop = self.begin + self.options.seconds * stage.share
        for index, result in run_all(list(planned.values()), processes, stage.patience, stop):
            name, (function, arguments) = names[index], planned[names[index]]
            may_split = function in (gpu_times.time_case, gpu_layers.time_layers) and len(arguments[1]) > 1
            if may_split and isinstance(result, Failure) and result != LEFT_OUT and time.monotonic() < stop:
                case, methods, device = arguments
                alone: dict[str, Task] = {f"{name}, {each}": (function, (case, (each,), device)) for each in methods}
                yield from self.results(alone, stage)
            else:
                yield name, result

    def run(self, stage: Stage) -> None:
        """Run a stage. Write its rows and failures."""
        planned, failed, left_out = stage.tasks(self.options.device), 0, 0
        for name, result in self.results(planned, stage):
            rows = [] if isinstance(result, Failure) or result is None else result
            if isinstance(result, Failure):
                left_out += result == LEFT_OUT
                failed += result != LEFT_OUT
                self.note(f"{stage.name}: {name}: {result.reason}", result.trace)
            if stage.name == "check":
                failure = result.reason if isinstance(result, Failure) else ""
                columns = {"result": failure or "passed", "share of the allowed error": "", "largest in": ""}
                rows = [{"check": name, **columns, **({} if failure else result)}]
            for row in rows:
                if row.get("note"):
                    failed += 1
                    self.note(f"{stage.name}: {measure.text_of(row, stage.key)}: {row['note']}", "")
            if rows:
                arguments = argparse.Namespace(**{**vars(self.options), "out": self.options.out / stage.file})
                measure.record(arguments, rows, stage.key, shown=None)
                for row in rows:
                    self.show(stage, row)
        seconds = time.monotonic() - self.begin
        print(f"{seconds:.0f} s  {stage.name}: {len(planned)} tasks, {failed} failed, {left_out} left out", flush=True)
        self.failed += failed + left_out

    def show(self, stage: Stage, row: dict[str, Any]) -> None:
        """Print the main columns of a row: a short line, since the end of the output may be all that is seen."""
        if stage.name == "check":
            return
        measures = ("rate", "unit", "ms", "time ratio", "launch ms", "peak MiB", "difference", "BLEU", "train seconds")
        main = [str(row[name]) for name in stage.key if name not in ("dtype", "tokens", "clip")]
        values = [f"{name} {row[name]}" for name in measures if row.get(name, "") != ""]
        print(" ".join(main), "|", ", ".join(values), flush=True)

    def note(self, line: str, trace: str) -> None:
        """Print a failure, and append it with its stack trace to the file of failures."""
        print(f"FAILED  {line}", flush=True)
        with (self.options.out / FAILURES).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n{trace}\n")


def parse_flags(flags: list[str] | None) -> argparse.Namespace:
    parser = measure.command("gpu", __doc__)
    parser.add_argument("go", choices=("first", "second", "third"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the results")
    parser.add_argument("--seconds", type=float, default=300.0, help="time after which the go ends (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal without a GPU")
    parser.add_argument("--steps", type=int, default=2500, help="training steps of each model (%(default)s)")
    parser.add_argument("--text", type=Path, default=gpu_train.TEXT, help="directory of the text (%(default)s)")
    options = measure.parse(parser, flags=flags)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no NVIDIA GPU here; --device cpu with TRITON_INTERPRET=1 rehearses without one\n")
    if interpreted() != (options.device == "cpu"):
        parser.exit(2, "--device cpu requires TRITON_INTERPRET=1 in the environment, and a GPU requires its absence\n")
    return options


def main(flags: list[str] | None = None) -> int:
    import triton

    options = parse_flags(flags)
    options.out.mkdir(parents=True, exist_ok=True)
    options.conditions["triton"] = triton.__version__
    if options.device == "cuda":
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # several processes compile at the same time
        options.conditions |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    measure.preload(PRELOADED)
    go = Go(options)
    for stage in stages(options.go, options):
        go.run(stage)
    return 1 if go.failed else 0


if __name__ == "__main__":
    sys.exit(main())
