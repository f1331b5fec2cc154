"""Time and memory of attention on a GPU: ours, PyTorch's kernels without positions, FlexAttention, other libraries.

The methods of a case run alternately. A run is queued behind a pause on the GPU, and events on the GPU time it. The
column "launch ms" is the time to launch the run from Python, which the GPU hides for a large batch. Peak memory is what
PyTorch's allocator holds beyond the inputs.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks import peers
from benchmarks.attention import PLAIN, described, prepare
from benchmarks.measure import LONG, Row, Timing, alternate, measured
from benchmarks.peers import PEERS, Case
from benchmarks.workers import reason

KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dim", "clip")
LENGTHS = (2048, 64, 8192, 512, 1024, 128, 256, 4096, 16384)  # the most important first
CYCLES = 2e9  # upper bound of the GPU's clock rate, per second
LONGEST = 0.05  # seconds of a pause
REPEATS, SECONDS = 5, 0.15  # minimum number of runs, and seconds for more

Work = Callable[[], object]


def cases(device: str) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Yield each case with its methods."""
    others = tuple(name for name in PEERS if peers.installed(name))
    if device == "cpu":
        yield Case(1, 1, 16, 4, 4, 4, True), ("plain", "triton", "dense", *others)
        return

    def case(n: int, is_causal: bool = False, dim: int = 64, k: int = 16, dtype: torch.dtype = torch.bfloat16) -> Case:
        return Case(max(1, 16384 // n), 8, n, dim, k, k, is_causal, dtype)

    ours = ("flash", "cudnn", "triton")
    for n, is_causal in product(LENGTHS, (False, True)):
        few = n <= 4096 and not is_causal  # the others need an array of all pairs
        yield case(n, is_causal), (*ours, "flex", "dense", *others) if few else ours
    for n in (2048, 128):
        yield case(n, dtype=torch.float16), ours
        yield case(n, dim=128), ours
        yield case(n, k=64), ours


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
    works, costs, notes = dict[str, Work](), dict[str, dict[str, Any]](), dict[str, str]()
    for method in methods:
        try:
            with torch.device(device):
                work = prepare(method, case, backward)
            work()  # compiles and loads
            costs[method] = memory_and_launch(work) if device == "cuda" else {"launch ms": "", "peak MiB": ""}
            works[method] = partial(work)
        except Exception as error:  # of another library, or out of memory
            notes[method] = reason(error)
    if device == "cuda":
        torch.cuda.empty_cache()
        clocks: dict[str, Work] = {
            name: partial(seconds_on_gpu, costs[name]["launch ms"] / 1e3, work) for name, work in works.items()
        }
        times = alternate(clocks, REPEATS, SECONDS, clock=lambda clock: clock())
    else:
        times = alternate(works, REPEATS)
    base = min((time for name, time in times.items() if name in PLAIN), key=lambda time: time.median, default=None)
    return [
        {**described(method, case, backward), **figures(times.get(method), base), "launch ms": "", "peak MiB": "",
         **costs.get(method, {}), "note": notes.get(method, "")}
        for method in methods
    ]  # fmt: skip


def figures(time: Timing | None, base: Timing | None) -> Row:
    """Return the columns of a timing, with its ratio to `base`; empty columns without a timing."""
    if time is None:
        return dict.fromkeys(("ms", "ms low", "ms high", "repeats", "time ratio"), "")
    return {**time.columns(), "time ratio": "" if base is None else round(time.median / base.median, 3)}
