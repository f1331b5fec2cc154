"""What `benchmarks.gpu` has its workers do: time a group of methods on one case, and take training steps.

A method's work is queued behind a pause on the GPU and timed there by events, so that what Python takes to launch it,
which a large batch hides, is not in its time; that is measured by itself, as `launch ms`. Caches are as the contestant
before left them. Peak memory is what PyTorch's allocator has held above the inputs.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import relattn
from benchmarks import peers, train_step
from benchmarks.attention import run_of
from benchmarks.measure import LONG, Timing, alternate, measured
from benchmarks.peers import PEERS, Attend, Case
from benchmarks.workers import device_works, reason
from relattn import backends, relative_attention
from relattn.call import Call
from relattn.translation.config import Positions

PLAIN = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "plain": None}
CYCLES = 2e9  # of the GPU's clock a second, or fewer
LONGEST = 0.05  # seconds of a pause
REPEATS, SECONDS = 5, 0.15  # timed repeats of a method: so many, and more while they take no longer

Work = Callable[[], object]


def attention(method: str, case: Case, device: str) -> Attend:
    """A method as a function of query, key, value and its tables."""
    if method in PLAIN:
        return lambda query, key, value: plain(PLAIN[method], query, key, value, case.is_causal)
    if method == "flex":
        return flex(case)
    if method in PEERS:
        with torch.device(device):
            return peers.load(method, case)

    def ours(*inputs: Tensor) -> Tensor:
        output = relative_attention(*inputs, clip=(case.left, case.right), is_causal=case.is_causal, backend=method)
        assert isinstance(output, Tensor)
        return output

    return ours


def plain(kernel: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    with nullcontext() if kernel is None else sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def flex(case: Case) -> Attend:
    """FlexAttention with the term of keys, q_i · aK_ij, the one of the two that it can express; not causal."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor) -> Tensor:
        terms = (query @ rel_key.mT) * case.dim**-0.5  # (batch, heads, n, labels)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + terms[b, h, i, torch.clamp(j - i, -case.left, case.right) + case.left]

        output = flex_attention(query, key, value, score_mod=score_mod)
        assert isinstance(output, Tensor)
        return output

    torch._dynamo.reset()  # it is compiled for each length, and there is a limit to that
    return torch.compile(attend, dynamic=False)


def tables(method: str) -> int:
    return 0 if method in PLAIN else 1 if method == "flex" else PEERS[method].tables if method in PEERS else 2


