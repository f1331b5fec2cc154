"""The kernels as functions of a call, and as PyTorch operators: `relattn::triton` and `relattn::triton_backward`.

A call with gradients takes four launches: `forward`; `backward_query`, for dq and the tables; `backward_key`, for dk
and dv; `sum_parts`, since every program stores its own part of the tables' gradients, and again for a `pos_query`.
Short sequences take three: if one program has all queries of a head, `backward_query` does the whole backward pass. A
few queries on many keys take `join` after `forward`. Nothing is read from the device, so that calls can be captured in
a CUDA graph.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.backends.autograd import INPUTS
from relattn.backends.custom_ops import Attended, new_results, new_row_stats, register, with_contiguous_rows
from relattn.backends.triton.arrays import Array, Gradients, Inputs
from relattn.backends.triton.availability import compiling
from relattn.backends.triton.backward import backward_key, backward_query
from relattn.backends.triton.configs import TileConfig, padded
from relattn.backends.triton.forward import forward, join
from relattn.backends.triton.part_sums import Table, sum_parts
from relattn.backends.triton.plan import constant, dims, plan_of
from relattn.backends.triton.row_stats import BACKWARD_STATS, FORWARD_STATS
from relattn.call import Call

MAX_OFFSET = 2**30  # a position farther away than any key
MIN_SCALE = 1e-37  # so that the kernels never multiply zero by −∞
PARTS = 128  # parts of tables' gradients that a program loads at a time
SUMMED = 64  # neighbouring numbers of a gradient that it sums


def launch(kernel: Any, programs: int, tiles: TileConfig | None, device: torch.device, **arguments: Any) -> None:
    """Launch a kernel on a device."""
    if programs > 0:
        with compiling(kernel, device):
            kernel[(programs,)](**launch_arguments(tiles, arguments))


def launch_arguments(tiles: TileConfig | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a kernel, with those for its tiles."""
    if tiles is None:
        return arguments
    sizes = {"ROWS": tiles.rows, "COLS": tiles.cols, "NEAR": tiles.near}
    return {**arguments, **sizes, "num_warps": tiles.warps, "num_stages": tiles.stages}


Launch = Callable[..., None]


def run_forward(call: Call, launch: Launch = launch, generation: int | None = None) -> Attended:
    """Return the output, the log-sum-exp and the row statistics that the backward pass reads."""
    problem = Problem(call, generation)
    plan = problem.plan
    output, lse = new_results(call)
    batch, heads, queries = lse.shape
    row_stats = new_row_stats(call, FORWARD_STATS.value)
    blocks = plan.blocks["forward"]
    splits = plan.splits
    parts = [output, lse, row_stats]
    if splits > 1:
        sizes = (splits * batch, heads, queries)
        parts = [lse.new_empty(*sizes, output.shape[3]), lse.new_empty(sizes), lse.new_empty(splits, *row_stats.shape)]
    launch(
        forward,
        splits * blocks * batch * heads,
        plan.tiles["forward"],
        output.device,
        **problem.inputs(),
        output=array(parts[0]),
        lse=parts[1],
        row_stats=parts[2],
        blocks=blocks,
        splits=splits,
    )
    if splits > 1:
        launch(
            join,
            batch * heads * queries,
            None,
            output.device,
            parts=parts[0],
            part_stats=parts[2],
            output=array(output),
            lse=lse,
            row_stats=row_stats,
            **problem.sizes(),
            splits=splits,
            SPLITS=padded(splits),
        )
    return output, lse, row_stats


