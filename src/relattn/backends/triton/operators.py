"""The kernels as functions of a call, and as operators: `relattn::triton` and its backward pass.

A call with gradients takes three launches: `forward`; `backward_query`, for dq and the tables; `backward_key`, for dk
and dv. Short sequences take two: where one program has all queries of a head, `backward_query` does the whole backward
pass. A few queries on many keys take `join` after `forward`. Every program of `backward_query` has room of its own for
its part of the tables' gradients, and the parts are summed here. Nothing is read from the device, so that calls can be
captured in a CUDA graph.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.backends.custom_ops import Attended, new_numbers, new_results, register, with_contiguous_rows
from relattn.backends.triton.arrays import Array
from relattn.backends.triton.availability import compiling
from relattn.backends.triton.backward import backward_key, backward_query
from relattn.backends.triton.configs import Config, padded
from relattn.backends.triton.forward import forward, join
from relattn.backends.triton.numbers import LEFT_NUMBERS, NUMBERS
from relattn.backends.triton.plan import TilesOf, dims, first_label, fixed, plan_of, tiles_of
from relattn.call import Call

FURTHEST = 2**30  # a position further away than any key
LEAST = 1e-37  # the smallest scale that the kernels take, so that they never multiply zero by −∞


def launch(kernel: Any, programs: int, tiles: Config | None, call: Call, **arguments: Any) -> None:
    """Runs a kernel of a call, on the call's device."""
    if programs == 0:
        return
    with compiling(kernel, call), device_of(call.query):
        kernel[(programs,)](**launched(tiles, arguments))


def device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return contextlib.nullcontext()


