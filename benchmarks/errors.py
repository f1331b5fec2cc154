"""Rounding errors of relative attention, next to those of PyTorch's attention in the same precision.

An error is the norm of the difference from the same computation in float64 (ours with the backend `dense`), divided by
the norm of that result. Inputs are rounded first, so both computations have the same. PyTorch's attention has no
gradients of tables; ours are compared with its largest error. The exit code is 1 if a ratio is above 2.
"""

import sys
from itertools import product

import torch
from relattn import backends
from torch import Tensor

from benchmarks.attention import CLIP, DIM, attention, backend_of, inputs_of
from benchmarks.forms import Case
from benchmarks.measure import Row, command, parse, record

LENGTHS, HEADS = (32, 64, 128, 256, 512, 1024, 2048), 2
RESULTS = ("output", "d query", "d key", "d value", "d rel_key", "d rel_value")
KEY = ("n", "causal", "dtype", "method", "result")
LIMIT = 2.0


def results(method: str, case: Case, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of all inputs, for a cotangent that bfloat16 represents exactly."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attention(method, case)(*leaves)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent.to(output))]


def errors(method: str, case: Case) -> dict[str, float]:
    """Return the error of each result of a method."""
    inputs = inputs_of(method, case, False)
    exact = results(method if method == "plain" else "dense", case, [x.double() for x in inputs])
    got = results(method, case, inputs)
    relative = [float((x.double() - want).norm() / want.norm()) for x, want in zip(got, exact, strict=True)]
    return dict(zip(RESULTS, relative, strict=False))


def rows(method: str, case: Case) -> list[Row]:
    """Return a row for each result of a method."""
    plain, ours = errors("plain", case), errors(method, case)
    reference = {result: plain.get(result, max(plain.values())) for result in ours}
    return [
        {
            "n": case.n,
            "causal": case.is_causal,
            "dtype": str(case.dtype).removeprefix("torch."),
            "method": method,
            "result": result,
            "backend": backend_of(method, case),
            "error": f"{error:.3e}",
            "plain": f"{reference[result]:.3e}",
            "ratio": round(error / reference[result], 3),
        }
        for result, error in ours.items()
    ]


def main() -> None:
    parser = command("errors", __doc__)
    dtypes = ("float32", "bfloat16", "float16")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sentence lengths n (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=("auto", *backends.NAMES), default=["auto"], help="backends")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes[:2], help="(%(default)s)")
    arguments = parse(parser, "errors-cpu.csv")
    worst = 0.0
    for n, is_causal, dtype, method in product(arguments.lengths, (False, True), arguments.dtypes, arguments.methods):
        case = Case(1, HEADS, n, DIM, CLIP, CLIP, is_causal, getattr(torch, dtype))
        measured = rows(method, case)
        record(arguments, measured, KEY)
        worst = max(worst, *(row["ratio"] for row in measured))
    print(f"largest ratio {worst:.2f}, at most {LIMIT} allowed")
    sys.exit(0 if worst <= LIMIT else 1)


if __name__ == "__main__":
    main()
