"""Terms by label: from a table's rows onto pairs, and from pairs back to labels.

Labels in the window are worked off CHUNK at once. One product gives a query's terms for all of them, (rows, CHUNK), and
a gather takes each pair's: for positions a shear. The way back is the shear reversed, since a query meets such a label
at one key alone. The rows of both edges, which have many keys a query, are constants of a query, and their sums sums
over a row: they go through products of 16 columns.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import load_rows, product


@triton.jit
def chunk_rows(table, pairs, b, h, chunk):
    """Rows of a table for the labels of a chunk, (CHUNK, PADDED), zeros past the last label."""
    row = tl.arange(0, pairs.CHUNK) + chunk * pairs.CHUNK + pairs.shift
    return load_rows(table, b, h, row, pairs.labels + pairs.shift)


@triton.jit
def chunks_of(pairs, label):
    """The first chunk of labels that a tile has, and one past the last."""
    stop = tl.minimum(tl.max(label) + 1, pairs.labels)
    return tl.maximum(tl.min(label), 0) // pairs.CHUNK, (stop + pairs.CHUNK - 1) // pairs.CHUNK


@triton.jit
def terms_of_chunk(x, table, pairs, b, h, label, chunk, TURNED: tl.constexpr):
    rows = chunk_rows(table, pairs, b, h, chunk)
    number = label - chunk * pairs.CHUNK
    at = number & (pairs.CHUNK - 1)
    if TURNED:
        found = tl.gather(product(rows, tl.trans(x), pairs.PRECISION), at, 0)
    else:
        found = tl.gather(product(x, tl.trans(rows), pairs.PRECISION), at, 1)
    return tl.where(number == at, found, 0.0)


@triton.jit
def terms(x, table, before, after, pairs, b, h, label, TURNED: tl.constexpr):
    """x_i · row of the pair's label, (rows, keys), or TURNED (keys, rows); `before` and `after` are those of edges.

    They are for a product to be added to: its result has a layout of its own, where otherwise the gather's would spread
    to all that comes after, and the compiler work out a row's sums once in each.
    """
    found = tl.zeros(label.shape, tl.float32)
    if table is not None:
        if pairs.ONE_CHUNK:
            found = terms_of_chunk(x, table, pairs, b, h, label, 0, TURNED)
        else:
            first, stop = chunks_of(pairs, label)
            for chunk in range(first, stop):
                found += terms_of_chunk(x, table, pairs, b, h, label, chunk, TURNED)
        if pairs.EDGES:
            if TURNED:
                found += tl.where(label < 0, before[None, :], tl.where(label >= pairs.labels, after[None, :], 0.0))
            else:
                found += tl.where(label < 0, before[:, None], tl.where(label >= pairs.labels, after[:, None], 0.0))
    return found


@triton.jit
def where_met(x, pairs, position, first_key, chunk, other):
    """Numbers of pairs (rows, keys) to (rows, CHUNK): a query's at the one key it meets a label at, or `other`."""
    slot = tl.arange(0, pairs.CHUNK) + chunk * pairs.CHUNK
    key = position[:, None] + (pairs.start + slot)[None, :] - first_key
    at = key & (x.shape[1] - 1)
    return tl.where((key == at) & (slot < pairs.labels)[None, :], tl.gather(x, at, 1), other)


@triton.jit
def by_label(x, pairs, label, position, first_key, chunk):
    """Sums of (rows, keys) over the pairs of each label of a chunk: (rows, CHUNK)."""
    if pairs.relations is None:
        sums = where_met(x, pairs, position, first_key, chunk, 0.0)
    else:
        slot = tl.arange(0, pairs.CHUNK)[None, :]
        sums = tl.zeros([x.shape[0], pairs.CHUNK], tl.float32)
        for number in range(pairs.CHUNK):
            of_label = tl.sum(tl.where(label == chunk * pairs.CHUNK + number, x, 0.0), 1)
            sums = tl.where(slot == number, of_label[:, None], sums)
    return sums


@triton.jit
def edge_rows(table, pairs, b, h):
    """The rows of both edges, (16, PADDED): before, after, and both again for what `edge_columns` rounds off."""
    slot = tl.arange(0, 16)
    row = tl.where(slot < 4, slot % 2 * (pairs.shift + pairs.labels), 2**30)
    return load_rows(table, b, h, row, 2**30)


@triton.jit
def edge_terms(x, table, pairs, b, h):
    """x_i · row of either edge, (rows,) each; zeros where there are no edges."""
    before, after = tl.zeros([x.shape[0]], tl.float32), tl.zeros([x.shape[0]], tl.float32)
    if pairs.EDGES and table is not None:
        slot = tl.arange(0, 16)[None, :]
        both = product(x, tl.trans(edge_rows(table, pairs, b, h)), pairs.PRECISION)
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
