"""Pairs of a query and a key: which attend, their labels, which of them dropout keeps, and which tiles are far.

A pair is *before* or *after* the clipping range if its distance j − i is too small or too large to lie in it. A *far*
tile has pairs of one side only, so that they all share one label. Only a window hides some of them, in tiles that it
cuts. All other tiles are *near*. Tiles outside the window are in no part.
"""

from collections import namedtuple
from typing import Any, NamedTuple, cast

import triton
import triton.language as tl

from relattn.backends.triton.arrays import pointers, with_product_layout


class PairOptions(NamedTuple):
    """Options of a call. Names in capitals are constants at compile time."""

    relations: (
        Any  # Array of labels, or None if the distance j − i is the label: `start` … `stop` is the clipping range
    )
    mask: Any  # Array of bool, or None
    offsets: Any  # (batch,) positions of the first queries, or None
    key_lengths: Any  # (batch,) valid keys, or None
    query_lengths: Any  # (batch,) valid queries; None exactly if `key_lengths` is
    seed: Any  # one int64 for dropout, or None
    heads: Any
    key_heads: Any
    start: Any
    stop: Any
    labels: Any  # rows of a table for pairs in the clipping range; the first is row `shift`
    shift: Any
    reach: Any  # number of labels that a block of queries reaches if it is smaller than `labels`, or None
    window_left: Any  # number of keys in the window before the first position of a query's chunk; None: no limit
    window_right: Any  # the window ends so many keys after it; None: at the last key, or at the query if CAUSAL
    chunk_size: Any  # positions per chunk of the sequence, or None if chunks have one position
    keep_threshold: Any  # dropout keeps a pair if its random number, out of 2 ** 24, is smaller
    keep_scale: Any  # factor of kept probabilities: 1 / (1 − p), or 0 if p is 1
    GROUP: Any  # query heads per key head
    CHUNK: Any  # labels per matrix product
    ONE_CHUNK: Any  # one chunk has all labels, with that of the edge after the clipping range
    BEFORE: Any  # pairs before the clipping range take the first row of the table
    AFTER: Any  # pairs after the clipping range take the last row; causal attention has none
    CAUSAL: Any
    WINDOW: Any  # the window has a limit
    PRECISION: Any  # of float32 products: "tf32x3" or "tf32"


# Sizes and options of a call. `offset` is the position of query 0 if there are no `offsets`. The sizes change from call
# to call and are separate arguments of a kernel: Triton would compile a kernel again for an integer inside a tuple that
# is 1 or a multiple of 16. Constants stay constants only in a tuple that is made where it is passed on.
Pairs = cast(Any, namedtuple("Pairs", ("batch", "queries", "keys", "offset", *PairOptions._fields)))


@triton.jit
def offset_of(pairs, b):
    """Return the position of query 0 in 32 bits. It is clamped, since farther positions all give the same result."""
    offset = pairs.offset
    if pairs.offsets is not None:
        offset = tl.load(pairs.offsets + b).to(tl.int64)
        offset = tl.minimum(tl.maximum(offset, -(2**30)), 2**30).to(tl.int32)
    return offset


@triton.jit
def lengths_of(pairs, b):
    """Return the numbers of valid queries and valid keys of a sequence."""
    queries = pairs.queries
    keys = pairs.keys
    if pairs.key_lengths is not None:
        queries = tl.load(pairs.query_lengths + b).to(tl.int32)
        keys = tl.load(pairs.key_lengths + b).to(tl.int32)
    return queries, keys


@triton.jit
def chunk_start(pairs, position):
    """Return the first position of the chunk that a position is in. Positions may be negative."""
    start = position
    if pairs.chunk_size is not None:
        remainder = position % pairs.chunk_size  # negative for a negative position, as in C
        start = position - tl.where(remainder < 0, remainder + pairs.chunk_size, remainder)
    return start


