"""Time of calls where overhead, the size of a table or a bias counts: ours over PyTorch's attention, on a CPU.

One thread, 8 heads of 64 dimensions and float32, unless the name of a case says otherwise. Queries, keys and values
have the memory layout of a projection's output. Ours has both tables (k = 16), or what the name says. PyTorch's
attention has no positions; with "bias" it has the same bias as its mask. Short calls are timed many at once. Times are
the processor time of the process, which other load on the machine affects less than wall-clock time.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from relattn import relation_attention, relative_attention
from torch import Tensor

from benchmarks import forms
from benchmarks.forms import Case
from benchmarks.measure import Row, alternate, command, parse, record

HEADS, DIM, CLIP = 8, 64, 16
KEY = ("case", "pass")
SHOWN = ("case", "pass", "ms", "ratio")
SHORTEST = 0.01  # seconds; shorter calls are timed several at once
Work = Callable[[], object]


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def sequences(batch: int, queries: int, keys: int, heads: int = HEADS) -> list[Tensor]:
    """Return query, key and value with the memory layout of a projection."""
    return [normal(batch, n, heads, DIM, seed=n).transpose(1, 2) for n in (queries, keys, keys)]


def shaw(batch: int, queries: int, keys: int, heads: int = HEADS) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    """Both tables: our function, PyTorch's, the inputs of both, and those of ours only."""
    tables = [normal(2 * CLIP + 1, DIM) for _ in "kv"]
    ours = partial(relative_attention, clip=CLIP)
    return ours, F.scaled_dot_product_attention, sequences(batch, queries, keys, heads), tables


def deberta(batch: int, n: int) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    case = Case(batch, HEADS, n, DIM, CLIP, CLIP, False, torch.float32)
    others = forms.others("DeBERTa", case, torch.Generator().manual_seed(0))
    return forms.attention("DeBERTa", case), F.scaled_dot_product_attention, sequences(batch, n, n), others


def labelled(batch: int, n: int, labels: int) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    tables = [normal(labels, DIM) for _ in "kv"]
    relations = torch.randint(labels, (batch, 1, n, n), generator=torch.Generator().manual_seed(0))

    def ours(query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor) -> Tensor:
        return relation_attention(query, key, value, relations, rel_key, rel_value, check=False)

    return ours, F.scaled_dot_product_attention, sequences(batch, n, n), tables


def biased(batch: int, n: int, *lead: int) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    """A bias per pair with a gradient, the same for both."""

    def ours(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return relative_attention(query, key, value, bias=bias)

    def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)

    return ours, plain, [*sequences(batch, n, n), normal(*lead, n, n)], []


FORWARD, BOTH = "forward", "forward + backward"
CASES = {
    **{f"1 sequence of {n}": (partial(shaw, 1, n, n), (FORWARD, BOTH)) for n in (1, 4, 16)},
    **{f"1 query, {n:,} keys": (partial(shaw, 1, 1, n), (FORWARD,)) for n in (64, 256, 1024)},
    **{f"64 sequences of {n}": (partial(shaw, 64, n, n), (FORWARD, BOTH)) for n in (8, 16)},
    "1 head, 16 sequences of 256": (partial(shaw, 16, 256, 256, 1), (FORWARD, BOTH)),
    "DeBERTa's form, 64 sequences of 64": (partial(deberta, 64, 64), (FORWARD, BOTH)),
    "1,000 labels, 8 sequences of 256": (partial(labelled, 8, 256, 1000), (FORWARD, BOTH)),
    "bias of heads, 8 sequences of 256": (partial(biased, 8, 256, 1, HEADS), (FORWARD, BOTH)),
    "bias of pairs, 8 sequences of 256": (partial(biased, 8, 256, 8, HEADS), (FORWARD, BOTH)),
    "bias of heads, 1 sequence of 1,024": (partial(biased, 1, 1024, 1, HEADS), (FORWARD, BOTH)),
}


def run_of(attend: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Work:
    """Return a function that runs the forward pass without gradients, or forward and backward."""
    leaves = [x.detach().requires_grad_(backward) for x in inputs]
    cotangent = torch.ones_like(leaves[0])

    def forward() -> object:
        with torch.no_grad():
            return attend(*leaves)

    return (lambda: torch.autograd.grad(attend(*leaves), leaves, cotangent)) if backward else forward


def processor_time(work: Work) -> float:
    """Run a function and return the processor time that it takes, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def several(work: Work) -> tuple[Work, int]:
    """Return a function that runs another often enough to be timed, and how often."""
    work()
    times = max(1, round(SHORTEST / min(processor_time(work) for _ in range(5))))

    def run() -> None:
        for _ in range(times):
            work()

    return run, times


def time_case(name: str, phase: str, repeats: int, seconds: float) -> Row:
    ours, plain, inputs, others = CASES[name][0]()
    works = {"ours": run_of(ours, [*inputs, *others], phase == BOTH), "plain": run_of(plain, inputs, phase == BOTH)}
    repeated = {method: several(work) for method, work in works.items()}
    times = alternate({method: work for method, (work, _) in repeated.items()}, repeats, seconds, processor_time)
    ms = {method: 1e3 * times[method].median / repeated[method][1] for method in times}
    return {
        "case": name, "pass": phase, "ms": round(ms["ours"], 4), "ms plain": round(ms["plain"], 4),
        "ratio": round(ms["ours"] / ms["plain"], 3),
    }  # fmt: skip


def main() -> None:
    parser = command("small_calls", __doc__)
    parser.add_argument("--cases", nargs="+", default=[""], help="only cases whose names contain one of these")
    parser.add_argument("--repeats", type=int, default=15, help="minimum number of timed runs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for more runs of a case (%(default)s)")
    arguments = parse(parser, "small-calls-cpu.csv", threads=1)
    for name, (_, phases) in CASES.items():
        if any(part in name for part in arguments.cases):
            rows = [time_case(name, phase, arguments.repeats, arguments.seconds) for phase in phases]
            record(arguments, rows, KEY, SHOWN)


if __name__ == "__main__":
    main()
