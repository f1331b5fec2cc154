"""Time and memory of relative attention on a CPU, next to PyTorch's attention without positions.

At every length n, the batch has the same number of tokens, with 8 heads of 64 dimensions and k = 16. The forward pass,
and forward and backward together, are timed alternately. Ratios are to PyTorch's attention ("plain"). Queries, keys and
values have the memory layout of a projection's output, (batch, n, heads, dim).

Methods are `plain`, `auto` (relative_attention with its default backend), `no tables` (the same without relative
terms), the name of a backend, and the forms of `benchmarks.forms` (Transformer-XL and T5, ours and with a mask). A
method is left out at lengths where it would need more than half of the available memory, extrapolated with the square
of n.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import relattn
import torch
import torch.nn.functional as F
from relattn import backends, relative_attention
from relattn.call import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import forms
from benchmarks.forms import Attend, Case
from benchmarks.measure import Row, alternate, available_memory, command, parse, peak_memory, preload, record

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NO_TABLES = "no tables"
METHODS = ("plain", "auto", NO_TABLES, *backends.NAMES, *forms.METHODS)
PLAIN = {"plain": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
PYTORCH = (*PLAIN, "flex", *forms.BY_MASK, *forms.BY_FLEX)
HEADS, DIM, CLIP, TOKENS = 8, 64, 16, 8192
KEY = ("n", "causal", "pass", "method", "dtype", "tokens", "dropout")
SHOWN = (*KEY[:4], "ms", "ms low", "ms high", "peak MiB", "time ratio", "memory ratio")
PASSES = ("forward", "forward + backward")


def attention(method: str, case: Case) -> Attend:
    """Return a method as a function of query, key, value and its tables."""
    if method in forms.METHODS or method in forms.BY_FLEX:
        return forms.attention(method, case)
    if method == "flex":
        return flex(case)
    options: dict[str, Any] = {"is_causal": case.is_causal, "dropout_p": case.dropout_p}
    if method in PLAIN:
        return partial(plain, PLAIN[method], options)
    clip = {} if method == NO_TABLES else {"clip": (case.left, case.right)}
    return partial(relative_attention, **clip, **options, backend="auto" if method == NO_TABLES else method)


def plain(kernel: SDPBackend | None, options: dict[str, Any], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with nullcontext() if kernel is None else sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(query, key, value, **options)


def flex(case: Case) -> Attend:
    """Return FlexAttention, not causal, with the term q_i · aK_ij. It cannot express the term of values."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor) -> Tensor:
        terms = (query @ rel_key.mT) * case.dim**-0.5  # (batch, heads, n, labels)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + terms[b, h, i, torch.clamp(j - i, -case.left, case.right) + case.left]

        output = flex_attention(query, key, value, score_mod=score_mod)
        assert isinstance(output, Tensor)
        return output

    torch._dynamo.reset()  # each length is compiled, and the number of compiled variants is limited
    return torch.compile(attend, dynamic=False)


