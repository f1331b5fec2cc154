"""The kernel that sums the parts of the tables' gradients, which the programs of the backward pass store.

A program sums SUMMED neighbouring numbers of a gradient, PARTS parts at a time, in an order that follows from sizes.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Table(NamedTuple):
    """The gradient of a table and its parts, both contiguous."""

    gradient: Any  # (heads or 1, all_rows, dim)
    parts: Any  # (groups, blocks, heads, part_rows, dim)
    dim: Any
    shared: Any  # parts per group and block that are summed for a head of the gradient


@triton.jit(do_not_specialize=["groups", "blocks", "heads", "part_rows", "rows", "all_rows", "before", "distance",
                               "step", "first_programs"])  # fmt: skip
def sum_parts(first, second, options, groups, blocks, heads, part_rows, rows, all_rows, before, distance, step,
              first_programs, PARTS: tl.constexpr, SUMMED: tl.constexpr):  # fmt: skip
    """Sum the parts of the first table in the first `first_programs` programs, and those of the second in the others.

    Of `all_rows` of a gradient, `rows` from row `before` on have parts. Without a `reach`, a part has all of these, and
    `blocks` is 1. Else it has the edges and what its block reaches: labels from distance `distance + block * step` on.
    """
    index = tl.program_id(0)
    is_first = index < first_programs
    index = tl.where(is_first, index, index - first_programs)
    dim = tl.where(is_first, first.dim, second.dim)
    shared = tl.where(is_first, first.shared, second.shared)
    parts = tl.where(is_first, first.parts, second.parts)
    size = all_rows * dim
    blocks_of_head = tl.cdiv(size, SUMMED)
    head = index // blocks_of_head
    element = index % blocks_of_head * SUMMED + tl.arange(0, SUMMED)
    row = element // dim - before
    label = row - options.shift
    total = tl.zeros([SUMMED], tl.float32)
    for block in range(blocks):
        stored = (row >= 0) & (row < rows)
        left_out = row * 0
        if options.reach is not None:
            begin = tl.maximum(distance + block * step - options.start, 0) // options.CHUNK * options.CHUNK
            is_label = (label >= 0) & (label < options.labels)
            stored = stored & ((is_label == 0) | (label >= begin) & (label < begin + options.reach))
            left_out = tl.where(is_label, begin, tl.where(label < 0, 0, options.labels - options.reach))
        position = element - (before + left_out) * dim
        for start in range(0, groups * shared, PARTS):
            part = start + tl.arange(0, PARTS)
            stored_head = ((part // shared).to(tl.int64) * blocks + block) * heads + head * shared + part % shared
            pointers = parts + (stored_head * part_rows * dim)[:, None] + position[None, :]
            inside = (part < groups * shared)[:, None] & stored[None, :]
            total += tl.sum(tl.load(pointers, mask=inside, other=0.0), 0)
    gradient = tl.where(is_first, first.gradient, second.gradient)
    tl.store(gradient + head * size + element, total.to(gradient.dtype.element_ty), mask=element < size)
