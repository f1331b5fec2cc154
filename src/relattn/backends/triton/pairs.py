"""Which pairs attend, how they are labelled, which of them dropout keeps, and which tiles of them are far."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.arrays import laid_out_as_product, places


class PairOptions(NamedTuple):
    """Of a call. Capitals are known when a kernel is compiled."""

    relations: Any  # Array of labels, or None where distances j − i tell: those in `start` … `stop` are in the window
    mask: Any  # Array of bool, or None
    offsets: Any  # (batch,) positions of the first queries, or None
    key_lengths: Any  # (batch,) valid keys, or None
    query_lengths: Any  # (batch,) valid queries; given where `key_lengths` is
    seed: Any  # one int64 where probabilities are dropped, or None
    heads: Any
    key_heads: Any
    start: Any
    stop: Any
    labels: Any  # rows of a table for pairs in the window, of which the first is row `shift`
    shift: Any
    reach: Any  # labels that a block of queries reaches, where that is fewer; None where it may be all
    keep_threshold: Any  # a pair is kept whose draw, of 2 ** 24, is below
    keep_scale: Any  # what kept probabilities are multiplied by: 1 / (1 − p), or 0 where p is 1
    GROUP: Any  # heads that share a head of keys
    CHUNK: Any  # labels worked off at once
    ONE_CHUNK: Any  # all labels are, and the edge after the window with them
    BEFORE: Any  # pairs before the window take the table's first row
    AFTER: Any  # pairs after the window take the table's last row; under causality there are none
    CAUSAL: Any
    PRECISION: Any  # of products of float32: "tf32x3" or "tf32"


class Pairs(NamedTuple):
    """All that kernels know about a call's pairs. The sizes change from call to call and are arguments of a kernel by
    themselves: for an integer inside a tuple, Triton compiles a kernel anew when it is one, and when it is a multiple
    of 16. Constants stay constants only in a tuple that is made where it is passed on."""

    batch: Any
    queries: Any
    keys: Any
    offset: Any  # position of query 0, where there are no `offsets`
    options: PairOptions


@triton.jit
def offset_of(pairs, b):
    """Position of query 0, in 32 bits: further away than any key can be, all positions are the same."""
    offset = pairs.offset
    if pairs.options.offsets is not None:
        offset = tl.load(pairs.options.offsets + b).to(tl.int64)
        offset = tl.minimum(tl.maximum(offset, -(2**30)), 2**30).to(tl.int32)
    return offset


@triton.jit
def lengths_of(pairs, b):
    """Valid queries and valid keys of a sequence."""
    queries, keys = pairs.queries, pairs.keys
    if pairs.options.key_lengths is not None:
        queries = tl.load(pairs.options.query_lengths + b).to(tl.int32)
        keys = tl.load(pairs.options.key_lengths + b).to(tl.int32)
    return queries, keys


@triton.jit
def hide(e, pairs, b, h, row, position, key, stop, may_hide):
    """Scores with −∞ for pairs that do not attend, and for keys from `stop` on; padding queries are the caller's. Where
    there is no mask, this looks at the pairs of a tile only if it `may_hide` one."""
    if pairs.options.mask is not None:
        seen = (key < stop) & (row < pairs.queries)
        if pairs.options.CAUSAL:
            seen = seen & (key <= position)
        seen = seen & tl.load(places(pairs.options.mask, b, h, row, key), mask=seen, other=0).to(tl.int1)
        hidden = laid_out_as_product(tl.where(seen, 0.0, 1.0))
        e = tl.where(hidden == 0.0, e, float("-inf"))
    elif may_hide:
        seen = key < stop
        if pairs.options.CAUSAL:
            seen = seen & (key <= position)
        e = tl.where(seen, e, float("-inf"))
    return e


@triton.jit
def labels_of(pairs, b, h, row, position, key):
    """A pair's row of the table, counted from `shift`: negative before the window, `labels` or more after it."""
    if pairs.options.relations is None:
        label = key - position - pairs.options.start
    else:
        inside = (row < pairs.queries) & (key < pairs.keys)
        label = tl.load(places(pairs.options.relations, b, h, row, key), mask=inside, other=-1).to(tl.int32)
    return label