def prepare(method: str, case: Case, device: str, backward: bool) -> Work:
    """A run of `method`: forward without a graph, or forward and backward."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device).to(case.dtype)

    *made, cotangent = (normal(case.batch, case.n, case.heads, case.dim).transpose(1, 2) for _ in "qkvz")
    made += [normal(case.left + case.right + 1, case.dim) for _ in range(tables(method))]
    inputs = [x.requires_grad_(backward) for x in made]
    return run_of(attention(method, case, device), inputs, cotangent, backward)


def warm(case: Case, methods: Sequence[str], device: str) -> None:
    """Has what must be compiled compiled, into the caches on disk."""
    for method in methods:
        for backward in (False, True):
            prepare(method, case, device, backward)()


@dataclass(frozen=True)
class Known:
    """What is known of a method before it is timed."""

    work: Work
    peak: int | None  # bytes
    launch: float | None  # seconds

    def seconds(self) -> float:
        if self.launch is None:
            return measured(self.work)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(CYCLES * min(LONGEST, 2 * self.launch + 1e-4)))
        start.record()
        self.work()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3


def known(work: Work, device: str) -> Known:
    work()  # whatever a first call loads, it loads here
    if device == "cpu":
        return Known(work, None, None)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    launches = []
    for _ in range(5):
        launches.append(measured(work))
        torch.cuda.synchronize()
        if launches[-1] > LONG:
            break
    return Known(work, peak, statistics.median(launches))


def time_group(case: Case, methods: Sequence[str], device: str) -> list[dict[str, object]]:
    """Rows of all the methods, forward, and forward with backward."""
    return [row for backward in (False, True) for row in time_pass(case, methods, device, backward)]


def time_pass(case: Case, methods: Sequence[str], device: str, backward: bool) -> Iterator[dict[str, object]]:
    found: dict[str, Known] = {}
    notes: dict[str, str] = {}
    for method in methods:
        if not device_works():
            notes[method] = "not measured: the GPU failed under a method before"
            continue
        try:
            found[method] = known(prepare(method, case, device, backward), device)
        except Exception as error:
            notes[method] = reason(error)
        if method in notes and device == "cuda" and device_works():
            torch.cuda.empty_cache()
    times: dict[str, Timing] = {}
    if device_works() and found:
        works = {method: one.seconds for method, one in found.items()}
        times = alternate(works, REPEATS, SECONDS, clock=lambda work: work())
    base = min((method for method in times if method in PLAIN), key=lambda name: times[name].median, default=None)
    for method in methods:
        yield {
            **described(case, method, backward),
            **figures(times.get(method), None if base is None else times[base]),
            **memory(found.get(method), None if base is None else found[base]),
            "note": notes.get(method, "" if method in times else "not measured: the GPU failed"),
        }


def lost_rows(case: Case, methods: Sequence[str], note: str) -> list[dict[str, object]]:
    """Rows that say why there are no figures."""
    nothing = {**figures(None, None), **memory(None, None), "note": note}
    return [{**described(case, method, backward), **nothing} for backward in (False, True) for method in methods]


def described(case: Case, method: str, backward: bool) -> dict[str, object]:
    ours = method in backends.NAMES
    package = peers.version(method) if method in PEERS else f"relattn {relattn.__version__}" if ours else ""
    return {
        "n": case.n,
        "causal": case.is_causal,
        "pass": "forward + backward" if backward else "forward",
        "method": method,
        "dtype": str(case.dtype).removeprefix("torch."),
        "tokens": case.batch * case.n,
        "heads": case.heads,
        "dim": case.dim,
        "clip": case.left,
        "package": package or f"torch {torch.__version__}",
    }


def figures(time: Timing | None, base: Timing | None) -> dict[str, object]:
    if time is None:
        return dict.fromkeys(("ms", "ms low", "ms high", "repeats", "time ratio"), "")
    return {
        "ms": round(1e3 * time.median, 4),
        "ms low": round(1e3 * time.low, 4),
        "ms high": round(1e3 * time.high, 4),
        "repeats": time.repeats,
        "time ratio": "" if base is None else round(time.median / base.median, 3),
    }


def memory(one: Known | None, base: Known | None) -> dict[str, object]:
    if one is None or one.peak is None or one.launch is None:
        return dict.fromkeys(("launch ms", "peak MiB", "memory ratio"), "")
    ratio = "" if base is None or not base.peak else round(one.peak / base.peak, 2)
    return {"launch ms": round(1e3 * one.launch, 4), "peak MiB": round(one.peak / 2**20, 1), "memory ratio": ratio}


class Training:
    """The training step that a worker holds between calls."""

    step: Work | None = None


def triton_first(call: Call) -> tuple[str, ...]:
    return ("triton", "dense")


def preferring_triton(device: str) -> AbstractContextManager[Any]:
    """On a GPU, what `auto` takes is the kernels under test; on a CPU, what it takes there."""
    return patch.object(backends, "order", triton_first) if device == "cuda" else nullcontext()


def prepare_steps(size: str, scheme: Positions, compiles: bool, n: int, tokens: int, device: str) -> None:
    """A training step under bfloat16 autocast, compiled where it is to be, and warm."""
    config = train_step.SIZES[size].config(scheme)
    Training.step = train_step.prepare(config, n, tokens, device, torch.bfloat16, compiles)
    run_steps(3, device)


def run_steps(count: int, device: str) -> float:
    """Seconds of one of `count` steps, by the clock on the wall: launching is a part of training."""
    assert Training.step is not None
    with preferring_triton(device):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            Training.step()
        synchronize(device)
        return (time.perf_counter() - start) / count


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
