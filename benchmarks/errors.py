"""What rounding costs: ours against float64, beside plain attention's own loss in the same precision.

An error is the distance from the same computation in float64 (ours by `dense`), as a share of its norm; inputs are
rounded first, so that they are the same numbers in both. Gradients of the tables, which plain attention has not, are
set beside its largest. Exits 1 where ours is more than twice plain attention's.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.attention import CLIP, DIM, attention, backend_of, inputs_of
from benchmarks.measure import conditions, keep
from benchmarks.peers import Case
from relattn import backends

LENGTHS, DTYPES, HEADS = (32, 64, 128, 256, 512, 1024, 2048), ("float32", "bfloat16"), 2
RESULTS = ("output", "d query", "d key", "d value", "d rel_key", "d rel_value")
LIMIT = 2.0


def results(method: str, case: Case, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of all inputs, under one cotangent that every precision can hold."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attention(method, case)(*leaves)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent.to(output))]


def errors(method: str, case: Case) -> dict[str, float]:
    inputs = inputs_of(method, case, False)
    exact = results(method if method == "plain" else "dense", case, [x.double() for x in inputs])
    got = results(method, case, inputs)
    relative = [float((x.double() - want).norm() / want.norm()) for x, want in zip(got, exact, strict=True)]
    return dict(zip(RESULTS, relative, strict=False))


def rows(method: str, case: Case) -> Iterator[dict[str, object]]:
    plain, ours = errors("plain", case), errors(method, case)
    for result, error in ours.items():
        beside = plain.get(result, max(plain.values()))
        yield {
            "n": case.n,
            "causal": case.is_causal,
            "dtype": str(case.dtype).removeprefix("torch."),
            "method": method,
            "result": result,
            "backend": backend_of(method, case),
            "error": f"{error:.3e}",
            "plain": f"{beside:.3e}",
            "ratio": round(error / beside, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.errors", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="sentence lengths n")
    parser.add_argument("--methods", nargs="+", choices=("auto", *backends.NAMES), default=["auto"])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16", "float16"), default=list(DTYPES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "errors-cpu.csv")
    arguments = parser.parse_args()

    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    print(f"{HEADS} heads, d = {DIM}, k = {CLIP}; error of ours, and in brackets its ratio to plain attention's")
    print(f"{'n':>5}  {'mask':<6}  {'dtype':<8}  {'method':<9}  " + "  ".join(f"{name:<15}" for name in RESULTS))
    worst = 0.0
    for n, is_causal, dtype, method in product(arguments.lengths, (False, True), arguments.dtypes, arguments.methods):
        found = list(rows(method, Case(1, HEADS, n, DIM, CLIP, CLIP, is_causal, getattr(torch, dtype))))
        keep(arguments.out, [{**row, **held} for row in found], ("n", "causal", "dtype", "method", "result"))
        worst = max(worst, *(float(str(row["ratio"])) for row in found))
        cells = "  ".join(f"{row['error']:>9} ({row['ratio']:.1f})" for row in found)
        print(f"{n:>5}  {'causal' if is_causal else 'full':<6}  {dtype:<8}  {method:<9}  {cells}", flush=True)
    print(f"largest ratio {worst:.2f}, at most {LIMIT} allowed; written to {arguments.out}")
    sys.exit(0 if worst <= LIMIT else 1)


if __name__ == "__main__":
    main()
