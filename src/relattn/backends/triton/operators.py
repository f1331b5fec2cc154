"""The kernels as functions of PyTorch tensors, and as operators: `relattn::triton` and its way back.

Three launches serve a call with gradients: `forward`; `backward_query`, for dq and the tables; `backward_key`, for dk
and dv. Short sequences need two: where a program has all queries of a head, `backward_query` does the whole way back.
Every program has room of its own for its part of the tables' gradients, and the parts are summed here.
"""

import contextlib
import math
from typing import Any

import torch
import triton
from torch import Tensor
from triton.language import constexpr as fixed

from relattn.backends.fused import Arguments, register, results, with_contiguous_rows
from relattn.backends.triton.arrays import Array
from relattn.backends.triton.backward import KINDS, backward_key, backward_query
from relattn.backends.triton.configs import Config, config, labels_at_once
from relattn.backends.triton.forward import forward
from relattn.backends.triton.pairs import Pairs

FURTHEST = 2**30  # a position further than any key might be


def run_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp (batch, heads, queries), float32: to base two, as the way back wants it."""
    problem = Problem(Arguments(*arguments))
    output, lse = results(problem.query, problem.value)
    tiles = problem.tiles("forward")
    blocks = triton.cdiv(output.shape[2], tiles.rows)
    launch(forward, blocks * lse.shape[0] * lse.shape[1], tiles, problem, output=array(output), lse=lse, blocks=blocks)
    return output, lse


def run_backward(grad: Tensor, output: Tensor, lse: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, rel_key and rel_value; an empty one for a table that is not there."""
    problem = Problem(Arguments(*arguments))
    batch, heads, queries = lse.shape
    key_heads, keys = problem.key.shape[1:3]
    d_query, d_key, d_value = (torch.empty_like(x) for x in (problem.query, problem.key, problem.value))
    tiles = problem.tiles("whole")
    whole = heads == key_heads and keys > 0 and 0 < queries <= tiles.rows
    if not whole:
        tiles = problem.tiles("backward_query")
    blocks = triton.cdiv(queries, tiles.rows)
    d_rel_key, d_rel_value = (
        problem.new_parts(table, batch * blocks) for table in (problem.rel_key, problem.rel_value)
    )
    shared = {
        "grad": array(with_contiguous_rows(grad)),
        "lse": lse,
        "numbers": lse.new_empty(0 if whole else KINDS, *lse.shape),
        "d_key": array(d_key),
        "d_value": array(d_value),
        "scale": problem.scale,
    }
    launch(
        backward_query,
        batch * heads * blocks,
        tiles,
        problem,
        output=array(output),
        d_query=array(d_query),
        d_rel_key=None if d_rel_key is None else array(d_rel_key),
        d_rel_value=None if d_rel_value is None else array(d_rel_value),
        blocks=blocks,
        WHOLE=whole,
        **shared,
    )
    if not whole:
        tiles = problem.tiles("backward_key")
        blocks = triton.cdiv(keys, tiles.cols)
        launch(backward_key, batch * key_heads * blocks, tiles, problem, blocks=blocks, **shared)
    given = ((problem.rel_key, d_rel_key), (problem.rel_value, d_rel_value))
    tables = (grad.new_empty(0) if parts is None else sum_of_parts(parts, table) for table, parts in given)
    return d_query, d_key, d_value, *tables


