"""Which pairs attend, how they are labelled, which of them dropout keeps, and which tiles of them are far."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relattn.backends.triton.arrays import places


class Pairs(NamedTuple):
    """A call's options. Capitals are known when a kernel is compiled."""

    relations: Any  # Array of labels, or None where distances j − i tell: those in `start` … `stop` are in the window
    mask: Any  # Array of bool, or None
    offsets: Any  # (batch,) positions of the first queries, or None where all are at `offset`
    lengths: Any  # (batch,) valid keys, or None
    seed: Any  # one int64 where probabilities are dropped, or None
    offset: Any
    batch: Any
    heads: Any
    key_heads: Any
    group: Any  # heads that share a head of keys
    queries: Any
    keys: Any
    start: Any
    stop: Any
    labels: Any  # rows of a table for pairs in the window, of which the first is row `shift`
    shift: Any
    threshold: Any  # of 2 ** 24 draws, those that are kept
    boost: Any  # what kept probabilities are multiplied by
    CHUNK: Any  # labels worked off at once
    ONE_CHUNK: Any  # all labels are
    EDGES: Any  # pairs on either side of the window take the table's first and last row
    CAUSAL: Any
    PRECISION: Any  # of products of float32: "ieee" or "tf32"


@triton.jit
def offset_of(pairs, b):
    """Position of query 0, within 32 bits: what is further than any key might be is as good as 2³⁰ away."""
    offset = pairs.offset
    if pairs.offsets is not None:
        offset = tl.minimum(tl.maximum(tl.load(pairs.offsets + b), -(2**30)), 2**30).to(tl.int32)
    return offset


@triton.jit
def valid_keys(pairs, b):
    valid = pairs.keys
    if pairs.lengths is not None:
        valid = tl.load(pairs.lengths + b).to(tl.int32)
    return valid


@triton.jit
def sees(pairs, b, h, row, position, key, valid):
    """Whether pairs attend. Queries that are padding are left to the caller."""
    seen = (key < valid) & (row < pairs.queries)
    if pairs.CAUSAL:
        seen = seen & (key <= position)
    if pairs.mask is not None:
        seen = seen & tl.load(places(pairs.mask, b, h, row, key), mask=seen, other=0).to(tl.int1)
    return seen


@triton.jit
def labels_of(pairs, b, h, row, position, key):
    """A pair's row of the table, counted from `shift`. Positions before the window have negative numbers, those after
    it numbers from `labels` on."""
    if pairs.relations is None:
        label = key - position - pairs.start
    else:
        inside = (row < pairs.queries) & (key < pairs.keys)
        label = tl.load(places(pairs.relations, b, h, row, key), mask=inside, other=-1).to(tl.int32)
    return label


@triton.jit
def key_tiles(pairs, first, last, valid, COLS: tl.constexpr):
    """Tiles of keys for queries at positions `first` to `last`: 0 … left and resume … full are far, left … resume and
    full … tiles near. Far tiles are whole, none of their pairs is hidden, and all have the same edge's label."""
    stop = valid
    if pairs.CAUSAL:
        stop = tl.maximum(tl.minimum(valid, last + 1), 0)
    if pairs.lengths is not None:
        stop = tl.where(first < valid, stop, 0)
    tiles, full = (stop + COLS - 1) // COLS, stop // COLS
    left, resume = tiles * 0, tiles
    if (pairs.mask is None) and (pairs.relations is None):
        left = tl.minimum(tl.maximum(first + pairs.start, 0) // COLS, full)
        resume = (tl.maximum(last + pairs.stop, 0) + COLS - 1) // COLS
        resume = tl.minimum(tl.maximum(resume, left), tiles)
    return left, resume, tl.maximum(full, resume), tiles


@triton.jit
def query_tiles(pairs, first, last, valid, offset, ROWS: tl.constexpr):
    """Tiles of queries that see keys `first` to `last`: start … near and resume … stop are far, near … resume near."""
    start, rows = 0, pairs.queries
    if pairs.CAUSAL:
        start = tl.maximum(first - offset, 0) // ROWS
    if pairs.lengths is not None:
        rows = tl.where(first < valid, tl.maximum(tl.minimum(rows, valid - offset), 0), 0)
    stop = (rows + ROWS - 1) // ROWS
    start = tl.minimum(start, stop)
    near, resume = start, stop
    if (pairs.mask is None) and (pairs.relations is None):
        if not pairs.CAUSAL:
            near = tl.minimum(tl.maximum(first - pairs.stop - offset + 1, 0) // ROWS, stop)
        resume = (tl.maximum(last - pairs.start + 1 - offset, 0) + ROWS - 1) // ROWS
        resume = tl.minimum(tl.maximum(resume, near), stop)
    return start, near, resume, stop


@triton.jit
def row_numbers(pairs, b, h, row):
    """A number a query to draw from: splitmix64 (Steele, Lea and Flood 2014) of the seed and the query's count."""
    number = row
    if pairs.seed is not None:
        count = (b.to(tl.uint64) * pairs.heads + h) * pairs.queries + row.to(tl.uint64) + 1
        x = tl.load(pairs.seed).to(tl.uint64) + count * 0x9E3779B97F4A7C15
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
    return (x >> 8).to(tl.int32) < pairs.threshold
