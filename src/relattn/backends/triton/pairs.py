"""Which pairs attend, how they are labelled, which of them dropout keeps, and which tiles of them are far."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.arrays import laid_out_as_product, places


class Options(NamedTuple):
    """Of a call. Capitals are known when a kernel is compiled."""

    relations: Any  # Array of labels, or None where distances j − i tell: those in `start` … `stop` are in the window
    mask: Any  # Array of bool, or None
    offsets: Any  # (batch,) positions of the first queries, or None
    lengths: Any  # (batch,) valid keys, or None
    seed: Any  # one int64 where probabilities are dropped, or None
    heads: Any
    key_heads: Any
    start: Any
    stop: Any
    labels: Any  # rows of a table for pairs in the window, of which the first is row `shift`
    shift: Any
    threshold: Any  # of 2 ** 24 draws, those that are kept
    boost: Any  # what kept probabilities are multiplied by
    GROUP: Any  # heads that share a head of keys
    CHUNK: Any  # labels worked off at once
    ONE_CHUNK: Any  # all labels are, and the edge after the window with them
    BEFORE: Any  # pairs before the window take the table's first row
    AFTER: Any  # pairs after the window take the table's last row; under causality there are none
    CAUSAL: Any
    PRECISION: Any  # of products of float32: "tf32x3" or "tf32"


class Pairs(NamedTuple):
    """All that is told of a call's pairs. The sizes change from call to call, and are arguments of a kernel: in a tuple
    of its arguments, Triton would compile it anew for what it takes for granted of numbers, that they are one, or
    multiples of 16. What is known at compile time stays so only in a tuple that is made where it is passed on."""

    batch: Any
    queries: Any
    keys: Any
    offset: Any  # position of query 0, where there are no `offsets`
    options: Options


@triton.jit
def offset_of(pairs, b):
    """Position of query 0, within 32 bits: what is further than any key might be is as good as 2³⁰ away."""
    offset = pairs.offset
    if pairs.options.offsets is not None:
        offset = tl.minimum(tl.maximum(tl.load(pairs.options.offsets + b), -(2**30)), 2**30).to(tl.int32)
    return offset


@triton.jit
def valid_keys(pairs, b):
    valid = pairs.keys
    if pairs.options.lengths is not None:
        valid = tl.load(pairs.options.lengths + b).to(tl.int32)
    return valid


@triton.jit
def hide(e, pairs, b, h, row, position, key, stop, may_hide):
    """Scores with −∞ for pairs that do not attend, and for keys from `stop` on. Queries that are padding are left to
    the caller. Where there is no mask, a tile is only looked through if it `may_hide` some pair."""
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
    """A pair's row of the table, counted from `shift`. Positions before the window have negative numbers, those after
    it numbers from `labels` on."""
    if pairs.options.relations is None:
        label = key - position - pairs.options.start
    else:
        inside = (row < pairs.queries) & (key < pairs.keys)
        label = tl.load(places(pairs.options.relations, b, h, row, key), mask=inside, other=-1).to(tl.int32)
    return label


@triton.jit
def key_parts(pairs, first, last, valid, NEAR: tl.constexpr):
    """Keys for queries at positions `first` to `last`: 0 … left and resume … stop are far, left … resume near. All
    pairs that are far on a side have that edge's label, and none of them is hidden. Near parts are NEAR keys wide."""
    stop = valid
    if pairs.options.CAUSAL:
        stop = tl.maximum(tl.minimum(valid, last + 1), 0)
    if pairs.options.lengths is not None:
        stop = tl.where(first < valid, stop, 0)
    left, resume = stop * 0, stop
    if (pairs.options.mask is None) and (pairs.options.relations is None):
        left = tl.minimum(tl.maximum(first + pairs.options.start, 0) // NEAR * NEAR, stop)
        if not pairs.options.CAUSAL:
            wide = tl.maximum(last + pairs.options.stop - left, 0)
            resume = tl.minimum(left + (wide + NEAR - 1) // NEAR * NEAR, stop)
    return left, resume, stop


@triton.jit
def query_parts(pairs, first, last, valid, offset, NEAR: tl.constexpr):
    """Queries that see keys `first` to `last`: start … near and resume … stop are far, near … resume near. The keys of
    far ones are after the window for the former, before it for the latter. Parts begin at multiples of NEAR, or at
    `stop`, where nothing is left of them."""
    start, stop = 0, pairs.queries
    if pairs.options.CAUSAL:
        start = tl.maximum(first - offset, 0) // NEAR * NEAR
    if pairs.options.lengths is not None:
        stop = tl.where(first < valid, tl.maximum(tl.minimum(stop, valid - offset), 0), 0)
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
    """A step through the far parts begin … left and resume … stop, SIZE at a time: its first, and its part's end."""
    is_before = step < tiles_before
    first = tl.where(is_before, begin + step * SIZE, resume + (step - tiles_before) * SIZE)
    return is_before, first, tl.where(is_before, left, stop)


@triton.jit
def row_numbers(pairs, b, h, row):
    """A number a query to draw from: splitmix64 (Steele, Lea and Flood 2014) of the seed and the query's count."""
    number = row
    if pairs.options.seed is not None:
        count = (b.to(tl.uint64) * pairs.options.heads + h) * pairs.queries + row.to(tl.uint64) + 1
        x = tl.load(pairs.options.seed).to(tl.uint64) + count * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        number = (x ^ (x >> 31)).to(tl.uint32)
    return number


@triton.jit
def kept(pairs, number, key):
    """Whether pairs keep their probability: a mixed counter (Wellons 2018, "lowbias32") against a threshold. The draws
    are those of the kernels for processors."""
    x = ((key.to(tl.uint32) + 1) * 0x9E3779B9) ^ number
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.int32) < pairs.options.threshold
