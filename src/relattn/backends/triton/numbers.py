"""Numbers of each query that one kernel leaves to the next, (numbers, batch, heads, room), float32.

`forward` leaves NUMBERS to the backward pass: the log-sum-exp to base two, +∞ where a query attends to nothing, and
the sums of the kept probabilities of the pairs before and after the window. `backward_query` leaves LEFT_NUMBERS to
`backward_key`: the log-sum-exp and delta, and both again less what the relative terms of pairs before the window, or
after it, add to all their scores and dp; those terms of pairs before it; and the bits of the number to draw from.
"""

import triton
import triton.language as tl

LOG_SUM, MASS_BEFORE, MASS_AFTER = (tl.constexpr(index) for index in range(3))
NUMBERS = tl.constexpr(3)
LOG, LOG_BEFORE, LOG_AFTER, DELTA, DELTA_BEFORE, DELTA_AFTER = (tl.constexpr(index) for index in range(6))
KEY_BEFORE, VALUE_BEFORE, DRAW = (tl.constexpr(index) for index in range(6, 9))
LEFT_NUMBERS = 9


@triton.jit
def room_of(pairs):
    """The queries that numbers have room for: a multiple of 16, so that several can be loaded at once."""
    return (pairs.queries + 15) // 16 * 16


@triton.jit
def place_of_query(b, h, row, pairs, index=0):
    return ((pairs.batch * index + b).to(tl.int64) * pairs.options.heads + h) * room_of(pairs) + row


@triton.jit
def store_number(numbers, index, b, h, row, pairs, found):
    tl.store(numbers + place_of_query(b, h, row, pairs, index), found, mask=row < room_of(pairs))


@triton.jit
def load_number(numbers, index, b, h, row, pairs, other=0.0):
    """One that `forward` left."""
    return tl.load(numbers + place_of_query(b, h, row, pairs, index), mask=row < pairs.queries, other=other)


@triton.jit
def load_left(numbers, index, b, h, row, pairs):
    """One that `backward_query` left. Past the queries it leaves zeros, and +∞ for the log-sum-exp."""
    return tl.load(numbers + place_of_query(b, h, row, pairs, index), mask=row < room_of(pairs), other=0.0)


@triton.jit
def load_draw(numbers, b, h, row, pairs):
    draw = row
    if pairs.options.seed is not None:
        draw = load_left(numbers, DRAW, b, h, row, pairs).to(tl.uint32, bitcast=True)
    return draw
