"""Kernels of the forward pass: the output and the log-sum-exp of ROWS queries, by online softmax over tiles of keys.

In a far tile, the relative term of a query is the same for every key, and all its probability belongs to one label. In
a near tile, NEAR keys wide, the terms are gathered by label. If possible, scores of the labels in the clipping range
are kept until the log-sum-exp is known, and only then weight aV. With few queries, which would leave most of a GPU
idle, the keys are split among programs, and `join` combines their results.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, pointers, product, store_rows
from relattn.backends.triton.labels import (
    add_edges_of_keys,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    load_rel_query,
    near_scores,
    pairs_to_labels,
    sum_by_label,
    terms_by_label,
)
from relattn.backends.triton.pairs import (
    Pairs,
    common_keys,
    dropout_keeps,
    far_tile,
    in_window,
    key_parts,
    lengths_of,
    offset_of,
    row_seeds,
)
from relattn.backends.triton.row_stats import (
    FORWARD_STATS,
    LOG_SUM,
    WEIGHT_SUM_AFTER,
    WEIGHT_SUM_BEFORE,
    stat_offset,
    store_stat,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def program_indices(batch, heads, blocks):
    """Return the program's block of queries, its sequence, its head, and its split of the keys."""
    program = tl.program_id(0)
    sequence = program // blocks // heads
    return program % blocks, sequence % batch, program // blocks % heads, sequence // batch


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks", "splits"])
def forward(inputs, output, lse, row_stats, pair_options, batch, queries, keys, offset, scale2, blocks, splits,
            ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    attend(*inputs, output, lse, row_stats, Pairs(batch, queries, keys, offset, *pair_options), scale2, blocks, splits,
           ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def attend(query, key, value, rel_key, rel_value, rel_query, pos_query, output, lse, row_stats, pairs, scale2, blocks,
           splits, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """Compute a block of queries of a head on one split of its keys."""
    block, b, h, split = program_indices(pairs.batch, pairs.heads, blocks)
    key_head = h // pairs.GROUP
    split_row = split * pairs.batch + b
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    first = block * ROWS + offset
    last = tl.minimum(block * ROWS + ROWS, valid_queries) - 1 + offset
    begin, near_start, near_stop, stop = key_parts(pairs, first, last, valid_keys, NEAR)
    common_first, common_last = common_keys(pairs, first, last)
    keys_per_split = (stop - begin + splits * NEAR - 1) // (splits * NEAR) * NEAR
    start = tl.minimum(begin + split * keys_per_split, stop)
    stop = tl.minimum(start + keys_per_split, stop)
    near_start = tl.minimum(tl.maximum(near_start, start), stop)
    near_stop = tl.minimum(tl.maximum(near_stop, start), stop)
    DEFERRED: tl.constexpr = pairs.ONE_CHUNK and pairs.relations is None and rel_value is not None

    q = load_rows(query, b, h, row, valid_queries)  # (ROWS, dim)
    r = load_rel_query(q, rel_query, b, h, row, valid_queries)  # (ROWS, rel_dim)
    before, after = edge_terms(r, rel_key, pairs, b, h)  # (ROWS,)
    row_seed = row_seeds(pairs, b, h, row)[:, None]

    z = tl.zeros([ROWS, value.PADDED], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    # sums of kept probabilities: of all pairs, of those before the clipping range and of those in it
    weight_sum = row_sum
    weight_sum_before = row_sum
    weight_sum_in = row_sum
    scores = tl.full([ROWS, pairs.CHUNK], float("-inf"), tl.float32)  # by label

    tiles_before = tl.cdiv(near_start - start, COLS)
    for step in range(tiles_before + tl.cdiv(stop - near_stop, COLS)):  # far tiles
        is_before, first_key, end = far_tile(step, tiles_before, start, near_start, near_stop, stop, COLS)
        column = first_key + tl.arange(0, COLS)
        k = load_rows(key, b, key_head, column, valid_keys)  # (COLS, dim)
        v = load_rows(value, b, key_head, column, valid_keys)  # (COLS, value_dim)
        e = product(q, tl.trans(k), pairs)  # (ROWS, COLS)
        e = add_edges_of_keys(e, k, pos_query, is_before, pairs, b, h)
        if first_key + COLS > end:
            e = tl.where((column < end)[None, :], e, float("-inf"))
        if pairs.WINDOW:
            is_cut = (first_key < common_first) | (first_key + COLS - 1 > common_last)
            if is_cut:
                is_visible = in_window(pairs, (column < end)[None, :], position[:, None], column[None, :])
                e = tl.where(is_visible, e, float("-inf"))
        edge = scale2 * tl.where(is_before, before, after)  # (ROWS,)
        new_max = tl.maximum(row_max, scale2 * tl.max(e, 1) + edge)
        finite_max = new_max
        if pairs.WINDOW:
            finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(scale2 * e - (finite_max - edge)[:, None])  # (ROWS, COLS)
        rescale = tl.exp2(row_max - finite_max)
        p_sum = tl.sum(p, 1)
        row_max = new_max
        row_sum = row_sum * rescale + p_sum
        if pairs.seed is not None:
            p = tl.where(dropout_keeps(pairs, row_seed, column[None, :]), p, 0.0)
            p_sum = tl.sum(p, 1)
        if pairs.BEFORE:
            weight_sum = weight_sum * rescale + p_sum
            weight_sum_in *= rescale
            weight_sum_before = weight_sum_before * rescale + tl.where(is_before, p_sum, 0.0)
        z = add_product(p.to(v.dtype), v, z * rescale[:, None], pairs)  # (ROWS, value_dim)

    key_terms = r
    if pairs.ONE_CHUNK:
        key_terms = terms_by_label(r, rel_key, pairs, b, h, 0, False)  # (ROWS, CHUNK)
    for step in tl.range(tl.cdiv(near_stop - near_start, NEAR), disable_licm=True):  # near tiles
        first_key = near_start + step * NEAR
        column = first_key + tl.arange(0, NEAR)
        k = load_rows(key, b, key_head, column, valid_keys)  # (NEAR, dim)
        v = load_rows(value, b, key_head, column, valid_keys)  # (NEAR, value_dim)
        e, label, is_before, low, high = near_scores(
            q, r, k, rel_key, pos_query, key_terms, before, pairs, b, h, row, position, column, first_key, first, last,
            common_first, common_last, near_stop, NEAR,
        )  # fmt: skip
        new_max = tl.maximum(row_max, scale2 * tl.max(e, 1))
        finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(scale2 * e - finite_max[:, None])  # (ROWS, NEAR)
        rescale = tl.exp2(row_max - finite_max)
        p_sum = tl.sum(p, 1)
        row_max = new_max
        row_sum = row_sum * rescale + p_sum
        if pairs.seed is not None:
            keeps = dropout_keeps(pairs, row_seed, column[None, :])
            p = tl.where(keeps, p, 0.0)
            e = tl.where(keeps, e, float("-inf"))
            p_sum = tl.sum(p, 1)
        z = add_product(p.to(v.dtype), v, z * rescale[:, None], pairs)  # (ROWS, value_dim)
        weight_sum_in *= rescale
        if DEFERRED:
            scores = pairs_to_labels(e, pairs, position, first_key, 0, scores)  # (ROWS, CHUNK)
        elif rel_value is not None:
            first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
            for chunk in range(first_chunk, stop_chunk):
                rows = chunk_rows(rel_value, pairs, b, h, chunk, False)  # (CHUNK, value_dim)
                label_weights = sum_by_label(p, pairs, label, position, first_key, chunk)  # (ROWS, CHUNK)
                z = add_product(label_weights, rows, z, pairs)
                weight_sum_in += tl.sum(label_weights, 1)
        if pairs.BEFORE:
            weight_sum = weight_sum * rescale + p_sum
            weight_sum_before *= rescale
            if pairs.AFTER:
                weight_sum_before += tl.sum(tl.where(is_before, p, 0.0), 1)

    if DEFERRED:
        rows = chunk_rows(rel_value, pairs, b, h, 0, False)  # (CHUNK, value_dim)
        label_weights = tl.exp2(
            scale2 * scores - tl.where(row_max == float("-inf"), 0.0, row_max)[:, None]
        )  # (ROWS, CHUNK)
        z = add_product(label_weights, rows, z, pairs)
        weight_sum_in = tl.sum(label_weights, 1)
    attends = row_sum != 0  # true for NaN, which has to stay visible
    if pairs.query_lengths is not None:
        attends &= row < valid_queries
    if pairs.BEFORE:  # pairs neither in the clipping range nor before it are after it
        weight_sum_after = tl.zeros([ROWS], tl.float32)
        if pairs.AFTER:
            weight_sum_after = weight_sum - weight_sum_in - weight_sum_before
        else:
            weight_sum_before = weight_sum - weight_sum_in
        if rel_value is not None:
            rows = edge_rows(rel_value, pairs, b, h)  # (16, value_dim)
            z = add_product(edge_columns(weight_sum_before, weight_sum_after, rows.dtype), rows, z, pairs)
        inverse = tl.where(attends, 1.0 / tl.where(attends, row_sum, 1.0), 0.0)
        store_stat(row_stats, split * FORWARD_STATS + WEIGHT_SUM_BEFORE, b, h, row, pairs, weight_sum_before * inverse)
        store_stat(row_stats, split * FORWARD_STATS + WEIGHT_SUM_AFTER, b, h, row, pairs, weight_sum_after * inverse)
    row_sum = tl.where(attends, row_sum, 1.0)
    z = tl.where(attends[:, None], z * (pairs.keep_scale / row_sum)[:, None], 0.0)
    store_rows(output, split_row, h, row, pairs.queries, z)
    log_sum = row_max + tl.log2(row_sum)
    index = split * FORWARD_STATS + LOG_SUM
    store_stat(row_stats, index, b, h, row, pairs, tl.where(attends, log_sum, float("inf")))
    lse_rows = lse + (split_row.to(tl.int64) * pairs.heads + h) * pairs.queries + row
    tl.store(lse_rows, tl.where(attends, log_sum * LN2, float("-inf")), mask=row < pairs.queries)


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "splits"])
def join(parts, part_stats, output, lse, row_stats, pair_options, batch, queries, keys, offset, splits,
         SPLITS: tl.constexpr):  # fmt: skip
    join_parts(parts, part_stats, output, lse, row_stats, Pairs(batch, queries, keys, offset, *pair_options), splits,
               SPLITS)  # fmt: skip


@triton.jit
def join_parts(parts, part_stats, output, lse, row_stats, pairs, splits, SPLITS: tl.constexpr):
    """Compute a query's output and statistics from those of the `splits` parts of its keys, in order."""
    program = tl.program_id(0)
    row = program % pairs.queries
    h = program // pairs.queries % pairs.heads
    b = program // pairs.queries // pairs.heads
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, output.PADDED)
    exists = split < splits
    inside = column < output.DIM
    split_stats = part_stats + stat_offset(b, h, row, pairs, split * FORWARD_STATS)  # (SPLITS,)
    stride = stat_offset(0 * b, 0, 0, pairs, 1)
    log_sums = tl.load(split_stats + LOG_SUM * stride, mask=exists, other=float("inf"))
    log_sums = tl.where(log_sums == float("inf"), float("-inf"), log_sums)
    row_max = tl.max(log_sums, 0)
    attends = row_max != float("-inf")
    weight = tl.exp2(log_sums - tl.where(attends, row_max, 0.0))  # (SPLITS,)
    row_sum = tl.where(attends, tl.sum(weight, 0), 1.0)
    weight /= row_sum
    head = (split * pairs.batch + b).to(tl.int64) * pairs.heads + h
    rows = parts + (head * pairs.queries + row)[:, None] * output.DIM + column[None, :]  # (SPLITS, value_dim)
    z = tl.sum(tl.load(rows, mask=exists[:, None] & inside[None, :], other=0.0) * weight[:, None], 0)  # (value_dim,)
    tl.store(pointers(output, b, h, row, column), z.to(output.data.dtype.element_ty), mask=inside)
    if pairs.BEFORE:
        before = tl.load(split_stats + WEIGHT_SUM_BEFORE * stride, mask=exists, other=0.0)
        after = tl.load(split_stats + WEIGHT_SUM_AFTER * stride, mask=exists, other=0.0)
        tl.store(row_stats + stat_offset(b, h, row, pairs, WEIGHT_SUM_BEFORE), tl.sum(before * weight, 0))
        tl.store(row_stats + stat_offset(b, h, row, pairs, WEIGHT_SUM_AFTER), tl.sum(after * weight, 0))
    log_sum = row_max + tl.log2(row_sum)
    tl.store(row_stats + stat_offset(b, h, row, pairs, LOG_SUM), tl.where(attends, log_sum, float("inf")))
    tl.store(lse + program, tl.where(attends, log_sum * LN2, float("-inf")))
