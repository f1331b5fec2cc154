"""Terms by label: from a table's rows onto pairs, and from pairs back to labels.

Labels in the window are worked off CHUNK at once. One product gives a query's terms for all of them, (rows, CHUNK), and
a gather takes each pair's: for positions a shear. The way back is the shear reversed, since a query meets such a label
at one key alone. The rows of both edges, which have many keys a query, are constants of a query, and their sums sums
over a row: they go through products of 16 columns. Forward, the edge after the window is one more label of the gather,
which takes all labels past the last as the last.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import load_rows, product


@triton.jit
def chunk_rows(table, pairs, b, h, chunk, AFTER: tl.constexpr):
    """Rows of a table for the labels of a chunk, (CHUNK, PADDED), zeros past the last label, or the edge's AFTER it."""
    row = tl.arange(0, pairs.options.CHUNK) + chunk * pairs.options.CHUNK + pairs.options.shift
    return load_rows(table, b, h, row, pairs.options.labels + pairs.options.shift + AFTER)


@triton.jit
def chunks_of(pairs, label, low, high):
    """The first chunk of labels that a tile has, and one past the last; `low` to `high` are its labels by position."""
    if pairs.options.relations is not None:
        low, high = tl.min(label), tl.max(label)
    stop = tl.minimum(high + 1, pairs.options.labels + pairs.options.AFTER)
    return tl.maximum(low, 0) // pairs.options.CHUNK, (stop + pairs.options.CHUNK - 1) // pairs.options.CHUNK


@triton.jit
def terms_by_label(x, table, pairs, b, h, chunk, TURNED: tl.constexpr):
    """x_i · each row of a chunk, (rows, CHUNK), or TURNED (CHUNK, rows); nothing where there is no table."""
    found = x
    if table is not None:
        rows = chunk_rows(table, pairs, b, h, chunk, pairs.options.AFTER)
        found = (
            product(rows, tl.trans(x), pairs.options.PRECISION)
            if TURNED
            else product(x, tl.trans(rows), pairs.options.PRECISION)
        )
    return found


@triton.jit
def onto_pairs(by_label, pairs, label, chunk, TURNED: tl.constexpr):
    """Each pair's of the terms by label; zero for labels outside the chunk. Where one chunk has all the labels, pairs
    before the window get any, for they have others."""
    number = label - chunk * pairs.options.CHUNK
    if pairs.options.AFTER:
        number = tl.minimum(label.to(tl.uint32), pairs.options.labels).to(tl.int32) - chunk * pairs.options.CHUNK
    at = number
    if not (pairs.options.ONE_CHUNK and pairs.options.AFTER):
        at = number & (pairs.options.CHUNK - 1)
    found = tl.gather(by_label, at, 0 if TURNED else 1)
    if not (pairs.options.ONE_CHUNK and pairs.options.BEFORE):
        found = tl.where(number == at, found, 0.0)
    return found


@triton.jit
def terms(x, table, by_label, before, pairs, b, h, label, is_before, low, high, TURNED: tl.constexpr):
    """x_i · row of the pair's label, (rows, keys), or TURNED (keys, rows): of `by_label`, those of the first chunk, or
    `before` for the edge before the window.

    They are for a product to be added to: its result has a layout of its own, where otherwise the gather's would spread
    to all that comes after, and the compiler work out a row's sums once in each.
    """
    found = tl.zeros(label.shape, tl.float32)
    if table is not None:
        if pairs.options.ONE_CHUNK:
            found = onto_pairs(by_label, pairs, label, 0, TURNED)
        else:
            first, stop = chunks_of(pairs, label, low, high)
            for chunk in range(first, stop):
                found += onto_pairs(terms_by_label(x, table, pairs, b, h, chunk, TURNED), pairs, label, chunk, TURNED)
        if pairs.options.BEFORE:
            if TURNED:
                found = tl.where(is_before, before[None, :], found)
            else:
                found = tl.where(is_before, before[:, None], found)
    return found


@triton.jit
def where_met(x, pairs, position, first_key, chunk, other):
    """Numbers of pairs (rows, keys) to (rows, CHUNK): a query's at the one key it meets a label at, else `other`."""
    slot = tl.arange(0, pairs.options.CHUNK) + chunk * pairs.options.CHUNK
    key = (
        tl.where(slot < pairs.options.labels, pairs.options.start + slot - first_key, -(2**30))[None, :]
        + position[:, None]
    )
    at = key & (x.shape[1] - 1)
    return tl.where(key == at, tl.gather(x, at, 1), other)


@triton.jit
def by_label(x, pairs, label, position, first_key, chunk):
    """Sums of (rows, keys) over the pairs of each label of a chunk: (rows, CHUNK)."""
    if pairs.options.relations is None:
        sums = where_met(x, pairs, position, first_key, chunk, 0.0)
    else:
        slot = tl.arange(0, pairs.options.CHUNK)[None, :]
        sums = tl.zeros([x.shape[0], pairs.options.CHUNK], tl.float32)
        for number in range(pairs.options.CHUNK):
            of_label = tl.sum(tl.where(label == chunk * pairs.options.CHUNK + number, x, 0.0), 1)
            sums = tl.where(slot == number, of_label[:, None], sums)
    return sums


@triton.jit
def edge_rows(table, pairs, b, h):
    """The rows of both edges, (16, PADDED): before, after, and both again for what `edge_columns` rounds off."""
    slot = tl.arange(0, 16)
    row = tl.where(slot < 4, slot % 2 * (pairs.options.shift + pairs.options.labels), 2**30)
    if not pairs.options.AFTER:
        row = tl.where(slot % 2 == 0, row, 2**30)
    return load_rows(table, b, h, row, 2**30)


@triton.jit
def edge_terms(x, table, pairs, b, h):
    """x_i · row of either edge, (rows,) each; zeros where there is none."""
    before, after = tl.zeros([x.shape[0]], tl.float32), tl.zeros([x.shape[0]], tl.float32)
    if pairs.options.BEFORE and table is not None:
        slot = tl.arange(0, 16)[None, :]
        both = product(x, tl.trans(edge_rows(table, pairs, b, h)), pairs.options.PRECISION)
        before, after = tl.sum(tl.where(slot == 0, both, 0.0), 1), tl.sum(tl.where(slot == 1, both, 0.0), 1)
    return before, after


@triton.jit
def edge_columns(before, after, kind: tl.constexpr):
    """A row's sums over either edge's pairs as columns for products, (rows, 16), each with what rounding takes off."""
    slot = tl.arange(0, 16)[None, :]
    exact = tl.where(slot % 2 == 0, before[:, None], after[:, None])
    rounded = exact.to(kind)
    rest = (exact - rounded.to(tl.float32)).to(kind)
    return tl.where(slot < 2, rounded, tl.where(slot < 4, rest, 0.0).to(kind))