@triton.jit
def key_parts(pairs, first, last, valid_keys, NEAR: tl.constexpr):
    """Keys for the valid queries of a block, at positions `first` to `last`: 0 … left and resume … stop are far, left …
    resume near. The far pairs on one side all have that edge's label, and none is hidden. Near parts are multiples of
    NEAR wide, but for the last. A block of padding has `last` before `first`, and no keys."""
    stop = valid_keys
    if pairs.options.CAUSAL:
        stop = tl.maximum(tl.minimum(valid_keys, last + 1), 0)
    if pairs.options.key_lengths is not None:
        stop = tl.where(first <= last, stop, 0)
    left, resume = stop * 0, stop
    if (pairs.options.mask is None) and (pairs.options.relations is None):
        left = tl.minimum(tl.maximum(first + pairs.options.start, 0) // NEAR * NEAR, stop)
        if not pairs.options.CAUSAL:
            wide = tl.maximum(last + pairs.options.stop - left, 0)
            resume = tl.minimum(left + (wide + NEAR - 1) // NEAR * NEAR, stop)
    return left, resume, stop


@triton.jit
def query_parts(pairs, first, last, offset, valid_queries, valid_keys, NEAR: tl.constexpr):
    """Rows of the queries that see keys `first` to `last`: start … near and resume … stop are far, near … resume near.
    Keys are after the window of the queries before `near`, and before the window of those from `resume` on. A part
    begins at a multiple of NEAR, or is empty and begins at `stop`. Padding keys have no queries."""
    start, stop = 0, valid_queries
    if pairs.options.CAUSAL:
        start = tl.maximum(first - offset, 0) // NEAR * NEAR
    if pairs.options.key_lengths is not None:
        stop = tl.where(first < valid_keys, stop, 0)
    start = tl.minimum(start, stop)
    near, resume = start, stop
    if (pairs.options.mask is None) and (pairs.options.relations is None):
        if not pairs.options.CAUSAL:
            near = tl.minimum(tl.maximum(first - pairs.options.stop - offset + 1, 0) // NEAR * NEAR, stop)
        wide = tl.maximum(last - pairs.options.start + 1 - offset - near, 0)
        resume = tl.minimum(near + (wide + NEAR - 1) // NEAR * NEAR, stop)
    return start, near, resume, stop


@triton.jit
def far_part(step, tiles_before, begin, left, resume, stop, SIZE: tl.constexpr):
    """One step through the far parts begin … left and resume … stop, SIZE at a time: whether it is in the former, where
    it begins, and where its part ends."""
    is_before = step < tiles_before
    first = tl.where(is_before, begin + step * SIZE, resume + (step - tiles_before) * SIZE)
    return is_before, first, tl.where(is_before, left, stop)


@triton.jit
def row_numbers(pairs, b, h, row):
    """The number that a query's draws are made from: splitmix64 (Steele, Lea and Flood 2014) of the seed and of the
    query's place among all queries."""
    number = row
    if pairs.options.seed is not None:
        count = (b.to(tl.uint64) * pairs.options.heads + h) * pairs.queries + row.to(tl.uint64) + 1
        x = tl.load(pairs.options.seed).to(tl.uint64) + count * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        number = (x ^ (x >> 31)).to(tl.uint32)
    return number


@triton.jit
def is_kept(pairs, number, key):
    """Whether dropout keeps a pair: its draw is a mixed counter (Wellons 2018, "lowbias32"), as in "native"."""
    x = ((key.to(tl.uint32) + 1) * 0x9E3779B9) ^ number
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.int32) < pairs.options.keep_threshold
