"""The kernels as functions of PyTorch tensors, and as operators: `relattn::triton` and its backward pass.

Three launches serve a call with gradients: `forward`; `backward_query`, for dq and the tables; `backward_key`, for dk
and dv. Short sequences need two: where a program has all queries of a head, `backward_query` does the whole backward
pass. A few queries on many keys need `join` after `forward`. Every program of `backward_query` has room of its own for
its part of the tables' gradients, and the parts are summed here. Nothing is read from the device, so that calls can be
captured in a CUDA graph.
"""

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from relattn.backends.fused import Arguments, new_numbers, register, results, with_contiguous_rows
from relattn.backends.triton import failures
from relattn.backends.triton.arrays import Array
from relattn.backends.triton.backward import LEFT_KINDS, backward_key, backward_query
from relattn.backends.triton.configs import Config
from relattn.backends.triton.forward import KINDS, forward, join
from relattn.backends.triton.plan import dims, fixed, padded, plan_of

FURTHEST = 2**30  # a position further than any key might be
LEAST = 1e-37  # scale that the kernels take, so that zero times minus infinity is not asked for


def run_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output; the log-sum-exp (batch, heads, queries), float32; and of each query what the backward pass reads."""
    problem = Problem(Arguments(*arguments))
    plan, query = problem.plan, problem.query
    output, lse = results(query, problem.value)
    batch, heads, queries = lse.shape
    numbers = new_numbers(lse, KINDS.value)
    blocks, splits = plan.blocks["forward"], plan.splits
    parts: tuple[Tensor, ...] = (output, lse, numbers)
    if splits > 1:
        sizes = (
            (splits * batch, heads, queries, output.shape[3]),
            (splits * batch, heads, queries),
            (splits, *numbers.shape),
        )
        parts = tuple(lse.new_empty(size) for size in sizes)
    launch(
        forward,
        splits * blocks * batch * heads,
        plan.tiles["forward"],
        query,
        **problem.inputs(),
        output=array(parts[0]),
        lse=parts[1],
        numbers=parts[2],
        blocks=blocks,
        splits=splits,
    )
    if splits > 1:
        launch(
            join,
            batch * heads * queries,
            None,
            query,
            parts=parts[0],
            part_numbers=parts[2],
            output=array(output),
            lse=lse,
            numbers=numbers,
            **problem.sizes(),
            splits=splits,
            SPLITS=padded(splits),
        )
    return output, lse, numbers


def run_backward(grad: Tensor, output: Tensor, lse: Tensor, numbers: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, rel_key and rel_value; an empty one for a table that is not there."""
    problem = Problem(Arguments(*arguments))
    plan, query = problem.plan, problem.query
    batch, heads, _ = lse.shape
    d_query, d_key, d_value = (torch.empty_like(x) for x in (query, problem.key, problem.value))
    kernel = "whole" if plan.whole else "backward_query"
    blocks, sequences = plan.blocks[kernel], -(-batch // plan.members)
    tables = (problem.rel_key, problem.rel_value)
    parts = tuple(problem.new_parts(table, sequences * blocks) for table in tables)
    shared = {
        **problem.inputs(),
        "grad": array(with_contiguous_rows(grad)),
        "left_numbers": new_numbers(lse, 0 if plan.whole else LEFT_KINDS),
        "d_key": array(d_key),
        "d_value": array(d_value),
        "scale": problem.scale,
    }
    launch(
        backward_query,
        sequences * heads * blocks,
        plan.tiles[kernel],
        query,
        **shared,
        output=array(output),
        numbers=numbers,
        d_query=array(d_query),
        d_rel_key=None if parts[0] is None else array(parts[0]),
        d_rel_value=None if parts[1] is None else array(parts[1]),
        blocks=blocks,
        members=plan.members,
        WHOLE=plan.whole,
        SEVERAL=plan.members > 1,
    )
    if not plan.whole:
        blocks = plan.blocks["backward_key"]
        launch(
            backward_key,
            batch * plan.options.key_heads * blocks,
            plan.tiles["backward_key"],
            query,
            **shared,
            blocks=blocks,
        )
    d_tables = (
        grad.new_empty(0) if part is None else sum_of_parts(part, table)
        for part, table in zip(parts, tables, strict=True)
    )
    return d_query, d_key, d_value, *d_tables


class Problem:
    """A call's arguments as the kernels take them."""

    def __init__(self, given: Arguments) -> None:
        self.plan = plan_of(given)
        self.query = with_contiguous_rows(given.query)
        self.key = with_contiguous_rows(given.key)
        self.value = with_contiguous_rows(given.value)
        self.rel_key, self.rel_value, self.scale = given.rel_key, given.rel_value, max(given.scale, LEAST)
        self.offset = max(-FURTHEST, min(given.offset, FURTHEST))
        self.options = self.plan.options
        if any(x is not None for x in (given.relations, given.mask, given.offsets, given.lengths, given.seed)):
            self.options = self.options._replace(
                relations=self.array_of_pairs(given.relations),
                mask=self.array_of_pairs(given.mask),
                offsets=None if given.offsets is None else given.offsets.contiguous(),
                lengths=None if given.lengths is None else given.lengths.contiguous(),
                seed=given.seed,
            )

    def sizes(self) -> dict[str, Any]:
        """The options, and what changes from call to call."""
        batch, _, queries, _ = self.query.shape
        keys = self.key.shape[2]
        return {"given": self.options, "batch": batch, "queries": queries, "keys": keys, "offset": self.offset}

    def array_of_pairs(self, x: Tensor | None) -> Array | None:
        """A mask or labels; its stride is 0 where it is broadcast."""
        if x is None:
            return None
        x = x.expand(*self.query.shape[:3], self.key.shape[2])
        batch, head, row, column = x.stride()
        return Array(x, batch, head, row, fixed(column), fixed(1), fixed(1))

    def inputs(self) -> dict[str, Any]:
        """What the kernels of attention take, forward and backward."""
        return {
            "query": array(self.query),
            "key": array(self.key),
            "value": array(self.value),
            "rel_key": None if self.rel_key is None else array_of_table(self.rel_key),
            "rel_value": None if self.rel_value is None else array_of_table(self.rel_value),
            **self.sizes(),
            "scale2": self.scale / math.log(2.0),  # for powers of two, rounded once
        }

    def new_parts(self, table: Tensor | None, programs: int) -> Tensor | None:
        """Room for the gradients of a table by every program, (programs a head, heads, rows, dim)."""
        if table is None:
            return None
        sizes = (programs, self.query.shape[1], self.plan.table_rows, table.shape[-1])
        new = torch.zeros if self.plan.adds else torch.empty
        return new(sizes, dtype=torch.float32, device=table.device)


def array(x: Tensor) -> Array:
    batch, head, row, column = x.stride()
    return Array(x, batch, head, row, column, *dims(x.shape[3]))


def array_of_table(table: Tensor) -> Array:
    """A table (labels, dim) or (heads, labels, dim). Where it has one row, the row of either edge is that one."""
    rows, dim = table.shape[-2:]
    head, row, column = table.stride() if table.dim() == 3 else (0, *table.stride())
    return Array(table, 0, head, row if rows > 1 else 0, column, *dims(dim))


def sum_of_parts(parts: Tensor, table: Tensor | None) -> Tensor:
    """In the table's own shape and type. A table of one row has it as either edge's."""
    assert table is not None
    total = parts.sum(0) if table.dim() == 3 else parts.sum((0, 1))
    return (total.sum(-2, keepdim=True) if table.shape[-2] == 1 else total).to(table.dtype)


def launch(kernel: Any, programs: int, tiles: Config | None, on: Tensor, **arguments: Any) -> None:
    """Runs a kernel on the device that `on` is on."""
    if programs == 0:
        return
    with failures.compiling(kernel, on, arguments), device_of(on):
        kernel[(programs,)](**launched(tiles, arguments))


def device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return contextlib.nullcontext()


def launched(tiles: Config | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """All that a kernel is launched with."""
    if tiles is None:
        return arguments
    sizes = {"ROWS": tiles.rows, "COLS": tiles.cols, "NEAR": tiles.near}
    return {**arguments, **sizes, "num_warps": tiles.warps, "num_stages": tiles.stages}


attention, attention_backward = register("triton", run_forward, run_backward, KINDS.value)
