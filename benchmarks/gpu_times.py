"""Methods timed side by side, each in a process of its own: one that stalls, dies or breaks its device loses its row.

All prepare at the same time and then run in turn, once per round, so that whatever else the machine does is spread
over all. A method's work is queued behind a pause on the GPU and timed there by events, so that the time to launch it
from Python, which a large batch hides, is left out; that is measured by itself, as `launch ms`. Caches are as the
method before left them. Peak memory is what PyTorch's allocator has held beyond the inputs.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import relattn
from benchmarks import peers
from benchmarks.attention import run_of
from benchmarks.measure import LONG, Timing, alternate, available_memory, measured
from benchmarks.peers import PEERS, Attend, Case
from benchmarks.workers import STALLED, Failure, Worker, close_all
from relattn import backends, relative_attention

PLAIN = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "plain": None}
OLD_TILES = "triton old tiles"
PASSES = ("forward", "forward + backward")
CYCLES = 2e9  # of the GPU's clock per second, at most
LONGEST = 0.05  # seconds of a pause
REPEATS, SECONDS = 5, 0.15  # timed repeats of a method: so many, and more while they take no longer
START, PATIENCE = 60.0, 45.0  # seconds for a process to start, and for a method to make itself ready or to run
STALLS = 2  # after which a method is tried no more
ROOM = 0.8  # of the card's memory is given out

Work = Callable[[], object]
Row = dict[str, object]


def attention(method: str, case: Case, device: str) -> Attend:
    """A method as a function of query, key, value and its tables."""
    if method in PLAIN:
        return lambda query, key, value: plain(PLAIN[method], query, key, value, case.is_causal)
    if method == "flex":
        return flex(case)
    if method in PEERS:
        with torch.device(device):
            return peers.load(method, case)
    if method == OLD_TILES:
        from benchmarks import old_tiles  # and with it Triton

        return partial(old_tiles.attend, case)

    return partial(relative_attention, clip=(case.left, case.right), is_causal=case.is_causal, backend=method)


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


def warm(method: str, case: Case, device: str) -> None:
    """Compiles what a method needs, into the caches on disk."""
    for backward in (False, True):
        prepare(method, case, device, backward)()


class Held:
    """What a method's process holds between calls."""

    work: Work | None = None
    launch: float | None = None  # seconds


def start(method: str) -> None:
    """Nothing; a process that answers has imported what it needs."""


def get_ready(method: str, case: Case, device: str, backward: bool) -> None:
    let_go(method)
    Held.work = prepare(method, case, device, backward)
    Held.work()  # whatever a first call loads, it loads here
    synchronize(device)


def alone(method: str, device: str) -> tuple[int, float] | None:
    """Peak bytes, and seconds to launch; None on a CPU."""
    assert Held.work is not None
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    Held.work()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    launches = []
    for _ in range(5):
        launches.append(measured(Held.work))
        torch.cuda.synchronize()
        if launches[-1] > LONG:
            break
    Held.launch = statistics.median(launches)
    return peak, Held.launch


def once_more(method: str) -> float:
    """Seconds of one run."""
    assert Held.work is not None
    if Held.launch is None:
        return measured(Held.work)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES * min(LONGEST, 2 * Held.launch + 1e-4)))
    begin.record()
    Held.work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def let_go(method: str) -> None:
    """Leaves the memory to others."""
    Held.work = Held.launch = None
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Processes:
    """A process for each method, and another in its place when it is gone.

    Nothing is waited for after `end`, on the monotonic clock.
    """

    def __init__(self, methods: Iterable[str], end: float) -> None:
        self.workers = {method: Worker() for method in methods}
        self.stalls: Counter[str] = Counter()
        self.end = end

    def ask(
        self, methods: Iterable[str], seconds: float, function: Callable[..., Any], *arguments: Any
    ) -> dict[str, Any]:
        """What a function of a method and `arguments` gives in the processes of all, at once, or a `Failure` each."""
        asked = tuple(methods)
        for method in asked:
            self.workers[method].send(function, method, *arguments)
        end, answers = min(time.monotonic() + seconds, self.end), {}
        for method in asked:
            answers[method] = self.workers[method].receive(end - time.monotonic())
            self.stalls[method] += answers[method] == STALLED
            if self.workers[method].closed:
                self.workers[method] = Worker()
        return answers

    def close(self) -> None:
        close_all(list(self.workers.values()))


