"""Terms by label: from a table's rows onto pairs, and from pairs back to labels.

Labels in the window are worked off CHUNK at a time. One product gives a query's terms for a chunk, (rows, CHUNK), and a
gather takes each pair's from there: for positions a shear. The sums by label reverse the shear, since a query meets
such a label at one key only. An edge's term is one number per query, and its sum one sum over the query's keys; both
edges go through products of 16 columns. In `terms`, the edge after the window is one more label of the gather, which
takes every label past the last as the last. Programs store their parts of the tables' gradients each by itself; where
the window is as wide as the sequence, a part has rows for the labels alone that the program's queries reach.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import load_rows, product, store_rows


@triton.jit
def rel_queries(q, rel_query, b, h, row, valid_queries):
    """r_i, what the rows of the keys' table are multiplied by: the queries themselves where there is nothing else."""
    r = q
    if rel_query is not None:
        r = load_rows(rel_query, b, h, row, valid_queries)
    return r


@triton.jit
def chunk_rows(table, pairs, b, h, chunk, AFTER: tl.constexpr):
    """Rows of a table for the labels of a chunk, (CHUNK, PADDED), zeros past the last label or the edge AFTER it."""
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
    """x_i · each row of a chunk, (rows, CHUNK), or TURNED (CHUNK, rows); unused where there is no table."""
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
    """Each pair's term out of those by label; zero for labels outside the chunk. Where one chunk has all labels, pairs
    before the window get any of them, since `terms` replaces theirs."""
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
    """x_i · row of the pair's label, (rows, keys), or TURNED (keys, rows). `by_label` are the terms of the first chunk,
    `before` those of the edge before the window.

    A product is added to the result, and gives it the layout of products: the gather's would spread to all that comes
    after, and the compiler then work everything out once in each layout.
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
    """From pairs (rows, keys) to labels (rows, CHUNK): the number at the one key where a query meets a label in this
    tile, or `other`."""
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
def edge_columns(before, after, dtype: tl.constexpr):
    """Each query's sums over either edge's pairs, as columns for products, (rows, 16): rounded, and what that lost."""
    slot = tl.arange(0, 16)[None, :]
    exact = tl.where(slot % 2 == 0, before[:, None], after[:, None])
    rounded = exact.to(dtype)
    rest = (exact - rounded.to(tl.float32)).to(dtype)
    return tl.where(slot < 2, rounded, tl.where(slot < 4, rest, 0.0).to(dtype))


@triton.jit
def first_label(pairs, last):
    """The label that a program's part of a table's gradient begins with: that of the first chunk which its queries
    reach, the last of which is at position `last`."""
    label = 0
    if pairs.options.reach is not None:
        label = tl.maximum(-last - pairs.options.start, 0) // pairs.options.CHUNK * pairs.options.CHUNK
    return label


@triton.jit
def store_chunk(x, part, h, chunk, sums, rows, factor, pairs, adds, begin):
    """A program's part of the gradient of a chunk of a table; it replaces what was there, or is added to it. The part
    has labels from `begin` on."""
    row = tl.arange(0, pairs.options.CHUNK) + pairs.options.shift + chunk * pairs.options.CHUNK - begin
    found = tl.trans(product(tl.trans(rows), sums.to(rows.dtype), pairs.options.PRECISION))
    store_part(x, part, h, row, pairs.options.shift + pairs.options.labels - begin, factor * found, adds)


@triton.jit
def store_edges(x, part, h, columns, rows, factor, pairs, adds):
    """A program's part of the gradients of both edges' rows."""
    last = pairs.options.shift + pairs.options.labels
    if pairs.options.reach is not None:
        last = pairs.options.shift + pairs.options.reach
    found = tl.trans(product(tl.trans(rows), columns, pairs.options.PRECISION))
    found = factor * tl.sum(tl.reshape(found, [8, 2, x.PADDED]), 0)
    store_part(x, part, h, tl.arange(0, 2) * last, last + pairs.options.AFTER, found, adds)


@triton.jit
def store_part(x, part, h, row, stop, found, adds):
    if adds:
        found += load_rows(x, part, h, row, stop)
    store_rows(x, part, h, row, stop, found)
    if adds:
        tl.debug_barrier()  # before other threads of the program read it
