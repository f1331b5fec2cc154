"""What relative positions cost: `dense` and `reference` beside PyTorch's own attention with no positions at all.

Each length n gets the same number of tokens, 8 heads of 64 dimensions and a window of k = 16; forward, and forward
with backward, are timed alternately; every figure is also given as a ratio to plain attention's. Operations are
counted on paper: multiply-adds of the matrix products of each method, forward.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import alternate, available_memory, conditions, peak_memory
from relattn import relative_attention

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
METHODS = ("plain", "dense", "reference")
HEADS, DIM, CLIP, TOKENS = 8, 64, 16, 8192


def operations(method: str, n: int) -> int:
    """Multiply-adds of one sentence and head, forward: two products for plain attention, four with aK and aV."""
    plain = 2 * n * n * DIM
    match method:
        case "plain":
            return plain
        case "dense":  # both tables against the 2n + 1 diagonals of the pairs
            return plain + 2 * n * (2 * n + 1) * DIM
        case "reference":
            return 2 * plain
    raise ValueError(f"{method!r} is none of {', '.join(METHODS)}")


def attend(method: str, inputs: tuple[Tensor, ...]) -> Tensor:
    query, key, value, rel_key, rel_value = inputs
    if method == "plain":
        return F.scaled_dot_product_attention(query, key, value)
    output = relative_attention(query, key, value, rel_key, rel_value, clip=CLIP, backend=method)
    assert isinstance(output, Tensor)
    return output


def prepare(method: str, n: int, tokens: int, backward: bool) -> Callable[[], object]:
    """A run of `method`: forward without a graph, or forward and backward."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(max(1, tokens // n), HEADS, n, DIM)] * 3 + [(2 * CLIP + 1, DIM)] * 2
    inputs = tuple(torch.randn(size, generator=generator, requires_grad=backward) for size in sizes)
    cotangent = torch.randn(sizes[0], generator=generator)

    def forward() -> object:
        with torch.no_grad():
            return attend(method, inputs)

    def forward_and_backward() -> object:
        given = inputs[:3] if method == "plain" else inputs
        return torch.autograd.grad(attend(method, inputs), given, cotangent)

    return forward_and_backward if backward else forward


def fits(method: str, n: int, tokens: int, backward: bool) -> bool:
    """Whether the reference's (batch, heads, n, n, dim) products are within half of the memory there is."""
    copies = 3 if backward else 1
    return method != "reference" or copies * 2 * 4 * tokens * n * HEADS * DIM < available_memory() / 2


def rows(lengths: list[int], tokens: int, repeats: int):
    for n in lengths:
        for backward in (False, True):
            methods = [method for method in METHODS if fits(method, n, tokens, backward)]
            times = alternate({method: prepare(method, n, tokens, backward) for method in methods}, repeats)
            memory = {method: peak_memory(prepare, method, n, tokens, backward) for method in methods}
            for method in methods:
                time = times[method]
                yield {
                    "n": n,
                    "pass": "forward + backward" if backward else "forward",
                    "method": method,
                    "ms": round(1e3 * time.median, 3),
                    "ms low": round(1e3 * time.low, 3),
                    "ms high": round(1e3 * time.high, 3),
                    "time ratio": round(time.median / times["plain"].median, 2),
                    "peak MiB": round(memory[method] / 2**20, 1),
                    "memory ratio": round(memory[method] / max(1, memory["plain"]), 2),
                    "operations ratio": round(operations(method, n) / operations("plain", n), 2),
                    "repeats": repeats,
                    "tokens": tokens,
                }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="sentence lengths n")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens a batch")
    parser.add_argument("--repeats", type=int, default=9, help="timed repeats of each method")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "attention-cpu.csv")
    arguments = parser.parse_args()

    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    print(f"{HEADS} heads, d = {DIM}, k = {CLIP}, {arguments.tokens} tokens a batch, float32, no mask, no dropout")
    print(
        f"{'n':>5}  {'pass':<18}  {'method':<9}  {'ms':>10}  {'middle half':>17}  {'MiB':>8}  "
        "ratio: time, memory, operations"
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for row in rows(arguments.lengths, arguments.tokens, arguments.repeats):
            if writer is None:
                writer = csv.DictWriter(file, [*row, *held], lineterminator="\n")
                writer.writeheader()
            writer.writerow({**row, **held})
            spread = f"{row['ms low']:.2f}–{row['ms high']:.2f}"
            ratios = f"{row['time ratio']:>11.2f} {row['memory ratio']:>6.2f} {row['operations ratio']:>10.2f}"
            print(
                f"{row['n']:>5}  {row['pass']:<18}  {row['method']:<9}  {row['ms']:>10.2f}  {spread:>17}  "
                f"{row['peak MiB']:>8.1f}  {ratios}",
                flush=True,
            )
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
