"""The kernel that sums the parts of the tables' gradients, which the programs of the backward pass store.

A program sums ELEMENTS neighbouring numbers of a gradient, PARTS parts at a time, in an order that follows from sizes.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Table(NamedTuple):
    """The gradient of a table and its parts, both contiguous."""

    gradient: Any  # (heads or 1, all_rows, DIM)
    parts: Any  # (groups, blocks, all heads, part_rows, DIM)
    HEADS: Any  # parts per group and block that are summed for a head of the gradient
    DIM: Any


class Sizes(NamedTuple):
    """Sizes of both tables of a call. Of the parts, those without CHUNK have all rows, and `blocks` is 1."""

    groups: Any
    blocks: Any
    heads: Any
    part_rows: Any
    rows: Any  # of the table that the call has; the rows `before` it and those after it have no gradient
    all_rows: Any
    before: Any
    shift: Any  # this, `labels` and `reach` as in PairOptions
    labels: Any
    reach: Any
    distance: Any  # smallest distance that block 0 reaches, minus the start of the clipping range
    step: Any  # from a block's distance to that of the next


@triton.jit(do_not_specialize=["groups", "blocks", "heads", "part_rows", "rows", "all_rows", "before", "shift",
                               "labels", "reach", "distance", "step", "first_programs"])  # fmt: skip
def sum_parts(first, second, groups, blocks, heads, part_rows, rows, all_rows, before, shift, labels, reach, distance,
              step, first_programs, CHUNK: tl.constexpr, PARTS: tl.constexpr, ELEMENTS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sizes = Sizes(groups, blocks, heads, part_rows, rows, all_rows, before, shift, labels, reach, distance, step)
    if program < first_programs:
        sum_table(first, program, sizes, CHUNK, PARTS, ELEMENTS)
    else:
        sum_table(second, program - first_programs, sizes, CHUNK, PARTS, ELEMENTS)


@triton.jit
def sum_table(table, program, sizes, CHUNK: tl.constexpr, PARTS: tl.constexpr, ELEMENTS: tl.constexpr):
    size = sizes.all_rows * table.DIM
    programs = (size + ELEMENTS - 1) // ELEMENTS  # per head
    head = program // programs
    element = program % programs * ELEMENTS + tl.arange(0, ELEMENTS)
    row = element // table.DIM - sizes.before
    has_gradient = (row >= 0) & (row < sizes.rows)
    count = sizes.groups * table.HEADS
    total = tl.zeros([ELEMENTS], tl.float32)
    for block in range(sizes.blocks):
        position = element - sizes.before * table.DIM
        is_stored = has_gradient
        stop = count
        if CHUNK is not None:
            begin = tl.maximum(sizes.distance + block * sizes.step, 0) // CHUNK * CHUNK  # as `labels.first_label`
            label = row - sizes.shift - begin
            is_label = (row >= sizes.shift) & (row < sizes.shift + sizes.labels)
            is_stored = is_stored & ((label >= 0) & (label < sizes.reach) | (is_label == 0))
            left_out = tl.where(is_label, begin, tl.where(row < sizes.shift, 0, sizes.labels - sizes.reach))
            position -= left_out * table.DIM
            stop = count * tl.max(is_stored.to(tl.int32), 0)
        for index in range(0, stop, PARTS):
            part = index + tl.arange(0, PARTS)
            program_index = (part // table.HEADS).to(tl.int64) * sizes.blocks + block
            part_head = program_index * sizes.heads + head * table.HEADS + part % table.HEADS
            start = table.parts + part_head * sizes.part_rows * table.DIM
            inside = (part < count)[:, None] & is_stored[None, :]
            total += tl.sum(tl.load(start[:, None] + position[None, :], mask=inside, other=0.0), 0)
    result = table.gradient + head.to(tl.int64) * size + element
    tl.store(result, total.to(table.gradient.dtype.element_ty), mask=element < size)
