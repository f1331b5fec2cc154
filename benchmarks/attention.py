"""What relative positions cost: ours, and other libraries', beside PyTorch's own attention with no positions at all.

Each length n gets the same number of tokens, 8 heads of 64 dimensions and k = 16. Forward, and forward with backward,
are timed alternately, and every figure is also given as a ratio to plain attention's. Queries, keys and
values lie in memory as projections make them, (batch, n, heads, dim), for every method. Operations are counted on
paper: multiply-adds of the matrix products of each method, forward.

Methods are `plain`, `auto` (ours, as a caller gets it), `no tables` (the same without relative terms), a backend's
name, the forms of `benchmarks.forms` (Transformer-XL's and T5's, ours and by a mask), and the peers of
`benchmarks.peers`, which need what that module says and drop nothing. One that does not fit half of the memory there is
at some n is left out, and said so. A run replaces the rows of the results that it measures again and keeps the others,
so that it can be made in pieces.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import relattn
from benchmarks import forms, peers
from benchmarks.measure import alternate, available_memory, conditions, keep, peak_memory, preload
from benchmarks.peers import PEERS, Attend, Case
from relattn import backends, relative_attention
from relattn.call import Call

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NO_TABLES = "no tables"
METHODS = ("plain", "auto", NO_TABLES, *backends.NAMES, *forms.METHODS, *PEERS)
PYTORCH = ("plain", *forms.BY_MASK)
HEADS, DIM, CLIP, TOKENS = 8, 64, 16, 8192
KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dropout")


def operations(method: str, n: int) -> float:
    """Multiply-adds of one sentence and head, forward: two products of plain attention, and those with the tables."""
    products, vectors = 2.0, float(min(2 * CLIP + 1, 2 * n - 1))  # ours: a row once, however many pairs share it
    if method in forms.METHODS:
        products, vectors = 1, forms.vectors(method, n)
    elif method in ("plain", NO_TABLES):
        products = 0
    elif method == "reference":
        vectors = n
    elif method in PEERS:
        products, vectors = PEERS[method].products, n if PEERS[method].vectors == "pairs" else 2 * n - 1
    return (2 * n + products * vectors) * n * DIM


def attention(method: str, case: Case) -> Attend:
    if method in PEERS:
        return peers.load(method, case)
    if method in forms.METHODS:
        return forms.attention(method, case)
    options: dict[str, Any] = {"is_causal": case.is_causal, "dropout_p": case.dropout_p}
    if method == "plain":
        return partial(F.scaled_dot_product_attention, **options)
    return partial(relative_attention, backend="auto" if method == NO_TABLES else method, **options)


def inputs_of(method: str, case: Case, requires_grad: bool) -> list[Tensor]:
    """Query, key, value and the tables that the method has, the same numbers for all."""
    generator = torch.Generator().manual_seed(0)
    tables = 0 if method in ("plain", NO_TABLES) else PEERS[method].tables if method in PEERS else 2
    made = [torch.randn(case.batch, case.n, case.heads, case.dim, generator=generator).transpose(1, 2) for _ in "qkv"]
    if method in forms.METHODS:
        made += forms.others(method, case, generator)
    else:
        made += [torch.randn(2 * CLIP + 1, case.dim, generator=generator) for _ in range(tables)]
    return [x.to(case.dtype).requires_grad_(requires_grad) for x in made]


def prepare(method: str, case: Case, backward: bool) -> Callable[[], object]:
    """A run of `method`: forward without a graph, or forward and backward."""
    inputs = inputs_of(method, case, backward)
    cotangent = torch.randn(inputs[0].transpose(1, 2).shape).to(case.dtype).transpose(1, 2)
    return run_of(attention(method, case), inputs, cotangent, backward)


def run_of(attend: Attend, inputs: list[Tensor], cotangent: Tensor, backward: bool) -> Callable[[], object]:
    def forward() -> object:
        with torch.no_grad():
            return attend(*inputs)

    def forward_and_backward() -> object:
        return torch.autograd.grad(attend(*inputs), inputs, cotangent)

    return forward_and_backward if backward else forward


def backend_of(method: str, case: Case) -> str:
    """The backend that serves one of our methods."""
    query = torch.empty((), dtype=case.dtype).expand(case.batch, case.heads, case.n, case.dim)
    table = torch.empty((), dtype=case.dtype).expand(2 * CLIP + 1, case.dim)
    call = Call(query, query, query, table, table, left=CLIP, right=CLIP, is_causal=case.is_causal)
    return backends.choose(method if method in backends.NAMES else "auto", call).__name__.rpartition(".")[2]


def memory_needed(method: str, case: Case, backward: bool) -> int:
    """Bytes beyond the inputs, of methods that need much."""
    if method in PEERS:
        return PEERS[method].memory(case, backward)
    if method == "plain":
        return 0
    if method in forms.METHODS:
        return forms.memory(method, case, backward)
    scores = case.batch * case.heads * case.n * case.n * case.dtype.itemsize
    match backend_of(method, case):
        case "reference":
            return (6 if backward else 2) * scores * case.dim
        case "dense":
            return 3 * scores
    return 0


def measure(
    case: Case, backward: bool, methods: list[str], repeats: int, seconds: float
) -> Iterator[dict[str, object]]:
    times = alternate({method: prepare(method, case, backward) for method in methods}, repeats, seconds)
    small = replace(case, batch=1, n=min(case.n, 512))
    memory = {name: peak_memory(prepare, (name, small, backward), (name, case, backward)) for name in methods}
    for method, time in times.items():
        package = peers.version(method) if method in PEERS else f"relattn {relattn.__version__}"
        yield {
            "n": case.n,
            "causal": case.is_causal,
            "pass": "forward + backward" if backward else "forward",
            "method": method,
            "dtype": str(case.dtype).removeprefix("torch."),
            "tokens": case.batch * case.n,
            "dropout": case.dropout_p,
            "package": f"torch {torch.__version__}" if method in PYTORCH else package,
            "backend": "" if method in PYTORCH or method in PEERS else backend_of(method, case),
            "ms": round(1e3 * time.median, 3),
            "ms low": round(1e3 * time.low, 3),
            "ms high": round(1e3 * time.high, 3),
            "repeats": time.repeats,
            "time ratio": round(time.median / times["plain"].median, 3),
            "peak MiB": round(memory[method] / 2**20, 1),
            "memory ratio": round(memory[method] / max(1, memory["plain"]), 2),
            "operations ratio": round(operations(method, case.n) / operations("plain", case.n), 2),
            "heads": HEADS,
            "dim": DIM,
            "clip": CLIP,
        }


def show(row: dict[str, object]) -> str:
    causal = "causal" if row["causal"] else "full"
    spread = f"{row['ms low']:.2f}–{row['ms high']:.2f}"
    ratios = f"{row['time ratio']:>11.2f} {row['memory ratio']:>7.2f} {row['operations ratio']:>11.2f}"
    return (
        f"{row['n']:>5}  {causal:<6}  {row['pass']:<18}  {row['method']:<10}  {row['ms']:>9.2f}  {spread:>19}  "
        f"{row['peak MiB']:>8.1f}  {ratios}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    present = [name for name in PEERS if peers.installed(name)]
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="sentence lengths n")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=["auto", *present],
        help="what is timed beside plain attention; by default auto and the peers that are installed",
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens per batch, and one sentence at least")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of probabilities dropped")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats of a method, at least")
    parser.add_argument("--seconds", type=float, default=2.0, help="more repeats, while they take no longer than this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "attention-cpu.csv")
    arguments = parser.parse_args()
    missing = [method for method in arguments.methods if method in PEERS and method not in present]
    if missing:
        parser.error(f"{', '.join(missing)} not installed; benchmarks/peers.py says how")
    if arguments.dropout > 0.0 and any(method in PEERS for method in arguments.methods):
        parser.error("the peers drop nothing here: with --dropout, name the --methods")
    return arguments


def main() -> None:
    arguments = parse()
    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    print(
        f"{HEADS} heads, d = {DIM}, k = {CLIP}, {arguments.tokens} tokens per batch, {arguments.dtype}, "
        f"dropout {arguments.dropout}"
    )
    print(
        f"{'n':>5}  {'mask':<6}  {'pass':<18}  {'method':<10}  {'ms':>9}  {'middle half':>19}  {'MiB':>8}  "
        "ratio: time, memory, operations"
    )
    wanted = list(dict.fromkeys(["plain", *arguments.methods]))
    preload([PEERS[method].module for method in wanted if method in PEERS])
    for method in wanted:  # whatever a first call loads, it loads here
        prepare(method, Case(1, HEADS, 64, DIM, CLIP, CLIP, False, getattr(torch, arguments.dtype)), True)()
    for n, is_causal, backward in product(arguments.lengths, (False, True), (False, True)):
        batch, dtype = max(1, arguments.tokens // n), getattr(torch, arguments.dtype)
        case = Case(batch, HEADS, n, DIM, CLIP, CLIP, is_causal, dtype, arguments.dropout)
        needs = {method: memory_needed(method, case, backward) for method in wanted}
        fits = [method for method in wanted if needs[method] < available_memory() / 2]
        rows = [{**row, **held} for row in measure(case, backward, fits, arguments.repeats, arguments.seconds)]
        keep(arguments.out, rows, KEY)
        for row in rows:
            print(show(row), flush=True)
        for method in wanted:
            if method not in fits:
                print(f"{n:>5}  {method} left out: it needs about {needs[method] / 2**30:.0f} GiB")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