def launched(tiles: Config | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a kernel."""
    if tiles is None:
        return arguments
    sizes = {"ROWS": tiles.rows, "COLS": tiles.cols, "NEAR": tiles.near}
    return {**arguments, **sizes, "num_warps": tiles.warps, "num_stages": tiles.stages}


Launch = Callable[..., None]


def run_forward(call: Call, launch: Launch = launch, tiles_of: TilesOf = tiles_of) -> Attended:
    """The output, the log-sum-exp, and the numbers of each query that the backward pass reads."""
    problem = Problem(call, tiles_of)
    plan = problem.plan
    output, lse = new_results(call)
    batch, heads, queries = lse.shape
    numbers = new_numbers(lse, NUMBERS.value)
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
        call,
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
            call,
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


def run_backward(
    call: Call, grad: Tensor, output: Tensor, lse: Tensor, numbers: Tensor, launch: Launch = launch,
    tiles_of: TilesOf = tiles_of,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of query, key, value, rel_key, rel_value and rel_query; an empty one for one that is not there."""
    problem = Problem(call, tiles_of)
    plan = problem.plan
    batch, heads, _ = lse.shape
    d_query, d_key, d_value = (torch.empty_like(x) for x in (problem.query, problem.key, problem.value))
    d_rel_query = None if problem.rel_query is None else torch.empty_like(problem.rel_query)
    kernel = "whole" if plan.whole else "backward_query"
    blocks, sequences = plan.blocks[kernel], -(-batch // plan.members)
    tables = (call.rel_key, call.rel_value)
    parts = tuple(problem.new_parts(table, sequences * blocks) for table in tables)
    shared = {
        **problem.inputs(),
        "grad": array(with_contiguous_rows(grad)),
        "left_numbers": new_numbers(lse, 0 if plan.whole else LEFT_NUMBERS),
        "d_key": array(d_key),
        "d_value": array(d_value),
        "scale": problem.scale,
    }
    launch(
        backward_query,
        sequences * heads * blocks,
        plan.tiles[kernel],
        call,
        **shared,
        output=array(output),
        numbers=numbers,
        d_query=array(d_query),
        d_rel_key=None if parts[0] is None else array(parts[0]),
        d_rel_value=None if parts[1] is None else array(parts[1]),
        d_rel_query=None if d_rel_query is None else array(d_rel_query),
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
            call,
            **shared,
            blocks=blocks,
        )
    d_tables = (
        grad.new_empty(0) if part is None else sum_of_parts(problem.in_rows_of_table(part, sequences, kernel), table)
        for part, table in zip(parts, tables, strict=True)
    )
    return d_query, d_key, d_value, *d_tables, grad.new_empty(0) if d_rel_query is None else d_rel_query


class Problem:
    """A call as the kernels take it."""

    def __init__(self, call: Call, tiles_of: TilesOf) -> None:
        self.plan = plan_of(call, tiles_of)
        self.query, self.key, self.value = (with_contiguous_rows(x) for x in (call.query, call.key, call.value))
        self.rel_query = None if call.rel_query is None else with_contiguous_rows(call.rel_query)
        self.rel_key, self.rel_value, self.scale = call.rel_key, call.rel_value, max(call.scale, LEAST)
        self.offset = max(-FURTHEST, min(call.query_offset, FURTHEST))
        key_lengths, query_lengths = lengths_of(call)
        self.options = self.plan.options
        if any(x is not None for x in (call.relations, call.mask, call.query_offsets, key_lengths, call.seed)):
            self.options = self.options._replace(
                relations=self.array_of_pairs(call.relations),
                mask=self.array_of_pairs(call.mask),
                offsets=None if call.query_offsets is None else call.query_offsets.contiguous(),
                key_lengths=key_lengths,
                query_lengths=query_lengths,
                seed=call.seed,
            )

    def sizes(self) -> dict[str, Any]:
        """The options, and the sizes that change from call to call."""
        batch, _, queries, _ = self.query.shape
        keys = self.key.shape[2]
        return {"given": self.options, "batch": batch, "queries": queries, "keys": keys, "offset": self.offset}

    def array_of_pairs(self, x: Tensor | None) -> Array | None:
        """A mask or labels; strides are 0 where they are broadcast."""
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
            "rel_query": None if self.rel_query is None else array(self.rel_query),
            **self.sizes(),
            "scale2": self.scale / math.log(2.0),  # of scores to base two
        }

    def new_parts(self, table: Tensor | None, programs: int) -> Tensor | None:
        """Room for the parts of a table's gradient, (programs per head, heads, rows, dim)."""
        if table is None:
            return None
        sizes = (programs, self.query.shape[1], self.plan.part_rows, table.shape[-1])
        new = torch.zeros if self.plan.adds else torch.empty
        return new(sizes, dtype=torch.float32, device=table.device)

    def in_rows_of_table(self, parts: Tensor, sequences: int, kernel: str) -> Tensor:
        """Parts with a row for each row of the table. Where theirs were those alone that a block of queries reaches,
        there is one part left, the sum of all."""
        options, rows, shift = self.options, self.plan.tiles[kernel].rows, self.options.shift
        if options.reach is None:
            return parts
        blocks = parts.unflatten(0, (sequences, self.plan.blocks[kernel])).sum(0)
        before, window, after = blocks.split((shift, options.reach, parts.shape[2] - shift - options.reach), dim=2)
        total = parts.new_zeros(parts.shape[1], options.labels, parts.shape[3])
        for block, part in enumerate(window):
            begin = min(first_label(options, (block + 1) * rows - 1 + self.offset), options.labels)
            reached = min(options.reach, options.labels - begin)
            total.narrow(1, begin, reached).add_(part.narrow(1, 0, reached))
        return torch.cat((before.sum(0), total, after.sum(0)), dim=1).unsqueeze(0)


def lengths_of(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Valid keys and valid queries of each sequence: both or neither, so that kernels have one variant for either."""
    if call.key_lengths is None and call.query_lengths is None:
        return None, None
    keys, queries = (
        x.new_full((x.shape[0],), x.shape[2], dtype=torch.int64) if lengths is None else lengths.contiguous()
        for x, lengths in ((call.key, call.key_lengths), (call.query, call.query_lengths))
    )
    return keys, queries


def array(x: Tensor) -> Array:
    batch, head, row, column = x.stride()
    return Array(x, batch, head, row, column, *dims(x.shape[3]))


def array_of_table(table: Tensor) -> Array:
    """A table (labels, dim) or (heads, labels, dim). A single row is that of both edges."""
    rows, dim = table.shape[-2:]
    head, row, column = table.stride() if table.dim() == 3 else (0, *table.stride())
    return Array(table, 0, head, row if rows > 1 else 0, column, *dims(dim))


def sum_of_parts(parts: Tensor, table: Tensor | None) -> Tensor:
    """In the table's own shape and type. A single row has the gradients of both edges."""
    assert table is not None
    total = parts.sum(0) if table.dim() == 3 else parts.sum((0, 1))
    return (total.sum(-2, keepdim=True) if table.shape[-2] == 1 else total).to(table.dtype)


attention, attention_forward, attention_backward = register("triton", run_forward, run_backward, NUMBERS.value)
