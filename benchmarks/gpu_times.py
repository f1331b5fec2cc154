"""Time and memory of attention on a GPU (ours, PyTorch's, FlexAttention, other libraries'), and of training steps.

A run is queued behind a pause on the GPU, and events on the GPU time it. "launch ms" is the time to launch it from
Python, which the GPU hides for a large batch. Peak memory is what PyTorch's allocator holds beyond the inputs.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks import forms
from benchmarks.attention import PLAIN, described, prepare
from benchmarks.forms import Case
from benchmarks.measure import LONG, Row, alternate, measured
from benchmarks.workers import Task, reason

TIME_KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dim", "clip")
TRAIN_KEY = ("model", "compiled", "n", "positions")
MEASURED = ("ms", "ms low", "ms high", "repeats", "time ratio", "launch ms", "peak MiB", "note")
LENGTHS = (2048, 64, 8192, 512, 1024, 128, 256, 4096, 16384)  # the most important first
CYCLES = 2e9  # upper bound of the GPU's clock rate, per second
LONGEST = 0.05  # seconds of a pause
REPEATS, SECONDS = 5, 0.15  # minimum number of runs, and seconds for more
SCHEMES = ("sinusoidal", "relative")  # of the models that are trained; the first uses PyTorch's attention
STEPS, ROUNDS = 4, 7  # training steps per round, and rounds

Work = Callable[[], object]


def cases(device: str) -> dict[str, dict[Case, tuple[str, ...]]]:
    """Return the methods of each case: "short", the most important cases; "long", all of them; "forms"."""
    if device == "cpu":
        tiny: dict[Case, tuple[str, ...]] = {Case(1, 1, 16, 4, 4, 4, True): ("plain", "triton", "dense")}
        return {
            "short": tiny,
            "long": tiny,
            "forms": {Case(1, 1, 16, 4, 15, 15, False, backend="triton"): ("plain", "T5", "DeBERTa")},
        }
    ours = ("flash", "cudnn", "triton")
    short = {
        case_of(n, is_causal): (*ours, "dense") if is_causal else (*ours, "flex", "dense")
        for n, is_causal in ((2048, False), (512, False), (2048, True), (128, False), (8192, False), (1024, False))
    }
    long = {}
    for n, is_causal in product(LENGTHS, (False, True)):
        few = n <= 4096  # the others need an array of all pairs
        flex = () if is_causal else ("flex",)
        long[case_of(n, is_causal)] = (*ours, *flex, *("dense",) * few)
    for n in (2048, 128):
        long[case_of(n, dtype=torch.float16)] = long[case_of(n, dim=128)] = long[case_of(n, k=64)] = ours
    forms = {
        replace(case_of(n), left=n - 1, right=n - 1, backend="triton"): (
            "flash",
            *("Transformer-XL", "Transformer-XL by flex", "Transformer-XL by mask"),
            *("T5", "T5 by flex", "T5 by mask"),
        )
        for n in (1024, 4096)
    }
    return {"short": short, "long": long, "forms": forms}


def case_of(n: int, is_causal: bool = False, dim: int = 64, k: int = 16, dtype: torch.dtype = torch.bfloat16) -> Case:
    return Case(max(1, 16384 // n), 8, n, dim, k, k, is_causal, dtype)


def compile_case(case: Case, method: str, device: str) -> None:
    """Run both passes of a method once, so that the compilers' caches on the disk have their kernels."""
    for backward in (False, True):
        with torch.device(device):
            prepare(method, case, backward)()


def compile_tasks(table: str, device: str) -> dict[str, Task]:
    """Return a task for each method that is compiled."""
    methods = ("triton", "flex", *forms.FORMS, *forms.BY_FLEX)
    return {
        f"{method}, {case}": (compile_case, (case, method, device))
        for case, used in cases(device)[table].items()
        for method in methods
        if method in used
    }


def time_tasks(table: str, device: str) -> dict[str, Task]:
    return {f"{table}, {case}": (time_case, (case, methods, device)) for case, methods in cases(device)[table].items()}


def ceilings(device: str) -> list[Row]:
    """Return the largest rates that a copy and a product of large matrices reach."""
    size = 64 if device == "cpu" else 8192
    x, y = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in "xy")
    large = torch.randn(16 * size, size, device=device)  # 4 GiB on a GPU
    target = torch.empty_like(large)
    works: dict[str, Work] = {"copy": lambda: target.copy_(large), "bfloat16 product": lambda: x @ y}
    amounts = {"copy": (2 * large.nbytes / 1e9, "GB/s"), "bfloat16 product": (2 * size**3 / 1e12, "TFLOP/s")}
    clock = measured if device == "cpu" else partial(seconds_on_gpu, 1e-4)
    times = alternate(works, 10, clock=clock)
    return [
        {"work": name, **time.columns(), "rate": round(amounts[name][0] / time.median, 1), "unit": amounts[name][1]}
        for name, time in times.items()
    ]


