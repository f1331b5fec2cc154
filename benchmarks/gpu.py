"""The Triton kernels on one GPU, in two commands that end within ten minutes each.

    python -m benchmarks.gpu core --out DIR
    python -m benchmarks.gpu all --out DIR

`core` holds each kernel to the equations in float64 (`gpu_check`) and times three methods (`gpu_times`): plain
attention with no positions by PyTorch's flash and cuDNN kernels, ours, and ours with the tiles of before (`old_tiles`);
`--check-only` leaves the timing out. `all` is the rest: other lengths, types and sizes; FlexAttention with the term of
keys alone, our backend `dense` and the peers that are installed; training steps (`gpu_train`). Ratios are to the faster
of the two plain ones. Rows are written into DIR as they are made, and what the minutes do not suffice for is left out
and said so. Exits 1 where a check failed, and 2 without a GPU.

With `--device cpu` and TRITON_INTERPRET=1 in the environment this is a rehearsal: the same paths on tiny sizes, whose
figures mean nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from benchmarks import gpu_check, peers
from benchmarks.gpu_times import OLD_TILES, PASSES, PLAIN, Processes, Row, time_pass, warm
from benchmarks.gpu_train import STEP_KEY, Model, training_rows
from benchmarks.measure import conditions, keep, preload
from benchmarks.peers import PEERS, Case
from benchmarks.workers import LEFT_OUT, Failure, Task, run_all
from relattn.backends.triton import interpreted

KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dim", "clip")
CORE = (2048, 64, 8192)  # lengths, the most telling first
REST = (512, 1024, 128, 256, 4096, 16384, 32768)  # the longest needs tens of gigabytes
FLEX = (64, 512, 2048, 8192, 32768)  # lengths that FlexAttention has, since it is compiled for each
COMPILED = ("triton", OLD_TILES, "flex")  # methods that are compiled first, by many processes at once
PATIENCE = 90.0  # seconds for a check, or for compiling a method
PLAIN_KERNELS = tuple(name for name, kernel in PLAIN.items() if kernel is not None)

Group = tuple[Case, tuple[str, ...]]  # methods timed together


@dataclass(frozen=True)
class Plan:
    """What a command runs on a device."""

    device: str
    checks: dict[str, Task]
    groups: tuple[Group, ...]
    models: tuple[Model, ...]  # that train
    n: int  # pieces per sentence in training
    tokens: int  # per side
    processes: int  # for work that is not timed
    checked: float  # the share of the time by which checks and compiling end,
    timed: float  # by which timing ends,
    trainable: float = 0.93  # and by which models are ready to train; no method is waited for any longer


def plan(command: str, device: str) -> Plan:
    core, others = command == "core", tuple(name for name in PEERS if peers.installed(name))
    rehearsal = device == "cpu"
    groups = rehearsed(core, others) if rehearsal else core_groups() if core else other_groups(others)
    sizes = ("tiny",) if rehearsal else ("base", "big")
    return Plan(
        device,
        checks=gpu_check.tasks(device) if core else {},
        groups=tuple(groups),
        models=() if core else tuple(product(sizes, (False,) if rehearsal else (False, True))),
        n=8 if rehearsal else 64,
        tokens=16 if rehearsal else 16384,
        processes=1 if rehearsal else min(12, os.cpu_count() or 1),
        checked=0.6 if core else 0.2,
        timed=0.85 if core else 0.62,
    )


def rehearsed(core: bool, others: tuple[str, ...]) -> Iterator[Group]:
    methods = ("plain", "triton", OLD_TILES) if core else ("plain", "triton", "dense", *others)
    for n, is_causal in ((16, False), (16, True)) if core else ((8, False), (16, False)):
        yield Case(1, 1, n, 4, 4, 4, is_causal), methods


def case_of(n: int, is_causal: bool = False, dtype: torch.dtype = torch.bfloat16, dim: int = 64, k: int = 16) -> Case:
    return Case(max(1, 16384 // n), 8, n, dim, k, k, is_causal, dtype)


def core_groups() -> Iterator[Group]:
    for n, is_causal in product(CORE, (False, True)):
        yield case_of(n, is_causal), (*PLAIN_KERNELS, "triton", OLD_TILES)


def other_groups(others: tuple[str, ...]) -> Iterator[Group]:
    def full(n: int) -> Group:
        return case_of(n), (*PLAIN_KERNELS, "triton", *(("flex",) if n in FLEX else ()), "dense", *others)

    for n in CORE:
        yield full(n)
    for n in (2048, 128):
        yield case_of(n, dtype=torch.float16), (*PLAIN_KERNELS, "triton")
        yield case_of(n, dim=128), (*PLAIN_KERNELS, "triton")
        yield case_of(n, k=64), (*PLAIN_KERNELS, "triton")
    for n in REST:
        yield full(n)
        yield case_of(n, is_causal=True), (*PLAIN_KERNELS, "triton")


class Clock:
    """How much time is left."""

    def __init__(self, minutes: float) -> None:
        self.start, self.seconds = time.monotonic(), 60 * minutes

    def at(self, share: float) -> float:
        return self.start + share * self.seconds

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.start:5.0f} s] {line}", flush=True)


def check(planned: Plan, clock: Clock, held: dict[str, str], out: Path | None) -> tuple[list[str], int]:
    """What failed, and how many were left out. So that nothing is compiled while others are timed, what will be timed
    is compiled here too, and first."""
    warming: list[Task] = [
        (warm, (method, case, planned.device))
        for case, methods in planned.groups
        for method in methods
        if method in COMPILED and planned.device == "cuda"
    ]
    names, failed, left_out = list(planned.checks), list[str](), 0
    tasks = [*warming, *planned.checks.values()]
    for index, result in run_all(tasks, planned.processes, PATIENCE, stop=clock.at(planned.checked)):
        if index < len(warming):
            continue
        name = names[index - len(warming)]
        said = result.reason if isinstance(result, Failure) else "passed"
        if out is not None:
            keep(out / "checks-gpu.csv", [{"check": name, "result": said, **held}], ("check",))
        left_out += result == LEFT_OUT
        if isinstance(result, Failure) and result != LEFT_OUT:
            failed.append(f"{name}: {said}")
            print(f"FAILED  {failed[-1]}", flush=True)
    clock.say(
        f"{len(names)} checks against float64: {len(failed)} failed, {left_out} left out" if names else "compiled"
    )
    return failed, left_out


def measure(planned: Plan, clock: Clock, held: dict[str, str], out: Path) -> list[Row]:
    print(
        f"{'n':>5}  {'mask':<6}  {'dtype':<8}  {'dim':>3}  {'k':>2}  {'pass':<18}  {'method':<16}  {'ms':>9}  "
        f"{'middle half':>17}  {'launch ms':>9}  {'MiB':>8}  ratio: time, memory"
    )
    every = dict.fromkeys(method for _, methods in planned.groups for method in methods)
    processes = Processes(every, end=clock.at(planned.trainable))
    rows: list[Row] = []
    try:
        for (case, methods), backward in product(planned.groups, (False, True)):
            if time.monotonic() > clock.at(planned.timed):
                print(f"{case}, {PASSES[backward]}: {LEFT_OUT.reason}", flush=True)
                continue
            found = time_pass(case, methods, planned.device, backward, processes)
            made = [{**row, **held} for row in found]
            rows += made
            keep(out / "attention-gpu.csv", made, KEY)
            for row in made:
                print(show(row), flush=True)
    finally:
        processes.close()
    clock.say(f"{len(rows)} rows of attention")
    return rows


def show(row: Row) -> str:
    what = (
        f"{row['n']:>5}  {'causal' if row['causal'] else 'full':<6}  {row['dtype']:<8}  {row['dim']:>3}  "
        f"{row['clip']:>2}  {row['pass']:<18}  {row['method']:<16}"
    )
    if row["ms"] == "":
        return f"{what}  {row['note']}"
    spread = f"{row['ms low']}–{row['ms high']}"
    return (
        f"{what}  {row['ms']:>9}  {spread:>17}  {row['launch ms']:>9}  {row['peak MiB']:>8}  "
        f"{row['time ratio']:>6} {row['memory ratio']:>6}"
    )


def train(planned: Plan, clock: Clock, held: dict[str, str], out: Path) -> list[Row]:
    until = max(clock.at(planned.trainable), time.monotonic() + 30)
    rows: list[Row] = []
    for found in training_rows(planned.models, planned.n, planned.tokens, planned.device, until):
        made = [{**row, **held} for row in found]
        rows += made
        keep(out / "train-step-gpu.csv", made, STEP_KEY)
        for row in made:
            print("  ".join(f"{name} {row[name]}" for name in (*STEP_KEY, "ms", "time ratio", "note")), flush=True)
    clock.say(f"{len(rows)} rows of training")
    return rows


def summary(planned: Plan, rows: Sequence[Row], steps: Sequence[Row]) -> None:
    """What all this was for, in a few lines."""
    first, methods = planned.groups[0]
    usual = {"dtype": str(first.dtype).removeprefix("torch."), "dim": first.dim, "clip": first.left}
    held = {
        (row["n"], row["causal"], row["pass"], row["method"]): row
        for row in rows
        if all(row[name] == value for name, value in usual.items())
    }

    def figure(n: int, method: str, column: str, name: str = PASSES[1], causal: bool = False) -> object:
        return held.get((n, causal, name, method), {}).get(column, "")

    lengths = sorted({case.n for case, _ in planned.groups})
    print("\nours / the faster plain attention")
    print(f"{'n':>6}  {'':<16} {'forward':>9} {'both':>9} {'memory':>9} {'causal':>9} {'both':>9}")
    for n, method in product(lengths, (name for name in ("triton", OLD_TILES) if name in methods)):
        ratios = [figure(n, method, "time ratio", name) for name in PASSES]
        ratios += [figure(n, method, "memory ratio")]
        ratios += [figure(n, method, "time ratio", name, causal=True) for name in PASSES]
        print(f"{n:>6}  {method:<16} " + " ".join(f"{ratio!s:>9}" for ratio in ratios))

    print(f"others / ours at n = {first.n}: " + " and ".join(PASSES))
    for method in methods:
        if method == "triton":
            continue
        pairs = [(figure(first.n, method, "ms", name), figure(first.n, "triton", "ms", name)) for name in PASSES]
        ratios = [f"{float(str(a)) / float(str(b)):.2f}" if "" not in (a, b) else "none" for a, b in pairs]
        print(f"  {method:<16} {' '.join(f'{ratio:>9}' for ratio in ratios)}")

    print(f"peak MiB, {PASSES[1]}, at n = " + ", ".join(str(n) for n in lengths))
    for method in methods:
        peaks = [str(figure(n, method, "peak MiB")) or "none" for n in lengths]
        print(f"  {method:<16} {' '.join(f'{peak:>9}' for peak in peaks)}")

    if steps:
        print("a training step, relative / sinusoidal (the paper: 1.07)")
    for row in steps:
        if row["positions"] == "relative":
            how = "compiled" if row["compiled"] else "eager"
            print(
                f"  {row['model']:<5} {how:<9} {row['time ratio'] or 'none'}  {row['pieces a second']} pieces a second"
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("core", "all"))
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="in total; what does not fit is left out")
    parser.add_argument("--commit", help="which commit this is, where git does not know")
    parser.add_argument("--check-only", action="store_true", help="of core: times nothing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a rehearsal")
    arguments = parser.parse_args()
    if arguments.check_only and arguments.command == "all":
        parser.error("the checks are those of core")
    if arguments.out is None and not arguments.check_only:
        parser.error("--out must say where the results go")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no NVIDIA GPU here; --device cpu with TRITON_INTERPRET=1 rehearses without one\n")
    if interpreted() != (arguments.device == "cpu"):
        parser.exit(
            2, "--device cpu is for Triton's interpreter, and nothing else is: TRITON_INTERPRET=1 goes with it\n"
        )
    return arguments


def conditions_of(device: str, commit: str | None) -> dict[str, str]:
    import triton

    chip = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)} if device == "cuda" else {}
    return {**conditions(), **chip, "triton": triton.__version__, **({"commit": commit} if commit else {})}


def main() -> None:
    arguments = parse()
    clock, planned, out = Clock(arguments.minutes), plan(arguments.command, arguments.device), arguments.out
    if arguments.check_only:
        planned = replace(planned, groups=(), checked=0.8)
    held = conditions_of(arguments.device, arguments.commit)
    preload(["benchmarks.gpu_check", "benchmarks.gpu_times", "relattn.backends.triton.operators"])
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each process
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    absent = [name for name in PEERS if not peers.installed(name)]
    if absent and arguments.command == "all":
        print(f"not installed, so not timed: {', '.join(absent)}; benchmarks/peers.py says how")
    failed, left_out = check(planned, clock, held, out)
    if planned.groups:
        rows = measure(planned, clock, held, out)
        steps = train(planned, clock, held, out) if planned.models else []
        summary(planned, rows, steps)
    if planned.checks:
        print(f"failed checks: {len(failed)}; left out: {left_out}")
    for line in failed:
        print(f"  {line}")
    if out is not None:
        print(f"written to {out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
