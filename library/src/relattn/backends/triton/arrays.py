"""Tensors as arguments of the kernels: loading and storing rows of a head, and matrix products."""

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # the interpreter would multiply the bits of bfloat16


class Array(NamedTuple):
    """A tensor (batch, heads, rows, DIM) with its strides in elements, which are 0 along a broadcast dimension.

    Loaded rows are padded with zeros to PADDED, a power of two. Arrays of pairs, (batch, heads, queries, keys), have
    no DIM and no PADDED.
    """

    data: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    DIM: Any = None
    PADDED: Any = None


# Arrays that all kernels but `join` read, and arrays that `backward_query` writes; None for those that a call lacks.
Inputs = namedtuple("Inputs", "query key value rel_key rel_value rel_query pos_query")
Gradients = namedtuple("Gradients", "query key value rel_key rel_value rel_query")


@triton.jit
def pointers(x, b, h, row, column):
    """Return pointers to elements, in the shape that `row` and `column` broadcast to.

    Offsets have 64 bits, because a tensor may have more than 2³¹ elements.
    """
    head = x.data + b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head
    return head + row.to(tl.int64) * x.row + column.to(tl.int64) * x.column


@triton.jit
def load_rows(x, b, h, row, count):
    """Load rows, (rows, PADDED). Rows from `count` on are zeros, whatever memory holds there."""
    column = tl.arange(0, x.PADDED)[None, :]
    inside = (row < count)[:, None]
    if x.DIM < x.PADDED:
        inside &= column < x.DIM
    return tl.load(pointers(x, b, h, row[:, None], column), mask=inside, other=0.0)


@triton.jit
def store_rows(x, b, h, row, count, rows):
    """Store the rows before `count`."""
    column = tl.arange(0, x.PADDED)[None, :]
    inside = (row < count)[:, None] & (column < x.DIM)
    tl.store(pointers(x, b, h, row[:, None], column), rows.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, pairs):
    """Return a matrix product in float32. "tf32x3" computes float32 products from three TF32 products."""
    return interpreted_product(a, b, pairs) if INTERPRETED else tl.dot(a, b, input_precision=pairs.PRECISION)


@triton.jit
def add_product(a, b, to, pairs):
    """Return a matrix product, of `a` in the dtype of `b`, added to `to`."""
    a = a.to(b.dtype)
    return to + interpreted_product(a, b, pairs) if INTERPRETED else tl.dot(a, b, to, input_precision=pairs.PRECISION)


@triton.jit
def with_product_layout(x):
    """Return the same values in the register layout of a matrix product, by adding a product of zeros.

    Loaded values have a separate layout, which would spread to all that is computed from them. The compiler would
    then compute everything once per layout.
    """
    left = tl.zeros([x.shape[0], 16], tl.float16)
    right = tl.zeros([16, x.shape[1]], tl.float16)
    return x if INTERPRETED else tl.dot(left, right, x, input_precision="ieee")


@triton.jit
def interpreted_product(a, b, pairs):
    """Return what the tensor cores compute. The interpreter's own product would use the bits of bfloat16, and full
    float32."""
    if pairs.PRECISION == "tf32x3" and a.dtype == tl.float32:
        big_a = round_to_tf32(a)
        big_b = round_to_tf32(b)
        small = tl.dot(round_to_tf32(a - big_a), big_b) + tl.dot(big_a, round_to_tf32(b - big_b))
        result = tl.where(small == small, small, 0.0) + tl.dot(big_a, big_b)
    else:
        result = tl.dot(a.to(tl.float32), b.to(tl.float32))
    return result


@triton.jit
def round_to_tf32(x):
    """Round to the 10 mantissa bits of TF32."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
