"""Attention in a sliding window on a CPU: time and memory per length, ours and other ways to restrict it.

Methods: `window`, ours with `window=(W, W)`; `full`, ours without a window; `mask`, PyTorch's own attention without
positions with a band as its mask; `flex`, FlexAttention, compiled, with a band as its block mask, forward only. One
sequence, 8 heads, d = 64; ours has both tables with k = 16. Methods whose time or memory grows with the square of the
length are measured up to `MOST` positions.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from relattn import relative_attention
from torch import Tensor

from benchmarks.attention import CLIP, DIM, HEADS, PASSES, run_of
from benchmarks.measure import alternate, command, parse, peak_memory, preload, record

LENGTHS = (4096, 8192, 16384, 65536, 262144)
WINDOW, MOST = 128, 16384  # keys on either side of a query, and longest sequence of the other methods
METHODS, KEY = ("window", "full", "mask", "flex"), ("n", "window", "pass", "method")
Work = Callable[[], object]


def prepare(method: str, n: int, window: int, backward: bool) -> Work:
    """Return a run of a method on one sequence of length n."""
    inputs = [torch.randn(1, n, HEADS, DIM).transpose(1, 2) for _ in "qkv"]
    cotangent = torch.randn(1, n, HEADS, DIM).transpose(1, 2)
    if method in ("window", "full"):
        inputs += [torch.randn(2 * CLIP + 1, DIM) for _ in "kv"]
    inputs = [x.requires_grad_(backward) for x in inputs]
    return run_of(attention(method, n, window), inputs, cotangent, backward)


def attention(method: str, n: int, window: int) -> Callable[..., Any]:
    """Return a method as a function of its inputs."""
    if method == "full":
        return relative_attention
    if method == "window":
        return lambda *inputs: relative_attention(*inputs, window=(window, window))
    if method == "mask":
        position = torch.arange(n)
        band = (position - position[:, None]).abs() <= window
        return partial(F.scaled_dot_product_attention, attn_mask=band)

    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def in_band(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= window

    torch._dynamo.reset()  # the number of compiled variants is limited
    mask, compiled = create_block_mask(in_band, None, None, n, n, device="cpu"), torch.compile(flex_attention)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return compiled(query, key, value, block_mask=mask)

    with torch.no_grad():
        attend(*torch.zeros(3, 1, n, HEADS, DIM).transpose(2, 3))  # compiles it for these strides before it is timed
    return attend


def main() -> None:
    parser = command("windows", __doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="lengths (%(default)s)")
    arguments = parse(parser, "windows-cpu.csv", threads=2)
    preload([__name__])
    for n, backward in product(arguments.lengths, (False, True)):
        names = [name for name in METHODS if n <= MOST or name == "window"]
        names = [name for name in names if name != "flex" or not backward]
        times = alternate({name: prepare(name, n, WINDOW, backward) for name in names}, 3)
        for name, time in times.items():
            small, case = ((name, length, WINDOW, backward) for length in (512, n))
            peak = peak_memory(prepare, small, case)
            row = {"n": n, "window": WINDOW, "pass": PASSES[backward], "method": name, **time.columns()}
            row |= {"us per token": round(1e6 * time.median / n, 3), "peak MiB": round(peak / 2**20, 1)}
            record(arguments, [row], KEY)


if __name__ == "__main__":
    main()
