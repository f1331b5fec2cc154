"""Tensors as the kernels take them: rows of a head in and out, and products of what was read."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # where products of bfloat16 would be of their bits


class Array(NamedTuple):
    """A tensor (batch, heads, rows, DIM) with its strides in elements, 0 where it is broadcast. Read, its rows are
    padded with zeros to PADDED, a power of two. Those of pairs, (batch, heads, queries, keys), have neither."""

    data: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    DIM: Any = None
    PADDED: Any = None


@triton.jit
def places(x, b, h, row, column):
    """Pointers to elements, broadcast from `row` and `column`: 64 bits wide, since a tensor may be longer than 2³¹."""
    head = x.data + b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head
    return head + row.to(tl.int64) * x.row + column.to(tl.int64) * x.column


@triton.jit
def load_rows(x, b, h, row, count):
    """(rows, PADDED), zeros for rows from `count` on."""
    column = tl.arange(0, x.PADDED)[None, :]
    inside = (row < count)[:, None]
    if x.DIM < x.PADDED:
        inside = inside & (column < x.DIM)
    return tl.load(places(x, b, h, row[:, None], column), mask=inside, other=0.0)


@triton.jit
def store_rows(x, b, h, row, count, rows):
    column = tl.arange(0, x.PADDED)[None, :]
    inside = (row < count)[:, None] & (column < x.DIM)
    tl.store(places(x, b, h, row[:, None], column), rows.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """In float32. "tf32x3" makes products of float32 on the matrix units, from three of their shorter numbers."""
    return interpreted_product(a, b, PRECISION) if INTERPRETED else tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_product(a, b, to, PRECISION: tl.constexpr):
    return to + interpreted_product(a, b, PRECISION) if INTERPRETED else tl.dot(a, b, to, input_precision=PRECISION)


@triton.jit
def laid_out_as_product(x):
    """The same numbers, added to a product of zeros. Those that were loaded have a layout of their own, which would
    spread to all that is made of them: the compiler then works everything out once in each layout."""
    left, right = tl.zeros([x.shape[0], 16], tl.float16), tl.zeros([16, x.shape[1]], tl.float16)
    return add_product(left, right, x, "ieee")


@triton.jit
def interpreted_product(a, b, PRECISION: tl.constexpr):
    """What the matrix units do, where the interpreter would multiply the bits of bfloat16, and whole float32."""
    if PRECISION == "tf32x3" and a.dtype == tl.float32:
        big_a, big_b = shortened(a), shortened(b)
        small = tl.dot(shortened(a - big_a), big_b) + tl.dot(big_a, shortened(b - big_b))
        found = tl.where(small == small, small, 0.0) + tl.dot(big_a, big_b)
    else:
        found = tl.dot(a.to(tl.float32), b.to(tl.float32))
    return found


@triton.jit
def shortened(x):
    """To the nearest number of tf32's 10 bits."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
