"""The kernel that sums the parts of the tables' gradients, which the programs of the backward pass store.

A program sums SUMMED neighbouring numbers of a gradient, PARTS parts at a time, in an order that follows from sizes.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.labels import first_label


class Table(NamedTuple):
    """The gradient of a table and its parts."""

    gradient: Any  # (heads or 1, rows, dim)
    parts: Any  # (groups, blocks, heads, part_rows, dim)
    dim: Any
    head: Any  # numbers from one head of the gradient to the next
    shared: Any  # parts per group and block that are summed for a head of the gradient


@triton.jit(do_not_specialize=["groups", "blocks", "heads", "part_rows", "rows", "distance", "step", "first_programs"])
def sum_parts(first, second, pair_options, groups, blocks, heads, part_rows, rows, distance, step, first_programs,
              PARTS: tl.constexpr, SUMMED: tl.constexpr):  # fmt: skip
    """Sum the parts of the first table in the first `first_programs` programs, and those of the second in the others.

    Without a `reach`, a part has all rows, and `blocks` is 1. Else it has the edges, and from the first label that its
    block reaches on, at distance `distance + block * step`, as many labels.
    """
    index = tl.program_id(0)
    is_first = index < first_programs
    index = tl.where(is_first, index, index - first_programs)
    dim = tl.where(is_first, first.dim, second.dim)
    shared = tl.where(is_first, first.shared, second.shared)
    parts = tl.where(is_first, first.parts, second.parts)
    size = rows * dim
    blocks_of_head = tl.cdiv(size, SUMMED)
    head = index // blocks_of_head
    element = index % blocks_of_head * SUMMED + tl.arange(0, SUMMED)
    label = element // dim - pair_options.shift
    total = tl.zeros([SUMMED], tl.float32)
    for block in range(blocks):
        stored = element < size
        position = element
        if pair_options.reach is not None:
            begin = first_label(pair_options, distance + block * step)
            is_after = label >= pair_options.labels
            left_out = tl.where(is_after, pair_options.labels - pair_options.reach, begin)
            stored &= is_after | (label < 0) | (label >= begin) & (label < begin + pair_options.reach)
            position -= tl.where(label < 0, 0, left_out) * dim
        for start in range(0, groups * shared, PARTS):
            part = start + tl.arange(0, PARTS)
            stored_head = ((part // shared).to(tl.int64) * blocks + block) * heads + head * shared + part % shared
            pointers = parts + (stored_head * part_rows * dim)[:, None] + position[None, :]
            inside = (part < groups * shared)[:, None] & stored[None, :]
            total += tl.sum(tl.load(pointers, mask=inside, other=0.0), 0)
    to = tl.where(is_first, first.gradient + head * first.head, second.gradient + head * second.head)
    tl.store(to + element, total.to(first.gradient.dtype.element_ty), mask=element < size)