def run_backward(
    call: Call, grad: Tensor, output: Tensor, lse: Tensor, row_stats: Tensor, launch: Launch = launch,
    generation: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of the arguments from query to bias; an empty tensor for an absent one."""
    problem = Problem(call, generation)
    tables = {name: x.new_empty(x.shape) for name, x in call.tables().items()}
    found = launch_backward(problem, grad, output, row_stats, tables, launch)
    return tuple(x if (x := found.get(name)) is not None else grad.new_empty(0) for name in Call._fields[:INPUTS])


def launch_backward(
    problem: "Problem", grad: Tensor, output: Tensor, row_stats: Tensor, tables: dict[str, Tensor], launch: Launch
) -> dict[str, Tensor | None]:
    """Compute the gradients of tables, and return all gradients by name of the argument."""
    call = problem.call
    plan = problem.plan
    batch, heads, queries, _ = problem.query.shape
    d_query = torch.empty_like(problem.query)
    d_key = torch.empty_like(problem.key)
    d_value = torch.empty_like(problem.value)
    d_rel_query = None if problem.rel_query is None else torch.empty_like(problem.rel_query)
    kernel = "whole" if plan.whole else "backward_query"
    blocks = plan.blocks[kernel]
    key_blocks = plan.blocks["backward_key"]
    groups = -(-batch // plan.sequences)
    key_parts = problem.new_parts(call.rel_key, groups * blocks)
    value_parts = problem.new_parts(call.rel_value, groups * blocks)
    pos_parts = problem.new_parts(call.pos_query, batch * key_blocks)
    shared = problem.inputs()
    shared["grad"] = array(with_contiguous_rows(grad))
    shared["backward_stats"] = None if plan.whole else new_row_stats(call, BACKWARD_STATS)
    shared["scale"] = problem.scale
    launch(
        backward_query,
        groups * heads * blocks,
        plan.tiles[kernel],
        grad.device,
        **shared,
        output=array(output),
        row_stats=row_stats.contiguous(),  # a hook of saved tensors may change strides
        gradients=Gradients(*map(array, (d_query, d_key, d_value, key_parts, value_parts, d_rel_query))),
        blocks=blocks,
        sequences=plan.sequences,
        WHOLE=plan.whole,
        SEVERAL=plan.sequences > 1,
    )
    if not plan.whole:
        launch(
            backward_key,
            batch * plan.options.key_heads * key_blocks,
            plan.tiles["backward_key"],
            grad.device,
            **shared,
            d_key=array(d_key),
            d_value=array(d_value),
            d_pos_query=array(pos_parts),
            blocks=key_blocks,
        )
    rows = plan.tiles[kernel].rows
    parts = [(tables[name], x) for name, x in (("rel_key", key_parts), ("rel_value", value_parts)) if x is not None]
    problem.sum_parts(launch, parts, blocks, 1 - rows - problem.offset, -rows)
    if pos_parts is not None:
        distance = 1 - queries - problem.offset
        problem.sum_parts(
            launch, [(tables["pos_query"], pos_parts)], key_blocks, distance, plan.tiles["backward_key"].cols
        )
    return {"query": d_query, "key": d_key, "value": d_value, "rel_query": d_rel_query, **tables}


class Problem:
    """A call in the form that the kernels take."""

    def __init__(self, call: Call, generation: int | None) -> None:
        self.plan = plan_of(call, generation)
        self.call = call
        self.query = with_contiguous_rows(call.query)
        self.key = with_contiguous_rows(call.key)
        self.value = with_contiguous_rows(call.value)
        self.rel_query = None if call.rel_query is None else with_contiguous_rows(call.rel_query)
        self.scale = max(call.scale, MIN_SCALE)
        self.offset = max(-MAX_OFFSET, min(call.query_offset, MAX_OFFSET))
        self.options = self.plan.options
        key_lengths, query_lengths = lengths_of(call)
        arrays = {
            "relations": self.array_of_pairs(call.relations),
            "mask": self.array_of_pairs(call.mask),
            "offsets": None if call.query_offsets is None else call.query_offsets.contiguous(),
            "key_lengths": key_lengths,
            "query_lengths": query_lengths,
            "seed": call.seed,
        }
        if any(x is not None for x in arrays.values()):
            self.options = self.options._replace(**arrays)

    def sizes(self) -> dict[str, Any]:
        """Return the options, and the sizes that change from call to call."""
        batch, _, queries, _ = self.query.shape
        keys = self.key.shape[2]
        return {"pair_options": self.options, "batch": batch, "queries": queries, "keys": keys, "offset": self.offset}

    def array_of_pairs(self, x: Tensor | None) -> Array | None:
        """Return a mask or labels as an array with stride 0 along broadcast dimensions."""
        if x is None:
            return None
        shape = torch.Size((*self.query.shape[:3], self.key.shape[2]))
        if x.shape != shape:
            x = x.expand(shape)
        batch, head, row, column = x.stride()
        return Array(x, batch, head, row, constant(column), constant(1), constant(1))

    def inputs(self) -> dict[str, Any]:
        """Return the arguments that all kernels but `join` take."""
        return {
            "inputs": Inputs(
                array(self.query),
                array(self.key),
                array(self.value),
                array_of_table(self.call.rel_key),
                array_of_table(self.call.rel_value),
                array(self.rel_query),
                array_of_table(self.call.pos_query),
            ),
            **self.sizes(),
            "scale2": self.scale / math.log(2.0),  # for scores to base two
        }

    def new_parts(self, table: Tensor | None, programs: int) -> Tensor | None:
        """Allocate the parts of a table's gradient, (programs per head, heads, rows, dim)."""
        if table is None:
            return None
        sizes = (programs, self.query.shape[1], self.plan.part_rows, table.shape[-1])
        new = torch.zeros if self.plan.accumulates else torch.empty
        return new(sizes, dtype=torch.float32, device=table.device)

    def sum_parts(
        self, launch: Launch, tables: list[tuple[Tensor, Tensor]], blocks: int, distance: int, step: int
    ) -> None:
        """Compute the gradients of at most two tables.

        Args:
            launch: Function that launches a kernel.
            tables: Gradients, and their parts for several sequences and, within them, blocks.
            blocks: Number of blocks.
            distance: Smallest distance j − i that block 0 reaches.
            step: From the distance of a block to that of the next.
        """
        if not tables:
            return
        arguments = []
        programs = []
        for gradient, parts in tables:
            *lead, rows, dim = gradient.shape
            groups, heads, part_rows, _ = parts.shape
            copies = part_rows if rows == 1 else 1  # a single row gets the gradients of both edges
            stride, shared = (gradient.stride(0), copies) if lead else (0, copies * heads)
            arguments.append(Table(gradient, parts, dim, stride, shared))
            programs.append(math.prod(lead) * -(-rows * dim // SUMMED))
        if self.plan.options.reach is None:
            blocks = 1
        launch(
            sum_parts,
            sum(programs),
            None,
            self.query.device,
            first=arguments[0],
            second=arguments[-1],
            pair_options=self.plan.options,
            groups=groups // max(blocks, 1),
            blocks=blocks,
            heads=heads * copies,
            part_rows=part_rows // copies,
            rows=rows,
            distance=distance,
            step=step,
            first_programs=programs[0],
            PARTS=PARTS,
            SUMMED=SUMMED,
        )


def lengths_of(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Return the valid keys and the valid queries per sequence: both or neither, so that kernels have one variant."""
    if call.key_lengths is None and call.query_lengths is None:
        return None, None
    return lengths_or_all(call.key, call.key_lengths), lengths_or_all(call.query, call.query_lengths)


def lengths_or_all(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the numbers of valid rows, which are all without lengths."""
    if lengths is not None:
        return lengths.contiguous()
    return x.new_full((x.shape[0],), x.shape[2], dtype=torch.int64)


def array(x: Tensor | None) -> Array | None:
    """Return a tensor of four dimensions as a kernel takes it; None for None."""
    if x is None:
        return None
    batch, head, row, column = x.stride()
    return Array(x, batch, head, row, column, *dims(x.shape[3]))


def array_of_table(table: Tensor | None) -> Array | None:
    """Return a table (labels, dim) or (heads, labels, dim) as an array. A single row serves both edges."""
    if table is None:
        return None
    rows, dim = table.shape[-2:]
    head, row, column = table.stride() if table.dim() == 3 else (0, *table.stride())
    return Array(table, 0, head, row if rows > 1 else 0, column, *dims(dim))


attention = register("triton", run_forward, run_backward, FORWARD_STATS.value)