def ceiling_tasks(device: str) -> dict[str, Task]:
    return {"ceilings": (ceilings, (device,))}


def memory_and_launch(work: Work) -> dict[str, float]:
    """Return the peak memory of a run on the GPU, and the time to launch it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    launches = []
    for _ in range(5):
        launches.append(measured(work))
        torch.cuda.synchronize()
        if launches[-1] > LONG:
            break
    peak = torch.cuda.max_memory_allocated() - before
    return {"launch ms": round(1e3 * statistics.median(launches), 4), "peak MiB": round(peak / 2**20, 1)}


def seconds_on_gpu(launch: float, work: Work) -> float:
    """Run a function that takes `launch` seconds to launch, and return its time on the GPU in seconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES * min(LONGEST, 2 * launch + 1e-4)))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def time_case(case: Case, methods: tuple[str, ...], device: str) -> list[Row]:
    """Return the rows of methods, for both passes. The row of a method that fails has the error in its note."""
    return [row for backward in (False, True) for row in time_pass(case, methods, device, backward)]


def time_pass(case: Case, methods: tuple[str, ...], device: str, backward: bool) -> list[Row]:
    """Return the rows of methods for one pass."""
    works, columns = dict[str, Work](), dict[str, Row]()
    for method in methods:
        row = columns[method] = described(method, case, backward) | dict.fromkeys(MEASURED, "")
        try:
            with torch.device(device):
                work = prepare(method, case, backward)
            work()  # compiles and loads
            row |= memory_and_launch(work) if device == "cuda" else {}
            works[method] = partial(work)
        except Exception as error:  # of another library, or out of memory
            row["note"] = reason(error)
    if device == "cuda":
        torch.cuda.empty_cache()
        clocks: dict[str, Work] = {
            name: partial(seconds_on_gpu, columns[name]["launch ms"] / 1e3, work) for name, work in works.items()
        }
        times = alternate(clocks, REPEATS, SECONDS, clock=lambda clock: clock())
    else:
        times = alternate(works, REPEATS)
    base = min((time for name, time in times.items() if name in PLAIN), key=lambda time: time.median, default=None)
    for method, time in times.items():
        columns[method] |= time.columns() | {"time ratio": round(time.median / base.median, 3) if base else ""}
    return list(columns.values())


def step_tasks(device: str) -> dict[str, Task]:
    """Return a task per size of the model, compiled or not."""
    sizes = ("tiny",) if device == "cpu" else ("base", "big")
    return {
        f"{size}{', compiled' * compiles}": (time_steps, (size, compiles, device))
        for compiles, size in product((False, True), sizes)
        if device != "cpu" or not compiles
    }


def seconds_per_step(device: str, step: Work) -> float:
    """Return the wall-clock time of a step, which includes the launches of kernels."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def steps() -> None:
        for _ in range(STEPS):
            step()
        synchronize()

    synchronize()
    return measured(steps) / STEPS


def time_steps(size: str, compiles: bool, device: str) -> list[Row]:
    """Time training steps of a model, alternately with each position scheme. Return a row per scheme."""
    from benchmarks.train_step import SIZES, prepare  # imports the toolkit

    n, tokens = (8, 16) if device == "cpu" else (64, 16384)
    backend = "triton" if device == "cuda" else "auto"  # the kernels under test, at every length
    steps: dict[str, Any] = {
        scheme: prepare(SIZES[size].with_positions(scheme), n, tokens, device, torch.bfloat16, compiles, backend)
        for scheme in SCHEMES
    }
    times = alternate(steps, ROUNDS, clock=partial(seconds_per_step, device))
    return [
        {
            "model": size,
            "compiled": compiles,
            "n": n,
            "positions": scheme,
            **times[scheme].columns(),
            "time ratio": round(times[scheme].median / times["sinusoidal"].median, 3),
            "tokens per second": round(tokens / times[scheme].median),
            "note": "",
            "dtype": "bfloat16 autocast",
            "tokens": tokens,
            "backend": backend,
        }
        for scheme in SCHEMES
    ]