def time_pass(case: Case, methods: Sequence[str], device: str, backward: bool, processes: Processes) -> list[Row]:
    """Rows of all the methods, forward or forward and backward."""
    notes = dict.fromkeys((name for name in methods if processes.stalls[name] >= STALLS), "not run: it stalled before")
    notes |= crowded_out([name for name in methods if name not in notes], case, backward, memory_of(device))

    def ask(asked: Sequence[str], function: Callable[..., Any], *arguments: Any, seconds: float = PATIENCE) -> dict:
        answers = processes.ask((name for name in asked if name not in notes), seconds, function, *arguments)
        notes.update({name: answer.reason for name, answer in answers.items() if isinstance(answer, Failure)})
        return {name: answer for name, answer in answers.items() if name not in notes}

    ask(methods, start, seconds=START)
    ask(methods, get_ready, case, device, backward)
    known: dict[str, tuple[int, float] | None] = {}
    for method in methods:
        known |= ask([method], alone, device)
    works: dict[str, Work] = {name: partial(lambda name: ask([name], once_more).get(name), name) for name in known}
    times = alternate(works, REPEATS, SECONDS, clock=lambda work: work())
    ask(methods, let_go)
    base = min((name for name in times if name in PLAIN), key=lambda name: times[name].median, default=None)
    return [
        {
            **described(case, method, backward),
            **figures(times.get(method), None if base is None else times[base]),
            **memory(known.get(method), None if base is None else known[base]),
            "note": notes.get(method, ""),
        }
        for method in methods
    ]


def crowded_out(methods: Sequence[str], case: Case, backward: bool, room: float) -> dict[str, str]:
    """Notes of the methods whose arrays of n × n do not fit beside those of the methods before them."""
    notes = {}
    for method in methods:
        needed = memory_needed(method, case, backward)
        if needed > room:
            notes[method] = f"not run: it needs about {needed / 2**30:.1f} GiB, and {room / 2**30:.1f} are left"
        else:
            room -= needed
    return notes


def memory_needed(method: str, case: Case, backward: bool) -> int:
    """Bytes of arrays of n × n."""
    if method in PEERS:
        return PEERS[method].memory(case, backward)
    return 4 * case.batch * case.heads * case.n * case.n * case.dtype.itemsize if method == "dense" else 0


def memory_of(device: str) -> float:
    total = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else available_memory()
    return ROOM * total


def described(case: Case, method: str, backward: bool) -> Row:
    ours = method in (*backends.NAMES, OLD_TILES)
    package = peers.version(method) if method in PEERS else f"relattn {relattn.__version__}" if ours else ""
    return {
        "n": case.n,
        "causal": case.is_causal,
        "pass": PASSES[backward],
        "method": method,
        "dtype": str(case.dtype).removeprefix("torch."),
        "tokens": case.batch * case.n,
        "heads": case.heads,
        "dim": case.dim,
        "clip": case.left,
        "package": package or f"torch {torch.__version__}",
    }


def figures(time: Timing | None, base: Timing | None) -> Row:
    if time is None:
        return dict.fromkeys(("ms", "ms low", "ms high", "repeats", "time ratio"), "")
    return {
        "ms": round(1e3 * time.median, 4),
        "ms low": round(1e3 * time.low, 4),
        "ms high": round(1e3 * time.high, 4),
        "repeats": time.repeats,
        "time ratio": "" if base is None else round(time.median / base.median, 3),
    }


def memory(one: tuple[int, float] | None, base: tuple[int, float] | None) -> Row:
    if one is None:
        return dict.fromkeys(("launch ms", "peak MiB", "memory ratio"), "")
    peak, launch = one
    ratio = "" if base is None or not base[0] else round(peak / base[0], 2)
    return {"launch ms": round(1e3 * launch, 4), "peak MiB": round(peak / 2**20, 1), "memory ratio": ratio}
