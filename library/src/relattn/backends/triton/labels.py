"""Relative terms by label: from rows of a table to pairs, and from pairs back to labels.

Labels in the clipping range are processed CHUNK at a time. One product gives a query's terms for a chunk,
(rows, CHUNK), and a gather takes each pair's term from there. For labels by position this is a shear, and the sums by
label reverse it, because a query meets such a label at one key only. The term of an edge row is one value per query,
and its sum is one sum over the query's keys. Both edges go through products of 16 columns. In `pair_terms`, the edge
after the clipping range is one more label of the gather, which takes every larger label as that one.

Each program stores its own part of the tables' gradients. If the clipping range is as wide as the sequence, a part has
rows only for the labels that the program's queries reach.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
from relattn.backends.triton.pairs import labels_of, mask_scores


@triton.jit
def load_rel_query(q, rel_query, b, h, row, valid_queries):
    """Return r_i, which the rows of the key table are multiplied by: `rel_query`, or else the queries."""
    r = q
    if rel_query is not None:
        r = load_rows(rel_query, b, h, row, valid_queries)
    return r


@triton.jit
def chunk_rows(table, pairs, b, h, chunk, AFTER: tl.constexpr):
    """Load the rows of a table for the labels of a chunk, (CHUNK, PADDED).

    Rows after the last label are zeros; with AFTER, the row of the edge after the clipping range is included.
    """
    row = tl.arange(0, pairs.CHUNK) + chunk * pairs.CHUNK + pairs.shift
    return load_rows(table, b, h, row, pairs.labels + pairs.shift + AFTER)


@triton.jit
def chunks_of(pairs, label, low, high):
    """Return the range of chunks whose labels a tile has. By position, its labels are `low` to `high`."""
    if pairs.relations is not None:
        low = tl.min(label)
        high = tl.max(label)
    first = tl.maximum(low, 0)
    if pairs.AFTER:  # a masked tile may lie after the clipping range as a whole, and needs the edge's label
        first = tl.minimum(first, pairs.labels)
    stop = tl.minimum(high + 1, pairs.labels + pairs.AFTER)
    return first // pairs.CHUNK, tl.cdiv(stop, pairs.CHUNK)


@triton.jit
def terms_by_label(x, table, pairs, b, h, chunk, TRANSPOSED: tl.constexpr):
    """Return x_i · each row of a chunk, (rows, CHUNK), or (CHUNK, rows) if TRANSPOSED. It is unused without a table."""
    terms = x
    if table is not None:
        rows = chunk_rows(table, pairs, b, h, chunk, pairs.AFTER)  # (CHUNK, PADDED)
        terms = product(rows, tl.trans(x), pairs) if TRANSPOSED else product(x, tl.trans(rows), pairs)
    return terms


@triton.jit
def labels_to_pairs(by_label, pairs, label, chunk, TRANSPOSED: tl.constexpr):
    """Return each pair's term, gathered from the terms by label. Labels outside the chunk give zero.

    If one chunk has all labels, pairs before the clipping range get an arbitrary term, which `pair_terms` replaces.
    """
    index = label - chunk * pairs.CHUNK
    if pairs.AFTER:
        index = tl.minimum(label.to(tl.uint32), pairs.labels).to(tl.int32) - chunk * pairs.CHUNK
    wrapped = index
    if not (pairs.ONE_CHUNK and pairs.AFTER):
        wrapped = index & (pairs.CHUNK - 1)
    terms = tl.gather(by_label, wrapped, 0 if TRANSPOSED else 1)
    if not (pairs.ONE_CHUNK and pairs.BEFORE):
        terms = tl.where(index == wrapped, terms, 0.0)
    return terms


@triton.jit
def pair_terms(x, table, by_label, before, pairs, b, h, label, is_before, low, high, TRANSPOSED: tl.constexpr):
    """Return x_i · row of the pair's label, (rows, keys), or (keys, rows) if TRANSPOSED.

    `by_label` has the terms of the first chunk, and `before` those of the edge before the clipping range. The caller
    adds a product to the result, which gives it the register layout of products. The layout of the gather would spread
    to all that follows, and the compiler would compute everything once per layout.
    """
    terms = tl.zeros(label.shape, tl.float32)
    if table is not None:
        if pairs.ONE_CHUNK:
            terms = labels_to_pairs(by_label, pairs, label, 0, TRANSPOSED)
        else:
            first, stop = chunks_of(pairs, label, low, high)
            for chunk in range(first, stop):
                of_chunk = terms_by_label(x, table, pairs, b, h, chunk, TRANSPOSED)
                terms += labels_to_pairs(of_chunk, pairs, label, chunk, TRANSPOSED)
        if pairs.BEFORE:
            if TRANSPOSED:
                terms = tl.where(is_before, before[None, :], terms)
            else:
                terms = tl.where(is_before, before[:, None], terms)
    return terms


@triton.jit
def key_terms_by_pair(k, pos_query, pairs, b, h, label, is_before, low, high):
    """Return aQ_ij · k_j of a near tile, (rows, keys)."""
    by_label = k
    if pairs.ONE_CHUNK:
        by_label = terms_by_label(k, pos_query, pairs, b, h, 0, True)  # (CHUNK, keys)
    before, _ = edge_terms(k, pos_query, pairs, b, h)  # (keys,)
    return pair_terms(k, pos_query, by_label, before, pairs, b, h, label, is_before, low, high, True)


@triton.jit
def near_scores(q, r, k, rel_key, pos_query, key_terms, before, pairs, b, h, row, position, column, first_key, first,
                last, common_first, common_last, stop, NEAR: tl.constexpr):  # fmt: skip
    """Return the scores of a near tile, (rows, NEAR), with −∞ for pairs that do not attend and for keys from `stop` on.

    The other results are labels, whether pairs are before the clipping range, and the range of labels by position.
    """
    low = first_key - last - pairs.start
    high = first_key + NEAR - 1 - first - pairs.start
    label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])  # (rows, NEAR)
    is_before = column[None, :] < (position + pairs.start)[:, None]
    e = pair_terms(r, rel_key, key_terms, before, pairs, b, h, label, is_before, low, high, False)
    if pos_query is not None:
        e += key_terms_by_pair(k, pos_query, pairs, b, h, label, is_before, low, high)
    e = add_product(q, tl.trans(k), e, pairs)
    may_hide = (first_key + NEAR > stop) | (pairs.CAUSAL & (first_key + NEAR - 1 > first))
    if pairs.WINDOW:
        may_hide = may_hide | (first_key < common_first) | (first_key + NEAR - 1 > common_last)
    e = mask_scores(e, pairs, b, h, row[:, None], position[:, None], column[None, :], stop, may_hide)
    return e, label, is_before, low, high


@triton.jit
def pairs_to_labels(x, pairs, position, first, chunk, other, OF_KEYS: tl.constexpr = False):
    """Return (rows, CHUNK) from (rows, keys), for labels by position; or OF_KEYS, (keys, CHUNK) from (keys, rows).

    The result is the value at the one key of this tile where a query meets a label, or `other` if there is none.
    `position` has the positions along the first axis, and `first` is the first position along the second.
    """
    slot = tl.arange(0, pairs.CHUNK) + chunk * pairs.CHUNK
    nowhere = -3 * 2**29  # no key, plus any position up to 2 ** 30
    distance = pairs.start + slot
    if OF_KEYS:
        distance = -distance
    distance = tl.where(slot < pairs.labels, distance - first, nowhere)
    key = distance[None, :] + position[:, None]  # (rows, CHUNK)
    wrapped = key & (x.shape[1] - 1)
    return tl.where(key == wrapped, tl.gather(x, wrapped, 1), other)


@triton.jit
def sum_by_label(x, pairs, label, position, first, chunk, OF_KEYS: tl.constexpr = False):
    """Return the sums of x, (rows, keys), over the pairs of each label of a chunk: (rows, CHUNK).

    The arguments are those of `pairs_to_labels`.
    """
    if pairs.relations is None:
        sums = pairs_to_labels(x, pairs, position, first, chunk, 0.0, OF_KEYS)
    else:
        slot = tl.arange(0, pairs.CHUNK)[None, :]
        sums = tl.zeros([x.shape[0], pairs.CHUNK], tl.float32)
        for index in range(pairs.CHUNK):
            of_label = tl.sum(tl.where(label == chunk * pairs.CHUNK + index, x, 0.0), 1)  # (rows,)
            sums = tl.where(slot == index, of_label[:, None], sums)
    return sums


@triton.jit
def edge_rows(table, pairs, b, h):
    """Load the rows of both edges, (16, PADDED): before, after, and both again for the remainders of `edge_columns`."""
    slot = tl.arange(0, 16)
    row = tl.where(slot < 4, slot % 2 * (pairs.shift + pairs.labels), 2**30)
    if not pairs.AFTER:
        row = tl.where(slot % 2 == 0, row, 2**30)
    return load_rows(table, b, h, row, 2**30)


@triton.jit
def edge_terms(x, table, pairs, b, h):
    """Return x_i · row of each edge, two vectors (rows,), with zeros for an edge that does not exist."""
    before = tl.zeros([x.shape[0]], tl.float32)
    after = tl.zeros([x.shape[0]], tl.float32)
    if pairs.BEFORE and table is not None:
        slot = tl.arange(0, 16)[None, :]
        both = product(x, tl.trans(edge_rows(table, pairs, b, h)), pairs)  # (rows, 16)
        before = tl.sum(tl.where(slot == 0, both, 0.0), 1)
        after = tl.sum(tl.where(slot == 1, both, 0.0), 1)
    return before, after


@triton.jit
def add_edges_of_keys(e, k, pos_query, is_before, pairs, b, h):
    """Return scores of a far tile, (rows, keys), with aQ · k_j of the edge that the tile is beyond."""
    if (pos_query is not None) and pairs.BEFORE:
        before, after = edge_terms(k, pos_query, pairs, b, h)  # (keys,)
        e += tl.where(is_before, before, after)[None, :]
    return e


@triton.jit
def edge_columns(before, after, dtype: tl.constexpr):
    """Return each query's sums over the pairs of the edges as columns for a product, (rows, 16).

    The first two columns are rounded to `dtype`, and the next two are the remainders.
    """
    slot = tl.arange(0, 16)[None, :]
    exact = tl.where(slot % 2 == 0, before[:, None], after[:, None])  # (rows, 16)
    rounded = exact.to(dtype)
    remainder = (exact - rounded.to(tl.float32)).to(dtype)
    return tl.where(slot < 2, rounded, tl.where(slot < 4, remainder, 0.0).to(dtype))


@triton.jit
def first_label(options, distance):
    """Return the first label of a program's part of a table's gradient.

    It is the start of the first chunk that the program's pairs reach; `distance` is the smallest j − i among them.
    """
    label = 0
    if options.reach is not None:
        label = tl.maximum(distance - options.start, 0) // options.CHUNK * options.CHUNK
    return label


@triton.jit
def store_chunk(x, part, h, chunk, sums, rows, factor, pairs, accumulate, begin):
    """Store a program's part of the gradient of a chunk of a table, or add to it. The part has labels from `begin`."""
    row = tl.arange(0, pairs.CHUNK) + pairs.shift + chunk * pairs.CHUNK - begin
    gradient = tl.trans(product(tl.trans(rows), sums.to(rows.dtype), pairs))  # (CHUNK, PADDED)
    store_part(x, part, h, row, pairs.shift + pairs.labels - begin, factor * gradient, accumulate)


@triton.jit
def store_edges(x, part, h, columns, rows, factor, pairs, accumulate):
    """Store a program's part of the gradients of both edge rows, or add to it."""
    last = pairs.shift + pairs.labels
    if pairs.reach is not None:
        last = pairs.shift + pairs.reach
    gradient = tl.trans(product(tl.trans(rows), columns, pairs))  # (16, PADDED)
    gradient = factor * tl.sum(tl.reshape(gradient, [8, 2, x.PADDED]), 0)  # (2, PADDED)
    store_part(x, part, h, tl.arange(0, 2) * last, last + pairs.AFTER, gradient, accumulate)


@triton.jit
def store_part(x, part, h, row, stop, gradient, accumulate):
    if accumulate:
        gradient += load_rows(x, part, h, row, stop)
    store_rows(x, part, h, row, stop, gradient)
    if accumulate:
        tl.debug_barrier()  # other threads of the program read it later