@triton.jit
def in_window(pairs, is_visible, position, key):
    """Return which pairs are visible and in the window."""
    if pairs.window_left is not None:
        is_visible &= key >= chunk_start(pairs, position) - pairs.window_left
    if pairs.window_right is not None:
        is_visible &= key <= chunk_start(pairs, position) + pairs.window_right
    return is_visible


@triton.jit
def no_limits():
    return tl.full([], -(2**31), tl.int32), tl.full([], 2**31 - 1, tl.int32)


@triton.jit
def common_keys(pairs, first, last):
    """Return the first and the last key in the windows of all queries at positions `first` to `last`."""
    common_first, common_last = no_limits()
    if pairs.window_left is not None:
        common_first = chunk_start(pairs, last) - pairs.window_left
    if pairs.window_right is not None:
        common_last = chunk_start(pairs, first) + pairs.window_right
    return common_first, common_last


@triton.jit
def common_positions(pairs, first, last):
    """Return the first and the last position of queries whose windows have all keys `first` to `last`."""
    common_first, common_last = no_limits()
    if pairs.window_right is not None:
        common_first = first_position(pairs, last)
    if pairs.window_left is not None:
        common_last = last_position(pairs, first)
    return common_first, common_last


@triton.jit
def first_position(pairs, key):
    """Return the first position of a query whose window does not end before a key."""
    start = key - pairs.window_right
    if pairs.chunk_size is not None:  # the next start of a chunk
        start = chunk_start(pairs, start + pairs.chunk_size - 1)
    return start


@triton.jit
def last_position(pairs, key):
    """Return the last position of a query whose window does not begin after a key."""
    last = key + pairs.window_left
    if pairs.chunk_size is not None:
        last = chunk_start(pairs, last) + pairs.chunk_size - 1
    return last


@triton.jit
def mask_scores(e, pairs, b, h, row, position, key, stop, may_hide):
    """Return the scores with −∞ for pairs that do not attend and for keys from `stop` on.

    The caller handles queries in padding. Without a mask, the pairs of a tile are checked only if it `may_hide` one.
    """
    if pairs.mask is not None:
        is_visible = (key < stop) & (row < pairs.queries)
        if pairs.CAUSAL:
            is_visible &= key <= position
        is_visible = in_window(pairs, is_visible, position, key)
        is_visible &= tl.load(pointers(pairs.mask, b, h, row, key), mask=is_visible, other=0).to(tl.int1)
        hidden = with_product_layout(tl.where(is_visible, 0.0, 1.0))
        e = tl.where(hidden == 0.0, e, float("-inf"))
    elif may_hide:
        is_visible = key < stop
        if pairs.CAUSAL:
            is_visible &= key <= position
        is_visible = in_window(pairs, is_visible, position, key)
        e = tl.where(is_visible, e, float("-inf"))
    return e


@triton.jit
def labels_of(pairs, b, h, row, position, key):
    """Return each pair's row of the table, counted from `shift`.

    It is negative before the clipping range, and `labels` or more after it.
    """
    if pairs.relations is None:
        label = key - position - pairs.start
    else:
        inside = (row < pairs.queries) & (key < pairs.keys)
        label = tl.load(pointers(pairs.relations, b, h, row, key), mask=inside, other=-1).to(tl.int32)
    return label


