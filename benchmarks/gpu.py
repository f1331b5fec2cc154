"""All that is to be known of the Triton kernels on one GPU, in one command: are they right, how fast, at what memory.

    python -m benchmarks.gpu [--minutes 7] [--check-only]

First each kernel is held to the equations in float64 (`gpu_check`). Then ours, plain attention with no positions under
PyTorch's flash and cuDNN kernels, FlexAttention with the term of keys alone and the peers that are installed are timed
alternately (`gpu_times`), most telling cases first; ratios are to the faster of the two plain ones. Then the toolkit's
Transformer takes training steps, with relative positions and with sinusoids, whose attention is the toolkit's own:
PyTorch's, with a mask where sentences have lengths. Rows are written as they are made, and what the minutes do not
suffice for is left out and said so. Exits 1 where a check failed, and 2 without a GPU.

With `--device cpu` and TRITON_INTERPRET=1 in the environment this is a rehearsal: the same paths on tiny sizes, whose
figures mean nothing, written only where `--out` says.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from benchmarks import gpu_check, peers
from benchmarks.gpu_times import PLAIN, figures, lost_rows, prepare_steps, run_steps, time_group, warm
from benchmarks.measure import Timing, alternate, conditions, keep, preload
from benchmarks.peers import PEERS, Case
from benchmarks.train_step import SCHEMES, SIZES
from benchmarks.workers import LEFT_OUT, Failure, Task, Worker, run_all
from relattn.backends.triton import interpreted

KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dim", "clip")
STEP_KEY = ("model", "compiled", "n", "positions")
LENGTHS = (2048, 512, 64, 8192, 32768, 1024, 128, 256, 4096, 16384)  # the most telling first
FLEX_LENGTHS = (64, 512, 2048, 8192, 32768)  # it compiles for each
CHECKING, TIMING, READY = 0.35, 0.65, 0.93  # shares of the time when the check ends, timing does, training is ready
STEPS, ROUNDS = 4, 7  # training steps at a time, and how often
PASSES = ("forward", "forward + backward")

Row = dict[str, object]


@dataclass(frozen=True)
class Plan:
    """What is run on a device."""

    device: str
    groups: tuple[tuple[Case, tuple[str, ...]], ...]  # methods timed together
    memory: tuple[int, ...]  # lengths whose memory is shown last
    compiled: tuple[str, ...]  # of the methods, what is compiled first, by all processes at once
    models: tuple[tuple[str, bool], ...]  # a size, and whether torch.compile has it
    n: int  # pieces a sentence in training
    tokens: int  # a side
    processes: int  # for work that is not timed


def plan(device: str) -> Plan:
    others = tuple(name for name in PEERS if peers.installed(name))
    if device == "cpu":
        cases = (Case(1, 2, n, 8, 4, 4, False) for n in (16, 32))
        groups = tuple((case, ("plain", "triton", "merged", "dense", *others)) for case in cases)
        return Plan(device, groups, (16, 32), (), (("tiny", False),), n=8, tokens=16, processes=1)
    models = tuple(product(("base", "big"), (False, True)))
    groups, memory = tuple(gpu_groups(others)), (2048, 8192, 32768)
    return Plan(device, groups, memory, ("triton", "flex"), models, n=64, tokens=16384, processes=12)


def gpu_groups(others: tuple[str, ...]) -> Iterator[tuple[Case, tuple[str, ...]]]:
    def case(n: int, is_causal: bool = False, dtype: torch.dtype = torch.bfloat16, dim: int = 64, k: int = 16) -> Case:
        return Case(max(1, 16384 // n), 8, n, dim, k, k, is_causal, dtype)

    plain = tuple(name for name, kernel in PLAIN.items() if kernel is not None)
    for n in LENGTHS:
        yield case(n), (*plain, "triton", "merged", "dense", *(("flex",) if n in FLEX_LENGTHS else ()), *others)
    for n in LENGTHS:
        yield case(n, is_causal=True), (*plain, "triton")
    for n in (2048, 128):
        yield case(n, dtype=torch.float16), (*plain, "triton")
        yield case(n, dim=128), (*plain, "triton")
        yield case(n, k=64), (*plain, "triton")


class Clock:
    """How much of the minutes is left."""

    def __init__(self, minutes: float) -> None:
        self.start, self.seconds = time.monotonic(), 60 * minutes

    def at(self, share: float) -> float:
        return self.start + share * self.seconds

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.start:5.0f} s] {line}", flush=True)


def check(planned: Plan, clock: Clock, until: float) -> tuple[list[str], int]:
    """What failed, and how many were left out. So that nothing is compiled while others are timed, all that will be
    timed is run too."""
    checks = gpu_check.tasks(planned.device)
    warmed = [(case, tuple(m for m in methods if m in planned.compiled)) for case, methods in planned.groups]
    warming: list[Task] = [(warm, (case, methods, planned.device)) for case, methods in warmed if methods]
    failed, left_out = [], 0
    tasks = [*checks.values(), *warming]
    for index, result in run_all(tasks, planned.processes, patience=90, stop=clock.at(until)):
        if index >= len(checks) or not isinstance(result, Failure):
            continue
        if result == LEFT_OUT:
            left_out += 1
            continue
        failed.append(f"{list(checks)[index]}: {result.reason}")
        print(f"FAILED  {failed[-1]}", flush=True)
    clock.say(f"{len(checks)} checks against float64: {len(failed)} failed, {left_out} left out for want of time")
    return failed, left_out


def measure(planned: Plan, clock: Clock, held: dict[str, str], out: Path | None) -> list[Row]:
    print(
        f"{'n':>5}  {'mask':<6}  {'dtype':<8}  {'dim':>3}  {'k':>2}  {'pass':<18}  {'method':<10}  {'ms':>9}  "
        f"{'middle half':>17}  {'launch ms':>9}  {'MiB':>8}  ratio: time, memory"
    )
    tasks: list[Task] = [(time_group, (case, methods, planned.device)) for case, methods in planned.groups]
    rows: list[Row] = []
    for index, result in run_all(tasks, 1, patience=90, stop=clock.at(TIMING)):
        case, methods = planned.groups[index]
        if result == LEFT_OUT:
            print(f"{case.n:>5}  {case}: {LEFT_OUT.reason}", flush=True)
            continue
        if isinstance(result, Failure):
            result = lost_rows(case, methods, result.reason)
        made = [{**row, **held} for row in result]
        rows += made
        if out is not None:
            keep(out / "attention-gpu.csv", made, KEY)
        for row in made:
            print(show(row), flush=True)
    clock.say(f"{len(rows)} rows of attention")
    return rows


def show(row: Row) -> str:
    what = (
        f"{row['n']:>5}  {'causal' if row['causal'] else 'full':<6}  {row['dtype']:<8}  {row['dim']:>3}  "
        f"{row['clip']:>2}  {row['pass']:<18}  {row['method']:<10}"
    )
    if row["ms"] == "":
        return f"{what}  {row['note']}"
    spread = f"{row['ms low']}–{row['ms high']}"
    return (
        f"{what}  {row['ms']:>9}  {spread:>17}  {row['launch ms']:>9}  {row['peak MiB']:>8}  "
        f"{row['time ratio']:>6} {row['memory ratio']:>6}"
    )


def train(planned: Plan, clock: Clock, held: dict[str, str], out: Path | None) -> list[Row]:
    """Training steps of all models, each in a process of its own; what is compiled is so at the same time."""
    workers = {(model, scheme): Worker() for model, scheme in product(planned.models, SCHEMES)}
    rows: list[Row] = []
    try:
        for ((size, compiles), scheme), worker in workers.items():
            worker.send(prepare_steps, size, scheme, compiles, planned.n, planned.tokens, planned.device)
        end = max(clock.at(READY), time.monotonic() + 30)
        ready = {key: worker.receive(end - time.monotonic()) for key, worker in workers.items()}
        clock.say("training steps are ready")
        for model in planned.models:
            notes: dict[str, str] = {s: ready[model, s].reason for s in SCHEMES if isinstance(ready[model, s], Failure)}
            good: dict[str, Worker] = {s: workers[model, s] for s in SCHEMES if s not in notes}
            steps = {s: in_worker(worker, planned.device) for s, worker in good.items()}
            made = [{**row, **held} for row in step_rows(planned, model, steps, notes)]
            rows += made
            if out is not None:
                keep(out / "train-step-gpu.csv", made, STEP_KEY)
            for row in made:
                print("  ".join(f"{name} {row[name]}" for name in (*STEP_KEY, "ms", "time ratio", "note")), flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    clock.say(f"{len(rows)} rows of training")
    return rows


def in_worker(worker: Worker, device: str) -> Callable[[], float]:
    """A few training steps in their process, as a function that gives the seconds of one."""

    def steps() -> float:
        worker.send(run_steps, STEPS, device)
        seconds = worker.receive(60)
        if isinstance(seconds, Failure):
            raise RuntimeError(seconds.reason)
        return float(seconds)

    return steps


def step_rows(
    planned: Plan, model: tuple[str, bool], steps: dict[str, Callable[[], float]], notes: dict[str, str]
) -> Iterator[Row]:
    times: dict[str, Timing] = {}
    try:
        times = alternate(steps, ROUNDS, clock=lambda few: few()) if steps else {}
    except RuntimeError as error:
        notes = {scheme: str(error) for scheme in steps} | notes
    size, compiles = model
    for scheme in SCHEMES:
        time = times.get(scheme)
        yield {
            "model": size,
            "compiled": compiles,
            "n": planned.n,
            "positions": scheme,
            **figures(time, times.get("sinusoidal")),
            "pieces a second": "" if time is None else round(planned.tokens / time.median),
            "note": notes.get(scheme, ""),
            "dim": SIZES[size].dim,
            "layers": SIZES[size].layers,
            "clip": SIZES[size].clip,
            "dtype": "bfloat16 autocast",
            "tokens": planned.tokens,
            "backend": "triton" if planned.device == "cuda" else "auto",
        }


def summary(planned: Plan, rows: Sequence[Row], steps: Sequence[Row]) -> None:
    """What all this was for, in a few lines."""
    first = planned.groups[0][0]
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
    print(f"{'n':>6} {'forward':>9} {'both':>9} {'memory':>9} {'causal':>9} {'both':>9}")
    for n in lengths:
        ratios = [figure(n, "triton", "time ratio", name) for name in PASSES]
        ratios += [figure(n, "triton", "memory ratio")]
        ratios += [figure(n, "triton", "time ratio", name, causal=True) for name in PASSES]
        print(f"{n:>6} " + " ".join(f"{ratio!s:>9}" for ratio in ratios))

    methods = planned.groups[0][1]
    others = [method for method in methods if method not in PLAIN and method != "triton"]
    n = first.n
    print(f"others / ours at n = {n}: " + " and ".join(PASSES))
    for method in others:
        pairs = [(figure(n, method, "ms", name), figure(n, "triton", "ms", name)) for name in PASSES]
        ratios = [f"{float(str(a)) / float(str(b)):.2f}" if "" not in (a, b) else "none" for a, b in pairs]
        print(f"  {method:<11} {' '.join(f'{ratio:>9}' for ratio in ratios)}")

    print(f"peak MiB, {PASSES[1]}, at n = " + ", ".join(str(n) for n in lengths if n in planned.memory))
    for method in methods:
        peaks = [str(figure(n, method, "peak MiB")) or "none" for n in lengths if n in planned.memory]
        print(f"  {method:<11} {' '.join(f'{peak:>9}' for peak in peaks)}")

    print("a training step, relative / sinusoidal (the paper: 1.07)")
    for row in steps:
        if row["positions"] == "relative":
            how = "compiled" if row["compiled"] else "eager"
            print(
                f"  {row['model']:<5} {how:<9} {row['time ratio'] or 'none'}  {row['pieces a second']} pieces a second"
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=7.0, help="for all; what does not fit is left out")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results for a GPU")
    parser.add_argument("--check-only", action="store_true", help="times nothing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a rehearsal")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no NVIDIA GPU here; --device cpu with TRITON_INTERPRET=1 rehearses without one\n")
    if interpreted() != (arguments.device == "cpu"):
        parser.exit(
            2, "--device cpu is for Triton's interpreter, and nothing else is: TRITON_INTERPRET=1 goes with it\n"
        )
    if arguments.out is None and arguments.device == "cuda":
        arguments.out = Path(__file__).parent / "results"
    return arguments


def conditions_of(device: str) -> dict[str, str]:
    import triton

    chip = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)} if device == "cuda" else {}
    return {**conditions(), **chip, "triton": triton.__version__}


def main() -> None:
    arguments = parse()
    clock, planned, held = Clock(arguments.minutes), plan(arguments.device), conditions_of(arguments.device)
    preload(["benchmarks.gpu_check", "benchmarks.gpu_times"])
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each process
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    absent = [name for name in PEERS if not peers.installed(name)]
    if absent:
        print(f"not installed, so not timed: {', '.join(absent)}; benchmarks/peers.py says how")
    if arguments.check_only:
        failed, left_out = check(replace(planned, groups=()), clock, until=1.0)
    else:
        failed, left_out = check(planned, clock, until=CHECKING)
        rows = measure(planned, clock, held, arguments.out)
        steps = train(planned, clock, held, arguments.out)
        summary(planned, rows, steps)
    print(f"failed checks: {len(failed)}; left out: {left_out}")
    for line in failed:
        print(f"  {line}")
    if arguments.out is not None and not arguments.check_only:
        print(f"written to {arguments.out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