class Problem:
    """A call's arguments as the kernels take them."""

    def __init__(self, given: Arguments) -> None:
        self.query, self.key, self.value = (with_contiguous_rows(x) for x in (given.query, given.key, given.value))
        self.rel_key, self.rel_value, self.scale = given.rel_key, given.rel_value, given.scale
        table = given.rel_key if given.rel_key is not None else given.rel_value
        left, right, edges = given.left, given.right, given.clips and table is not None
        # distances in the window are start … stop, or none; it has a number of labels, the first of them row `shift`
        start, stop, shift = (-left, right + 1, 0) if not given.clips else (1 - left, max(right, 1 - left), 1)
        if table is None:
            start, stop, shift = 1, 1, 0
        labels = stop - start if given.relations is None or table is None else table.shape[-2]
        self.table_rows = shift + labels + edges
        at_once = labels_at_once(labels)
        self.adds = given.relations is not None or labels > at_once  # to a program's part, not in one go
        kept = 1.0 - given.dropout_p
        batch, heads, queries, _ = given.query.shape
        _, key_heads, keys, _ = given.key.shape
        self.pairs = Pairs(
            relations=self.array_of_pairs(given.relations),
            mask=self.array_of_pairs(given.mask),
            offsets=None if given.offsets is None else given.offsets.contiguous(),
            lengths=None if given.lengths is None else given.lengths.contiguous(),
            seed=given.seed,
            offset=max(-FURTHEST, min(given.offset, FURTHEST)),
            batch=batch,
            heads=heads,
            key_heads=key_heads,
            group=heads // key_heads,
            queries=queries,
            keys=keys,
            start=start,
            stop=stop,
            labels=labels,
            shift=shift,
            threshold=int(kept * 2**24),
            boost=1.0 / kept if kept > 0.0 else 0.0,
            CHUNK=fixed(at_once),
            ONE_CHUNK=fixed(labels <= at_once),
            EDGES=fixed(edges),
            CAUSAL=fixed(given.is_causal),
            PRECISION=fixed("ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"),
        )

    def array_of_pairs(self, x: Tensor | None) -> Array | None:
        """A mask or labels; its stride is 0 where it is broadcast."""
        if x is None:
            return None
        x = x.expand(*self.query.shape[:3], self.key.shape[2])
        batch, head, row, column = x.stride()
        return Array(x, batch, head, row, column)

    def arguments(self) -> dict[str, Any]:
        """What every kernel takes."""
        return {
            "query": array(self.query),
            "key": array(self.key),
            "value": array(self.value),
            "rel_key": None if self.rel_key is None else array_of_table(self.rel_key),
            "rel_value": None if self.rel_value is None else array_of_table(self.rel_value),
            "pairs": self.pairs,
            "scale2": self.scale / math.log(2.0),  # for powers of two, rounded once
        }

    def tiles(self, kernel: str) -> Config:
        """No larger than the sequences need."""
        dim = max(padded(self.query.shape[3]), padded(self.value.shape[3]))
        tiles = config(kernel, self.query.device, self.query.dtype, dim)
        rows, cols = min(tiles.rows, padded(self.query.shape[2])), min(tiles.cols, padded(self.key.shape[2]))
        return tiles._replace(rows=rows, cols=cols, near=max(16, min(tiles.near, rows, cols)))

    def new_parts(self, table: Tensor | None, programs: int) -> Tensor | None:
        """Room for the gradients of a table by every program, (programs a head, heads, rows, dim)."""
        if table is None:
            return None
        sizes = (programs, self.query.shape[1], self.table_rows, table.shape[-1])
        new = torch.zeros if self.adds else torch.empty
        return new(sizes, dtype=torch.float32, device=table.device)


def padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def array(x: Tensor) -> Array:
    batch, head, row, column = x.stride()
    return Array(x, batch, head, row, column, fixed(x.shape[3]), fixed(padded(x.shape[3])))


def array_of_table(table: Tensor) -> Array:
    """A table (labels, dim) or (heads, labels, dim). Where it has one row, the row of either edge is that one."""
    rows, dim = table.shape[-2:]
    head, row, column = table.stride() if table.dim() == 3 else (0, *table.stride())
    return Array(table, 0, head, row if rows > 1 else 0, column, fixed(dim), fixed(padded(dim)))


def sum_of_parts(parts: Tensor, table: Tensor | None) -> Tensor:
    """In the table's own shape and type. A table of one row has it as either edge's."""
    assert table is not None
    total = parts.sum(0) if table.dim() == 3 else parts.sum((0, 1))
    return (total.sum(-2, keepdim=True) if table.shape[-2] == 1 else total).to(table.dtype)


def launch(kernel: Any, programs: int, tiles: Config, problem: Problem, **arguments: Any) -> None:
    device = problem.query.device
    if programs > 0:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            kernel[(programs,)](**launched(tiles, problem, arguments))


def launched(tiles: Config, problem: Problem, arguments: dict[str, Any]) -> dict[str, Any]:
    """All that a kernel is launched with."""
    sizes = {"ROWS": tiles.rows, "COLS": tiles.cols, "NEAR": tiles.near}
    return {**problem.arguments(), **arguments, **sizes, "num_warps": tiles.warps, "num_stages": tiles.stages}


attention, attention_backward = register("triton", run_forward, run_backward)