@triton.jit
def key_parts(pairs, first, last, valid_keys, NEAR: tl.constexpr):
    """Return start, near_start, near_stop and stop for the valid queries of a block, at positions `first` to `last`.

    Keys start … near_start and near_stop … stop are far, and near_start … near_stop are near. All others are hidden. A
    part begins at a multiple of NEAR, or is empty and begins at `stop`. The near part is a multiple of NEAR wide,
    unless it ends at `stop`. A block of padding has `last` before `first`, and no keys.
    """
    stop = valid_keys
    if pairs.CAUSAL:
        stop = tl.maximum(tl.minimum(valid_keys, last + 1), 0)
    if pairs.window_right is not None:
        stop = tl.maximum(tl.minimum(stop, chunk_start(pairs, last) + pairs.window_right + 1), 0)
    if pairs.key_lengths is not None:
        stop = tl.where(first <= last, stop, 0)
    start = stop * 0
    if pairs.window_left is not None:
        begin = tl.maximum(chunk_start(pairs, first) - pairs.window_left, 0)
        start = tl.minimum(begin // NEAR * NEAR, stop)
    near_start = start
    near_stop = stop
    if (pairs.mask is None) and (pairs.relations is None):
        near_start = tl.minimum(tl.maximum(first + pairs.start, 0) // NEAR * NEAR, stop)
        if pairs.window_left is not None:
            near_start = tl.maximum(near_start, start)
        if not pairs.CAUSAL:
            near_width = tl.maximum(last + pairs.stop - near_start, 0)
            near_stop = tl.minimum(near_start + tl.cdiv(near_width, NEAR) * NEAR, stop)
    return start, near_start, near_stop, stop


@triton.jit
def query_parts(pairs, first, last, offset, valid_queries, valid_keys, NEAR: tl.constexpr):
    """Return start, near_start, near_stop and stop: rows of the queries that attend to keys `first` to `last`.

    Queries start … near_start and near_stop … stop are far, and near_start … near_stop are near. The keys are after the
    clipping range of the former far queries, and before that of the latter. A part begins at a multiple of NEAR, or is
    empty and begins at `stop`. Keys in padding have no queries.
    """
    start = 0
    stop = valid_queries
    if pairs.CAUSAL:
        start = tl.maximum(first - offset, 0) // NEAR * NEAR
    if pairs.window_right is not None:
        start = tl.maximum(first_position(pairs, first) - offset, 0) // NEAR * NEAR
    if pairs.window_left is not None:
        end = last_position(pairs, last).to(tl.int64) + 1 - offset  # may be 2 ** 31
        stop = tl.maximum(tl.minimum(stop, end), 0).to(tl.int32)
    if pairs.key_lengths is not None:
        stop = tl.where(first < valid_keys, stop, 0)
    start = tl.minimum(start, stop)
    near_start = start
    near_stop = stop
    if (pairs.mask is None) and (pairs.relations is None):
        if not pairs.CAUSAL:
            near_start = tl.minimum(tl.maximum(first - pairs.stop - offset + 1, 0) // NEAR * NEAR, stop)
            if pairs.window_right is not None:
                near_start = tl.maximum(near_start, start)
        near_width = tl.maximum(last - pairs.start + 1 - offset - near_start, 0)
        near_stop = tl.minimum(near_start + tl.cdiv(near_width, NEAR) * NEAR, stop)
    return start, near_start, near_stop, stop


@triton.jit
def far_tile(step, tiles_before, start, near_start, near_stop, stop, SIZE: tl.constexpr):
    """Return one step through the far parts start … near_start and near_stop … stop, SIZE at a time.

    The results are whether the tile is in the former part, where the tile begins, and where its part ends.
    """
    is_before = step < tiles_before
    first = tl.where(is_before, start + step * SIZE, near_stop + (step - tiles_before) * SIZE)
    return is_before, first, tl.where(is_before, near_start, stop)


@triton.jit
def row_seeds(pairs, b, h, row):
    """Return a random number per query: splitmix64 (Steele, Lea and Flood 2014) of the seed and the query's index."""
    row_seed = row
    if pairs.seed is not None:
        count = (b.to(tl.uint64) * pairs.heads + h) * pairs.queries + row.to(tl.uint64) + 1
        x = tl.load(pairs.seed).to(tl.uint64) + count * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        row_seed = (x ^ (x >> 31)).to(tl.uint32)
    return row_seed


@triton.jit
def dropout_keeps(pairs, row_seed, key):
    """Return whether dropout keeps a pair: a hash (Wellons 2018, "lowbias32") of row seed and key, as in `native`."""
    x = ((key.to(tl.uint32) + 1) * 0x9E3779B9) ^ row_seed
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.int32) < pairs.keep_threshold
