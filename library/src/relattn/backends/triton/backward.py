"""Kernels of the backward pass: `backward_query` for a block of queries, `backward_key` for a block of keys.

    p_ij = 2^(e_ij − lse_i)    dp_ij = g_i · (v_j + aV_ij)    ds_ij = p_ij (dp_ij − delta_i)    delta_i = g_i · z_i

`backward_query` computes dq and dr, and each of its programs a part of the gradients of the tables: the sums of ds and
p by label, times r and g. Without a rel_query, r is q, and dq has both contributions. It stores BACKWARD_STATS for
`backward_key`, which computes dk and dv. If one program has all queries of a head, WHOLE, it computes those too. No two
programs write to the same place, so that atomic operations are not needed.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
from relattn.backends.triton.forward import program_indices
from relattn.backends.triton.labels import (
    add_edges_of_keys,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    first_label,
    load_rel_query,
    near_scores,
    pair_terms,
    pairs_to_labels,
    store_chunk,
    store_edges,
    sum_by_label,
    terms_by_label,
)
from relattn.backends.triton.pairs import (
    Pairs,
    common_keys,
    common_positions,
    dropout_keeps,
    far_tile,
    in_window,
    key_parts,
    labels_of,
    lengths_of,
    mask_scores,
    offset_of,
    query_parts,
    row_seeds,
)
from relattn.backends.triton.row_stats import (
    DELTA,
    DELTA_AFTER,
    DELTA_BEFORE,
    KEY_BEFORE,
    LOG,
    LOG_AFTER,
    LOG_BEFORE,
    LOG_SUM,
    ROW_SEED,
    VALUE_BEFORE,
    WEIGHT_SUM_AFTER,
    WEIGHT_SUM_BEFORE,
    load_backward_stat,
    load_forward_stat,
    load_row_seed,
    store_stat,
)


@triton.jit
def weights_and_ds(p, dp, delta, shifted_delta, pairs, row_seed, key):
    """Return the kept probabilities and ds, in the shape of p.

    `shifted_delta` is delta minus the relative terms that `dp` lacks in a far tile.
    """
    if pairs.seed is None:
        weights = p
        ds = p * (dp - shifted_delta)
    else:
        keeps = dropout_keeps(pairs, row_seed, key)
        weights = tl.where(keeps, p, 0.0)
        ds = p * tl.where(keeps, pairs.keep_scale * dp - shifted_delta, -delta)
    return weights, ds


@triton.jit
def add_relative(sums, rows, dq, dr, rel_query, pairs):
    """Add the product of ds by label and rows of the table to dr, or to dq without a rel_query, and return dq, dr."""
    if rel_query is None:
        dq = add_product(sums, rows, dq, pairs)
    else:
        dr = add_product(sums, rows, dr, pairs)
    return dq, dr


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks", "sequences"])
def backward_query(inputs, output, grad, row_stats, backward_stats, gradients, pair_options, batch, queries, keys,
                   offset, scale, scale2, blocks, sequences, WHOLE: tl.constexpr, SEVERAL: tl.constexpr,
                   ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """Compute a block of queries, or all queries of SEVERAL sequences, whose gradients of the tables are summed."""
    block, sequence_group, h, _ = program_indices(batch, pair_options.heads, blocks)
    if SEVERAL:
        for index in tl.range(0, tl.minimum(sequences, batch - sequence_group * sequences), disable_licm=True):
            block_of_queries(*inputs, output, grad, row_stats, backward_stats, *gradients,
                             Pairs(batch, queries, keys, offset, *pair_options), scale, scale2, block,
                             sequence_group * sequences + index, h, sequence_group, index > 0,
                             WHOLE, ROWS, COLS, NEAR)  # fmt: skip
            tl.debug_barrier()  # other threads of the program read its parts of the tables' gradients next
    else:
        block_of_queries(*inputs, output, grad, row_stats, backward_stats, *gradients,
                         Pairs(batch, queries, keys, offset, *pair_options), scale, scale2, block, sequence_group, h,
                         sequence_group * blocks + block, False, WHOLE, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_queries(query, key, value, rel_key, rel_value, rel_query, pos_query, output, grad, row_stats,
                     backward_stats, d_query, d_key, d_value, d_rel_key, d_rel_value, d_rel_query, pairs, scale, scale2,
                     block, b, h, program_index, accumulate, WHOLE: tl.constexpr,
                     ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    key_head = h // pairs.GROUP
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    first = block * ROWS + offset
    last = tl.minimum(block * ROWS + ROWS, valid_queries) - 1 + offset
    start, near_start, near_stop, stop = key_parts(pairs, first, last, valid_keys, NEAR)
    common_first, common_last = common_keys(pairs, first, last)
    visible_until = near_stop
    if WHOLE:  # every key is near, and the program stores a gradient for it
        near_start = 0
        near_stop = pairs.keys
        visible_until = stop
    DEFERRED: tl.constexpr = pairs.ONE_CHUNK and pairs.relations is None
    begin = first_label(pairs, -(block * ROWS + ROWS - 1 + offset))

    q = load_rows(query, b, h, row, valid_queries)  # (ROWS, dim)
    r = load_rel_query(q, rel_query, b, h, row, valid_queries)  # (ROWS, rel_dim)
    g = load_rows(grad, b, h, row, valid_queries)  # (ROWS, value_dim)
    z = load_rows(output, b, h, row, pairs.queries)  # (ROWS, value_dim)
    log_sum = load_forward_stat(row_stats, LOG_SUM, b, h, row, pairs, float("inf"))  # (ROWS,)
    delta = tl.sum(g.to(tl.float32) * z.to(tl.float32), 1)
    key_before, key_after = edge_terms(r, rel_key, pairs, b, h)
    value_before, value_after = edge_terms(g, rel_value, pairs, b, h)
    log_before = log_sum - scale2 * key_before
    log_after = log_sum - scale2 * key_after
    delta_before = delta - pairs.keep_scale * value_before
    delta_after = delta - pairs.keep_scale * value_after
    if not WHOLE:
        store_stat(backward_stats, LOG, b, h, row, pairs, log_sum)
        store_stat(backward_stats, DELTA, b, h, row, pairs, delta)
        if pairs.BEFORE:
            store_stat(backward_stats, LOG_BEFORE, b, h, row, pairs, log_before)
            store_stat(backward_stats, LOG_AFTER, b, h, row, pairs, log_after)
            store_stat(backward_stats, DELTA_BEFORE, b, h, row, pairs, delta_before)
            store_stat(backward_stats, DELTA_AFTER, b, h, row, pairs, delta_after)
            store_stat(backward_stats, KEY_BEFORE, b, h, row, pairs, key_before)
            store_stat(backward_stats, VALUE_BEFORE, b, h, row, pairs, value_before)
    row_seed = row_seeds(pairs, b, h, row)
    if pairs.seed is not None and not WHOLE:
        store_stat(backward_stats, ROW_SEED, b, h, row, pairs, row_seed.to(tl.float32, bitcast=True))
    row_seed = row_seed[:, None]

    dq = tl.zeros([ROWS, query.PADDED], tl.float32)
    dr = tl.zeros([ROWS, r.shape[1]], tl.float32)
    ds_by_label = tl.zeros([ROWS, pairs.CHUNK], tl.float32)
    weights_by_label = ds_by_label  # sums of kept probabilities
    # per query: sums of ds over all pairs, those before and those in the clipping range; of kept probabilities in it
    ds_sum = tl.zeros([ROWS], tl.float32)
    ds_before = ds_sum
    ds_in = ds_sum
    weight_sum_in = ds_sum

    if not WHOLE:
        tiles_before = tl.cdiv(near_start - start, COLS)
        for step in range(tiles_before + tl.cdiv(stop - near_stop, COLS)):  # far tiles
            is_before, first_key, end = far_tile(step, tiles_before, start, near_start, near_stop, stop, COLS)
            column = first_key + tl.arange(0, COLS)
            k = load_rows(key, b, key_head, column, valid_keys)  # (COLS, dim)
            v = load_rows(value, b, key_head, column, valid_keys)  # (COLS, value_dim)
            log = tl.where(is_before, log_before, log_after)  # (ROWS,)
            e = product(q, tl.trans(k), pairs)  # (ROWS, COLS)
            e = add_edges_of_keys(e, k, pos_query, is_before, pairs, b, h)
            p = tl.exp2(scale2 * e - log[:, None])  # (ROWS, COLS)
            is_cut = first_key + COLS > end
            if pairs.WINDOW:
                is_cut = is_cut | (first_key < common_first) | (first_key + COLS - 1 > common_last)
            if is_cut:
                is_visible = in_window(pairs, (column < end)[None, :], position[:, None], column[None, :])
                p = tl.where(is_visible, p, 0.0)
            dp = product(g, tl.trans(v), pairs)  # (ROWS, COLS)
            shifted_delta = tl.where(is_before, delta_before, delta_after)
            _, ds = weights_and_ds(p, dp, delta[:, None], shifted_delta[:, None], pairs, row_seed, column[None, :])
            dq = add_product(ds, k, dq, pairs)  # (ROWS, dim)
            tile_sum = tl.sum(ds, 1)  # (ROWS,)
            ds_sum += tile_sum
            ds_before += tl.where(is_before, tile_sum, 0.0)

    key_terms = r
    value_terms = g
    if pairs.ONE_CHUNK:
        key_terms = terms_by_label(r, rel_key, pairs, b, h, 0, False)  # (ROWS, CHUNK)
        value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, False)  # (ROWS, CHUNK)
    for step in tl.range(tl.cdiv(near_stop - near_start, NEAR), disable_licm=True):  # near tiles
        first_key = near_start + step * NEAR
        column = first_key + tl.arange(0, NEAR)
        k = load_rows(key, b, key_head, column, valid_keys)  # (NEAR, dim)
        v = load_rows(value, b, key_head, column, valid_keys)  # (NEAR, value_dim)
        e, label, is_before, low, high = near_scores(
            q, r, k, rel_key, pos_query, key_terms, key_before, pairs, b, h, row, position, column, first_key, first,
            last, common_first, common_last, visible_until, NEAR,
        )  # fmt: skip
        p = tl.exp2(scale2 * e - log_sum[:, None])  # (ROWS, NEAR)
        dp = pair_terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, False)
        dp = add_product(g, tl.trans(v), dp, pairs)  # (ROWS, NEAR)
        weights, ds = weights_and_ds(p, dp, delta[:, None], delta[:, None], pairs, row_seed, column[None, :])
        dq = add_product(ds, k, dq, pairs)  # (ROWS, dim)
        if DEFERRED:
            if rel_key is not None:
                ds_by_label += pairs_to_labels(ds, pairs, position, first_key, 0, 0.0)  # (ROWS, CHUNK)
            if rel_value is not None:
                weights_by_label += pairs_to_labels(weights, pairs, position, first_key, 0, 0.0)  # (ROWS, CHUNK)
        else:
            first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
            if rel_key is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = sum_by_label(ds, pairs, label, position, first_key, chunk)  # (ROWS, CHUNK)
                    rows = chunk_rows(rel_key, pairs, b, h, chunk, False)  # (CHUNK, rel_dim)
                    dq, dr = add_relative(sums, rows, dq, dr, rel_query, pairs)
                    store_chunk(d_rel_key, program_index, h, chunk, sums, r, scale, pairs, True, begin)
                    ds_in += tl.sum(sums, 1)
            if rel_value is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = sum_by_label(weights, pairs, label, position, first_key, chunk)  # (ROWS, CHUNK)
                    store_chunk(d_rel_value, program_index, h, chunk, sums, g, pairs.keep_scale, pairs, True, begin)
        ds_sum += tl.sum(ds, 1)
        if pairs.BEFORE and rel_key is not None:
            if pairs.AFTER:
                ds_before += tl.sum(tl.where(is_before, ds, 0.0), 1)
            if rel_value is None:
                weight_sum_in += tl.sum(tl.where((label >= 0) & (label < pairs.labels), weights, 0.0), 1)
        if WHOLE:
            dk = product(tl.trans(ds.to(q.dtype)), q, pairs)  # (NEAR, dim)
            store_rows(d_key, b, h, column, pairs.keys, scale * dk)
            dv = product(tl.trans(weights.to(g.dtype)), g, pairs)  # (NEAR, value_dim)
            store_rows(d_value, b, h, column, pairs.keys, pairs.keep_scale * dv)

    if pairs.BEFORE:
        weight_sum_before = load_forward_stat(row_stats, WEIGHT_SUM_BEFORE, b, h, row, pairs)
        weight_sum_after = load_forward_stat(row_stats, WEIGHT_SUM_AFTER, b, h, row, pairs)
    if rel_key is not None:
        # The ds of a query sum to zero except for the rounding of delta, which would gather in an edge, with most keys.
        residual = pairs.keep_scale * ds_sum
        if DEFERRED:
            ds_in = tl.sum(ds_by_label, 1)
            if rel_value is not None:
                ds_by_label -= weights_by_label * residual[:, None]
            rows = chunk_rows(rel_key, pairs, b, h, 0, False)  # (CHUNK, rel_dim)
            dq, dr = add_relative(ds_by_label, rows, dq, dr, rel_query, pairs)
            store_chunk(d_rel_key, program_index, h, 0, ds_by_label, r, scale, pairs, accumulate, begin)
        if pairs.BEFORE:
            ds_after = tl.zeros([ROWS], tl.float32)
            if pairs.AFTER:
                ds_after = ds_sum - ds_in - ds_before - (weight_sum_after - weight_sum_in) * residual
                ds_before -= weight_sum_before * residual
            else:
                ds_before = ds_sum - ds_in - (weight_sum_before - weight_sum_in) * residual
            rows = edge_rows(rel_key, pairs, b, h)  # (16, rel_dim)
            columns = edge_columns(ds_before, ds_after, rows.dtype)  # (ROWS, 16)
            dq, dr = add_relative(columns, rows, dq, dr, rel_query, pairs)
            store_edges(d_rel_key, program_index, h, columns, r, scale, pairs, accumulate)
    if rel_value is not None:
        if DEFERRED:
            store_chunk(
                d_rel_value,
                program_index,
                h,
                0,
                weights_by_label,
                g,
                pairs.keep_scale,
                pairs,
                accumulate,
                begin,
            )
        if pairs.BEFORE:
            columns = edge_columns(weight_sum_before, weight_sum_after, g.dtype)  # (ROWS, 16)
            store_edges(d_rel_value, program_index, h, columns, g, pairs.keep_scale, pairs, accumulate)
    store_rows(d_query, b, h, row, pairs.queries, scale * dq)
    if rel_query is not None:
        store_rows(d_rel_query, b, h, row, pairs.queries, scale * dr)


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks"])
def backward_key(inputs, grad, backward_stats, d_key, d_value, d_pos_query, pair_options, batch, queries, keys, offset,
                 scale, scale2, blocks, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block_of_keys(*inputs, grad, backward_stats, d_key, d_value, d_pos_query,
                  Pairs(batch, queries, keys, offset, *pair_options), scale, scale2, blocks,
                  ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_keys(query, key, value, rel_key, rel_value, rel_query, pos_query, grad, backward_stats, d_key, d_value,
                  d_pos_query, pairs, scale, scale2, blocks,
                  ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    b = head // pairs.key_heads
    key_head = head % pairs.key_heads
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    column = block * COLS + tl.arange(0, COLS)
    first = block * COLS
    last = tl.minimum(block * COLS + COLS, pairs.keys) - 1
    start, near_start, near_stop, stop = query_parts(pairs, first, last, offset, valid_queries, valid_keys, NEAR)
    common_first, common_last = common_positions(pairs, first, last)
    k = load_rows(key, b, key_head, column, valid_keys)  # (COLS, dim)
    v = load_rows(value, b, key_head, column, valid_keys)  # (COLS, value_dim)
    dk = tl.zeros([COLS, key.PADDED], tl.float32)
    dv = tl.zeros([COLS, value.PADDED], tl.float32)
    program_index = b * blocks + block
    begin = first_label(pairs, first - (pairs.queries - 1 + offset))
    DEFERRED: tl.constexpr = pairs.ONE_CHUNK and pairs.relations is None

    for index in range(pairs.GROUP):
        h = key_head * pairs.GROUP + index
        if pos_query is not None:
            ds_by_label = tl.zeros([COLS, pairs.CHUNK], tl.float32)
            ds_before = tl.zeros([COLS], tl.float32)
            ds_after = tl.zeros([COLS], tl.float32)
            pos_before, pos_after = edge_terms(k, pos_query, pairs, b, h)  # (COLS,): aQ . k_j of both edges
            pos_terms = k
            if pairs.ONE_CHUNK:
                pos_terms = terms_by_label(k, pos_query, pairs, b, h, 0, False)  # (COLS, CHUNK)
        tiles_after = tl.cdiv(near_start - start, ROWS)
        for step in range(tiles_after + tl.cdiv(stop - near_stop, ROWS)):  # far tiles
            is_after, first_row, end = far_tile(step, tiles_after, start, near_start, near_stop, stop, ROWS)
            row = first_row // 16 * 16 + tl.arange(0, ROWS)
            q = load_rows(query, b, h, row, valid_queries)  # (ROWS, dim)
            g = load_rows(grad, b, h, row, valid_queries)  # (ROWS, value_dim)
            delta = load_backward_stat(backward_stats, DELTA, b, h, row, pairs)  # (ROWS,)
            delta_index = DELTA
            log_index = LOG
            if pairs.BEFORE:
                delta_index = tl.where(is_after, DELTA_AFTER, DELTA_BEFORE)
                log_index = tl.where(is_after, LOG_AFTER, LOG_BEFORE)
            shifted_delta = load_backward_stat(backward_stats, delta_index, b, h, row, pairs)  # (ROWS,)
            log = load_backward_stat(backward_stats, log_index, b, h, row, pairs)  # (ROWS,)
            if first_row + ROWS > end:
                log = tl.where(row < end, log, float("inf"))
            e = product(k, tl.trans(q), pairs)  # (COLS, ROWS)
            if pos_query is not None:
                e += tl.where(is_after, pos_after, pos_before)[:, None]
            p = tl.exp2(scale2 * e - log[None, :])  # (COLS, ROWS)
            if pairs.WINDOW:
                is_cut = (first_row + offset < common_first) | (first_row + ROWS - 1 + offset > common_last)
                if is_cut:
                    position = row + offset
                    is_visible = in_window(pairs, (row < end)[None, :], position[None, :], column[:, None])
                    p = tl.where(is_visible, p, 0.0)
            dp = product(v, tl.trans(g), pairs)  # (COLS, ROWS)
            row_seed = load_row_seed(backward_stats, b, h, row, pairs)[None, :]
            weights, ds = weights_and_ds(
                p, dp, delta[None, :], shifted_delta[None, :], pairs, row_seed, column[:, None]
            )
            dv = add_product(weights, g, dv, pairs)  # (COLS, value_dim)
            dk = add_product(ds, q, dk, pairs)  # (COLS, dim)
            if pos_query is not None:
                tile_sum = tl.sum(ds, 1)  # (COLS,)
                ds_before += tl.where(is_after, 0.0, tile_sum)
                ds_after += tl.where(is_after, tile_sum, 0.0)

        for step in tl.range(tl.cdiv(near_stop - near_start, NEAR), disable_licm=True):  # near tiles
            first_row = near_start + step * NEAR
            row = first_row // 16 * 16 + tl.arange(0, NEAR)
            position = row + offset
            q = load_rows(query, b, h, row, valid_queries)  # (NEAR, dim)
            g = load_rows(grad, b, h, row, valid_queries)  # (NEAR, value_dim)
            delta = load_backward_stat(backward_stats, DELTA, b, h, row, pairs)  # (NEAR,)
            log_sum = load_backward_stat(backward_stats, LOG, b, h, row, pairs)  # (NEAR,)
            if first_row + NEAR > near_stop:
                log_sum = tl.where(row < near_stop, log_sum, float("inf"))
            low = first - first_row - NEAR + 1 - offset - pairs.start
            high = last - first_row - offset - pairs.start
            label = labels_of(pairs, b, h, row[None, :], position[None, :], column[:, None])  # (COLS, NEAR)
            key_before = log_sum
            value_before = log_sum
            if pairs.BEFORE:
                key_before = load_backward_stat(backward_stats, KEY_BEFORE, b, h, row, pairs)  # (NEAR,)
                value_before = load_backward_stat(backward_stats, VALUE_BEFORE, b, h, row, pairs)  # (NEAR,)
            is_before = column[:, None] < (position + pairs.start)[None, :]
            r = load_rel_query(q, rel_query, b, h, row, valid_queries)  # (NEAR, rel_dim)
            key_terms = r
            value_terms = g
            if pairs.ONE_CHUNK:
                key_terms = terms_by_label(r, rel_key, pairs, b, h, 0, True)  # (CHUNK, NEAR)
                value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, True)  # (CHUNK, NEAR)
            e = pair_terms(r, rel_key, key_terms, key_before, pairs, b, h, label, is_before, low, high, True)
            if pos_query is not None:
                pos_term = pair_terms(
                    k, pos_query, pos_terms, pos_before, pairs, b, h, label, is_before, low, high, False
                )
                e += pos_term
            e = add_product(k, tl.trans(q), e, pairs)  # (COLS, NEAR)
            may_hide = (last >= valid_keys) | (pairs.CAUSAL & (last > first_row + offset))
            if pairs.WINDOW:
                is_cut = (first_row + offset < common_first) | (first_row + NEAR - 1 + offset > common_last)
                may_hide |= is_cut
            e = mask_scores(e, pairs, b, h, row[None, :], position[None, :], column[:, None], valid_keys, may_hide)
            p = tl.exp2(scale2 * e - log_sum[None, :])  # (COLS, NEAR)
            dp = pair_terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, True)
            dp = add_product(v, tl.trans(g), dp, pairs)  # (COLS, NEAR)
            row_seed = load_row_seed(backward_stats, b, h, row, pairs)[None, :]
            weights, ds = weights_and_ds(p, dp, delta[None, :], delta[None, :], pairs, row_seed, column[:, None])
            dv = add_product(weights, g, dv, pairs)  # (COLS, value_dim)
            dk = add_product(ds, q, dk, pairs)  # (COLS, dim)
            if pos_query is not None:
                if DEFERRED:
                    ds_by_label += pairs_to_labels(ds, pairs, column, first_row + offset, 0, 0.0, True)
                else:
                    first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
                    for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                        sums = sum_by_label(ds, pairs, label, column, first_row + offset, chunk, True)  # (COLS, CHUNK)
                        rows = chunk_rows(pos_query, pairs, b, h, chunk, False)  # (CHUNK, dim)
                        dk = add_product(sums, rows, dk, pairs)
                        store_chunk(d_pos_query, program_index, h, chunk, sums, k, scale, pairs, True, begin)
                if pairs.BEFORE:
                    ds_before += tl.sum(tl.where(is_before, ds, 0.0), 1)
                if pairs.AFTER:
                    ds_after += tl.sum(tl.where(label >= pairs.labels, ds, 0.0), 1)

        if pos_query is not None:
            if DEFERRED:
                rows = chunk_rows(pos_query, pairs, b, h, 0, False)  # (CHUNK, dim)
                dk = add_product(ds_by_label, rows, dk, pairs)
                store_chunk(d_pos_query, program_index, h, 0, ds_by_label, k, scale, pairs, False, begin)
            if pairs.BEFORE:
                # far tiles have probabilities of keys in padding, which may be infinite
                ds_before = tl.where(column < valid_keys, ds_before, 0.0)
                ds_after = tl.where(column < valid_keys, ds_after, 0.0)
                rows = edge_rows(pos_query, pairs, b, h)  # (16, dim)
                columns = edge_columns(ds_before, ds_after, rows.dtype)  # (COLS, 16)
                dk = add_product(columns, rows, dk, pairs)
                store_edges(d_pos_query, program_index, h, columns, k, scale, pairs, False)

    is_valid = (column < valid_keys)[:, None]
    store_rows(d_key, b, key_head, column, pairs.keys, tl.where(is_valid, scale * dk, 0.0))
    store_rows(d_value, b, key_head, column, pairs.keys, tl.where(is_valid, pairs.keep_scale * dv, 0.0))
