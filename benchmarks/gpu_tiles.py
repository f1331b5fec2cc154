"""Times of the Triton kernels with other tiles, for the table in `relattn.backends.triton.configs`.

One kernel at a time gets other tiles. The time is that of the whole pass it belongs to, with the other kernels as in
the table.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from relattn.backends.triton import operators, plan
from relattn.backends.triton.configs import TileConfig
from relattn.call import Call

from benchmarks.gpu_times import REPEATS, seconds_on_gpu
from benchmarks.measure import Row, alternate, measured
from benchmarks.workers import Task, reason

KEY = ("form", "n", "dim", "causal", "dtype", "kernel", "rows", "cols", "near", "warps", "stages")
SECONDS = 0.03  # per candidate
CANDIDATES: dict[str, tuple[TileConfig, ...]] = {
    "forward": tuple(
        TileConfig(*sizes)
        for sizes in (
            (128, 128, 32, 8, 2), (128, 128, 32, 8, 3), (128, 128, 16, 8, 2), (128, 128, 64, 8, 2), (128, 64, 32, 8, 2),
            (128, 64, 32, 8, 3), (128, 64, 64, 8, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 2), (64, 64, 32, 4, 3),
            (64, 128, 32, 4, 2), (64, 64, 64, 4, 3),
        )
    ),
    "backward_query": tuple(
        TileConfig(*sizes)
        for sizes in (
            (128, 64, 32, 8, 2), (128, 64, 16, 8, 2), (128, 64, 32, 8, 3), (128, 128, 32, 8, 2), (128, 32, 32, 8, 2),
            (64, 64, 32, 4, 2), (64, 64, 32, 4, 3), (64, 64, 16, 4, 2), (64, 128, 32, 4, 2), (64, 32, 32, 4, 2),
        )
    ),
    "backward_key": tuple(
        TileConfig(*sizes)
        for sizes in (
            (64, 128, 32, 8, 2), (64, 128, 16, 8, 2), (64, 128, 32, 8, 3), (128, 128, 32, 8, 2), (32, 128, 32, 8, 2),
            (64, 64, 32, 4, 2), (64, 64, 32, 4, 3), (64, 64, 16, 4, 2), (32, 64, 32, 4, 2), (128, 64, 32, 4, 2),
        )
    ),
    "whole": tuple(
        TileConfig(*sizes)
        for sizes in ((128, 64, 32, 8, 1), (128, 64, 16, 8, 1), (128, 64, 64, 8, 1), (128, 64, 32, 4, 1),
                      (128, 64, 64, 4, 1))
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Self-attention in a form: "shaw" (both tables, clip 16), "deberta" (clip 511), "xl" (a row per distance)."""

    form: str
    n: int
    dim: int = 64
    causal: bool = False
    dtype: str = "bfloat16"
    tokens: int = 16384

    def call(self, device: str) -> Call:
        batch, heads = max(1, self.tokens // self.n), 12 if self.form == "deberta" else 8
        clip = {"shaw": 16, "deberta": min(511, self.n - 1), "xl": self.n - 1}[self.form]

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, device=device, dtype=getattr(torch, self.dtype))

        def rows() -> torch.Tensor:  # memory layout of a projection
            return normal(batch, self.n, heads, self.dim).transpose(1, 2)

        right = 0 if self.causal else clip
        lead = () if self.form == "shaw" else (heads,)
        tables = [normal(*lead, clip + right + 1, self.dim) for _ in range(2)]
        return Call(
            rows(),
            rows(),
            rows(),
            rel_key=tables[0],
            rel_value=tables[1] if self.form == "shaw" else None,
            pos_query=tables[1] if self.form == "deberta" else None,
            rel_query=rows() if self.form == "xl" else None,
            left=clip,
            right=right,
            is_causal=self.causal,
            scale=self.dim**-0.5,
        )


SHAPES = (
    Shape("shaw", 2048),
    Shape("deberta", 2048),
    Shape("shaw", 2048, causal=True),
    Shape("shaw", 128),
    Shape("xl", 1024),
    Shape("shaw", 2048, dim=128),
)
TINY = (Shape("shaw", 16, 4, tokens=16),)


def plan_with(call: Call, kernel: str, tiles: TileConfig) -> plan.Plan:
    """Return the plan of a call in which a kernel has other tiles."""
    tiles_of = plan.tiles_of
    plan.plan.cache_clear()
    with mock.patch.object(plan, "tiles_of", lambda name, sizes: tiles if name == kernel else tiles_of(name, sizes)):
        made = plan.plan_of(call)
    plan.plan.cache_clear()
    return made


def run_with(made: plan.Plan, run: Any) -> None:
    """Run a pass by a plan."""
    with mock.patch.object(operators, "plan_of", return_value=made):
        run()


def work_of(shape: Shape, kernel: str, tiles: TileConfig, device: str) -> Any:
    """Return a function that runs the pass of a kernel."""
    call = shape.call(device)
    run: Any = partial(operators.run_forward, call)
    if kernel != "forward":
        results = operators.run_forward(call)
        run = partial(operators.run_backward, call, torch.randn_like(results[0]), *results)
    return partial(run_with, plan_with(call, kernel, tiles), run)


def kernels_of(shape: Shape) -> tuple[str, ...]:
    is_short = shape.n <= 128 and shape.form != "deberta"
    return ("forward", "whole") if is_short else ("forward", "backward_query", "backward_key")


def compile_tiles(shape: Shape, kernel: str, tiles: TileConfig, device: str) -> None:
    """Run a kernel once, so that Triton's cache on the disk has it."""
    work_of(shape, kernel, tiles, device)()


def time_tiles(shape: Shape, kernel: str, candidates: tuple[TileConfig, ...], device: str) -> list[Row]:
    """Return a row per candidate. A candidate that fails has the error in its note."""
    works, rows = dict[TileConfig, Any](), dict[TileConfig, Row]()
    sizes = {"form": shape.form, "n": shape.n, "dim": shape.dim, "causal": shape.causal, "dtype": shape.dtype}
    empty: Row = dict.fromkeys(("ms", "ms low", "ms high", "repeats", "note"), "")
    for tiles in candidates:
        rows[tiles] = sizes | {"kernel": kernel, **tiles._asdict()} | empty
        try:
            work = work_of(shape, kernel, tiles, device)
            work()
            works[tiles] = work if device == "cpu" else partial(seconds_on_gpu, measured(work), work)
        except Exception as error:  # out of shared memory, or a shape that the compiler rejects
            rows[tiles]["note"] = reason(error)
    times = alternate(works, REPEATS, SECONDS, clock=None if device == "cpu" else lambda clock: clock())
    for tiles, time in times.items():
        rows[tiles] |= time.columns()
    return list(rows.values())


def tasks(device: str, compiles: bool) -> dict[str, Task]:
    """Return a task per shape and kernel; or with `compiles` one per candidate, which only compiles it."""
    found: dict[str, Task] = {}
    for shape in TINY if device == "cpu" else SHAPES:
        for kernel in kernels_of(shape):
            candidates = CANDIDATES[kernel][: 2 if device == "cpu" else None]
            if device == "cpu":
                candidates = tuple(TileConfig(16, 16, near, 4, 1) for near in (16, 16))[:1]
            name = f"{kernel}: {shape}"
            if compiles:
                found |= {
                    f"{name}, {tuple(tiles)}": (compile_tiles, (shape, kernel, tiles, device)) for tiles in candidates
                }
            else:
                found[name] = time_tiles, (shape, kernel, candidates, device)
    return found