def inputs_of(method: str, case: Case, requires_grad: bool) -> list[Tensor]:
    """Return query, key, value and the tables of a method, with the same numbers for all methods."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    tables = {**dict.fromkeys((*PLAIN, NO_TABLES), 0), "flex": 1}
    made = [torch.randn(case.batch, case.n, case.heads, case.dim, generator=generator).transpose(1, 2) for _ in "qkv"]
    if method in forms.METHODS or method in forms.BY_FLEX:
        made += forms.others(method, case, generator)
    else:
        labels = case.left + case.right + 1
        made += [torch.randn(labels, case.dim, generator=generator) for _ in range(tables.get(method, 2))]
    return [x.to(case.dtype).requires_grad_(requires_grad) for x in made]


def prepare(method: str, case: Case, backward: bool) -> Callable[[], object]:
    """Return a function that runs `method` once."""
    inputs = inputs_of(method, case, backward)
    cotangent = torch.randn(inputs[0].transpose(1, 2).shape).to(case.dtype).transpose(1, 2)
    return run_of(attention(method, case), inputs, cotangent, backward)


def run_of(attend: Attend, inputs: list[Tensor], cotangent: Tensor, backward: bool) -> Callable[[], object]:
    """Return a function that runs the forward pass without gradients, or forward and backward."""

    def forward() -> object:
        with torch.no_grad():
            return attend(*inputs)

    def forward_and_backward() -> object:
        return torch.autograd.grad(attend(*inputs), inputs, cotangent)

    return forward_and_backward if backward else forward


def backend_of(method: str, case: Case) -> str:
    """Return the name of the backend that computes one of our methods."""
    query = torch.empty((), dtype=case.dtype).expand(case.batch, case.heads, case.n, case.dim)
    table = torch.empty((), dtype=case.dtype).expand(2 * CLIP + 1, case.dim)
    call = Call(query, query, query, table, table, left=CLIP, right=CLIP, is_causal=case.is_causal)
    return backends.choose(method if method in backends.NAMES else "auto", call).__name__.rpartition(".")[2]


def described(method: str, case: Case, backward: bool) -> Row:
    """Return the columns that do not depend on the measurement."""
    return {
        "n": case.n,
        "causal": case.is_causal,
        "pass": PASSES[backward],
        "method": method,
        "dtype": str(case.dtype).removeprefix("torch."),
        "tokens": case.batch * case.n,
        "dropout": case.dropout_p,
        "package": f"torch {torch.__version__}" if method in PYTORCH else f"relattn {relattn.__version__}",
        "heads": case.heads,
        "dim": case.dim,
        "clip": case.left,
    }


def measure(case: Case, backward: bool, peaks: dict[str, int], repeats: int, seconds: float) -> list[Row]:
    """Time methods, and return a row for each. `peaks` has their peak memory in bytes."""
    times = alternate({method: prepare(method, case, backward) for method in peaks}, repeats, seconds)
    return [
        {
            **described(method, case, backward),
            "backend": "" if method in PYTORCH else backend_of(method, case),
            **time.columns(),
            "time ratio": round(time.median / times["plain"].median, 3),
            "peak MiB": round(peaks[method] / 2**20, 1),
            "memory ratio": round(peaks[method] / max(1, peaks["plain"]), 2),
        }
        for method, time in times.items()
    ]


def main() -> None:
    parser = command("attention", __doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sentence lengths n (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["auto"], help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens per batch (%(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout probability (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="minimum number of timed runs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for more runs of a fast method (%(default)s)")
    arguments = parse(parser, "attention-cpu.csv")
    dtype = getattr(torch, arguments.dtype)
    wanted = list(dict.fromkeys(["plain", *arguments.methods]))
    preload([])
    for method in wanted:  # a first call loads libraries
        prepare(method, Case(1, HEADS, 64, DIM, CLIP, CLIP, False, dtype), True)()
    last: dict[tuple[str, bool, bool], tuple[int, int]] = {}  # longest n that was measured, and its peak memory
    for n, is_causal, backward in product(sorted(arguments.lengths), (False, True), (False, True)):
        case = Case(max(1, arguments.tokens // n), HEADS, n, DIM, CLIP, CLIP, is_causal, dtype, arguments.dropout)
        small, peaks = replace(case, batch=1, n=min(n, 512)), dict[str, int]()
        for method in wanted:
            shorter, peak = last.get((method, is_causal, backward), (n, 0))
            if (needed := peak * (n / shorter) ** 2) > available_memory() / 2:
                print(f"n {n}  method {method} left out: {needed / 2**30:.0f} GiB extrapolated from n = {shorter}")
                continue
            peaks[method] = peak_memory(prepare, (method, small, backward), (method, case, backward))
            last[method, is_causal, backward] = n, peaks[method]
        record(arguments, measure(case, backward, peaks, arguments.repeats, arguments.seconds), KEY, SHOWN)


if __name__ == "__main__":
    main()
