"""The kernels of the backward pass: `backward_query` for a block of queries, `backward_key` for a block of keys.

    p_ij = 2^(e_ij − lse_i)    dp_ij = g_i · (v_j + aV_ij)    ds_ij = p_ij (dp_ij − delta_i)    delta_i = g_i · z_i

`backward_query` gives dq and dr, and each of its programs a part of the gradients of the tables: the sums of ds and p
by label, times r and g. Where there is no r, it is q, and dq has both shares. It leaves numbers of its queries to
`backward_key`, which gives dk and dv. Where one program has all queries of a head, WHOLE, it gives those too. No two
programs write to the same place, so there are no atomics.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
from relattn.backends.triton.forward import place
from relattn.backends.triton.labels import (
    by_label,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    first_label,
    rel_queries,
    store_chunk,
    store_edges,
    terms,
    terms_by_label,
    where_met,
)
from relattn.backends.triton.numbers import (
    DELTA,
    DELTA_AFTER,
    DELTA_BEFORE,
    DRAW,
    KEY_BEFORE,
    LOG,
    LOG_AFTER,
    LOG_BEFORE,
    LOG_SUM,
    MASS_AFTER,
    MASS_BEFORE,
    VALUE_BEFORE,
    load_draw,
    load_left,
    load_number,
    store_number,
)
from relattn.backends.triton.pairs import (
    Pairs,
    far_part,
    hide,
    is_kept,
    key_parts,
    labels_of,
    lengths_of,
    offset_of,
    query_parts,
    row_numbers,
)


@triton.jit
def kept_and_ds(p, dp, delta, less, pairs, draw, key):
    """Kept probabilities, and ds; `less` is delta, less the relative terms that `dp` lacks in a far tile."""
    if pairs.options.seed is None:
        p_kept = p
        ds = p * (dp - less)
    else:
        kept = is_kept(pairs, draw, key)
        p_kept = tl.where(kept, p, 0.0)
        ds = p * tl.where(kept, pairs.options.keep_scale * dp - less, -delta)
    return p_kept, ds


@triton.jit
def add_relative(sums, rows, dq, dr, rel_query, pairs):
    """dq and dr, with the products of ds by label and rows of the table added to one: to dr where there is an r."""
    if rel_query is None:
        dq = add_product(sums, rows, dq, pairs.options.PRECISION)
    else:
        dr = add_product(sums, rows, dr, pairs.options.PRECISION)
    return dq, dr


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks", "members"])
def backward_query(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers, d_query,
                   d_key, d_value, d_rel_key, d_rel_value, d_rel_query, given, batch, queries, keys, offset, scale,
                   scale2, blocks, members, WHOLE: tl.constexpr, SEVERAL: tl.constexpr,
                   ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    work_of_queries(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers, d_query,
                    d_key, d_value, d_rel_key, d_rel_value, d_rel_query, Pairs(batch, queries, keys, offset, given),
                    scale, scale2, blocks, members, WHOLE, SEVERAL, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def work_of_queries(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers, d_query,
                    d_key, d_value, d_rel_key, d_rel_value, d_rel_query, pairs, scale, scale2, blocks, members,
                    WHOLE: tl.constexpr, SEVERAL: tl.constexpr,
                    ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """A block of queries, or all queries of SEVERAL sequences, over which gradients of the tables are added up."""
    block, part, h, _ = place(pairs, blocks)
    if SEVERAL:
        for member in tl.range(0, tl.minimum(members, pairs.batch - part * members), disable_licm=True):
            block_of_queries(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers,
                             d_query, d_key, d_value, d_rel_key, d_rel_value, d_rel_query, pairs, scale, scale2, block,
                             part * members + member, h, part, member > 0, WHOLE, ROWS, COLS, NEAR)  # fmt: skip
            tl.debug_barrier()  # before other threads of the program read its parts of the tables' gradients
    else:
        block_of_queries(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers,
                         d_query, d_key, d_value, d_rel_key, d_rel_value, d_rel_query, pairs, scale, scale2, block,
                         part, h, part * blocks + block, False, WHOLE, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_queries(query, key, value, rel_key, rel_value, rel_query, output, grad, numbers, left_numbers, d_query,
                     d_key, d_value, d_rel_key, d_rel_value, d_rel_query, pairs, scale, scale2, block, b, h, part, adds,
                     WHOLE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    key_head = h // pairs.options.GROUP
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    first, last = block * ROWS + offset, tl.minimum(block * ROWS + ROWS, valid_queries) - 1 + offset
    left, resume, stop = key_parts(pairs, first, last, valid_keys, NEAR)
    seen_until = resume
    if WHOLE:  # every key is near, and has a gradient to be written
        left, resume, seen_until = 0, pairs.keys, stop
    WAITS: tl.constexpr = pairs.options.ONE_CHUNK and pairs.options.relations is None
    begin = first_label(pairs, block * ROWS + ROWS - 1 + offset)

    q = load_rows(query, b, h, row, valid_queries)
    r = rel_queries(q, rel_query, b, h, row, valid_queries)
    g = load_rows(grad, b, h, row, valid_queries)
    z = load_rows(output, b, h, row, pairs.queries)
    log_sum = load_number(numbers, LOG_SUM, b, h, row, pairs, float("inf"))
    delta = tl.sum(g.to(tl.float32) * z.to(tl.float32), 1)
    key_before, key_after = edge_terms(r, rel_key, pairs, b, h)
    value_before, value_after = edge_terms(g, rel_value, pairs, b, h)
    log_before, log_after = log_sum - scale2 * key_before, log_sum - scale2 * key_after
    delta_before = delta - pairs.options.keep_scale * value_before
    delta_after = delta - pairs.options.keep_scale * value_after
    if not WHOLE:
        store_number(left_numbers, LOG, b, h, row, pairs, log_sum)
        store_number(left_numbers, DELTA, b, h, row, pairs, delta)
        if pairs.options.BEFORE:
            store_number(left_numbers, LOG_BEFORE, b, h, row, pairs, log_before)
            store_number(left_numbers, LOG_AFTER, b, h, row, pairs, log_after)
            store_number(left_numbers, DELTA_BEFORE, b, h, row, pairs, delta_before)
            store_number(left_numbers, DELTA_AFTER, b, h, row, pairs, delta_after)
            store_number(left_numbers, KEY_BEFORE, b, h, row, pairs, key_before)
            store_number(left_numbers, VALUE_BEFORE, b, h, row, pairs, value_before)
    draw = row_numbers(pairs, b, h, row)
    if pairs.options.seed is not None and not WHOLE:
        store_number(left_numbers, DRAW, b, h, row, pairs, draw.to(tl.float32, bitcast=True))
    draw = draw[:, None]

    dq, dr = tl.zeros([ROWS, query.PADDED], tl.float32), tl.zeros([ROWS, r.shape[1]], tl.float32)
    ds_by_label = tl.zeros([ROWS, pairs.options.CHUNK], tl.float32)
    mass_by_label = ds_by_label  # of kept probabilities
    # sums per query: of ds, over all pairs, those before and in the window; of kept probabilities in the window
    ds_sum = tl.zeros([ROWS], tl.float32)
    ds_before, ds_in, mass_in = ds_sum, ds_sum, ds_sum

    if not WHOLE:
        tiles_before = (left + COLS - 1) // COLS
        for step in range(tiles_before + (stop - resume + COLS - 1) // COLS):  # far
            is_before, first_key, end = far_part(step, tiles_before, 0, left, resume, stop, COLS)
            column = first_key + tl.arange(0, COLS)
            k, v = load_rows(key, b, key_head, column, valid_keys), load_rows(value, b, key_head, column, valid_keys)
            log = tl.where(is_before, log_before, log_after)
            p = tl.exp2(scale2 * product(q, tl.trans(k), pairs.options.PRECISION) - log[:, None])
            if first_key + COLS > end:
                p = tl.where((column < end)[None, :], p, 0.0)
            dp = product(g, tl.trans(v), pairs.options.PRECISION)
            less = tl.where(is_before, delta_before, delta_after)
            _, ds = kept_and_ds(p, dp, delta[:, None], less[:, None], pairs, draw, column[None, :])
            dq = add_product(ds.to(k.dtype), k, dq, pairs.options.PRECISION)
            found = tl.sum(ds, 1)
            ds_sum += found
            ds_before += tl.where(is_before, found, 0.0)

    key_terms, value_terms = r, g
    if pairs.options.ONE_CHUNK:
        key_terms = terms_by_label(r, rel_key, pairs, b, h, 0, False)
        value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, False)
    for step in tl.range((resume - left + NEAR - 1) // NEAR, disable_licm=True):  # near
        first_key = left + step * NEAR
        column = first_key + tl.arange(0, NEAR)
        k, v = load_rows(key, b, key_head, column, valid_keys), load_rows(value, b, key_head, column, valid_keys)
        low, high = first_key - last - pairs.options.start, first_key + NEAR - 1 - first - pairs.options.start
        label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])
        is_before = column[None, :] < (position + pairs.options.start)[:, None]
        e = terms(r, rel_key, key_terms, key_before, pairs, b, h, label, is_before, low, high, False)
        e = add_product(q, tl.trans(k), e, pairs.options.PRECISION)
        may_hide = (first_key + NEAR > seen_until) | (pairs.options.CAUSAL & (first_key + NEAR - 1 > first))
        e = hide(e, pairs, b, h, row[:, None], position[:, None], column[None, :], seen_until, may_hide)
        p = tl.exp2(scale2 * e - log_sum[:, None])
        dp = terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, False)
        dp = add_product(g, tl.trans(v), dp, pairs.options.PRECISION)
        p_kept, ds = kept_and_ds(p, dp, delta[:, None], delta[:, None], pairs, draw, column[None, :])
        dq = add_product(ds.to(k.dtype), k, dq, pairs.options.PRECISION)
        if WAITS:
            if rel_key is not None:
                ds_by_label += where_met(ds, pairs, position, first_key, 0, 0.0)
            if rel_value is not None:
                mass_by_label += where_met(p_kept, pairs, position, first_key, 0, 0.0)
        else:
            first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
            if rel_key is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = by_label(ds, pairs, label, position, first_key, chunk)
                    rows = chunk_rows(rel_key, pairs, b, h, chunk, False)
                    dq, dr = add_relative(sums.to(rows.dtype), rows, dq, dr, rel_query, pairs)
                    store_chunk(d_rel_key, part, h, chunk, sums, r, scale, pairs, True, begin)
                    ds_in += tl.sum(sums, 1)
            if rel_value is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = by_label(p_kept, pairs, label, position, first_key, chunk)
                    store_chunk(d_rel_value, part, h, chunk, sums, g, pairs.options.keep_scale, pairs, True, begin)
        ds_sum += tl.sum(ds, 1)
        if pairs.options.BEFORE and rel_key is not None:
            if pairs.options.AFTER:
                ds_before += tl.sum(tl.where(is_before, ds, 0.0), 1)
            if rel_value is None:
                mass_in += tl.sum(tl.where((label >= 0) & (label < pairs.options.labels), p_kept, 0.0), 1)
        if WHOLE:
            dk = product(tl.trans(ds.to(q.dtype)), q, pairs.options.PRECISION)
            store_rows(d_key, b, h, column, pairs.keys, scale * dk)
            dv = product(tl.trans(p_kept.to(g.dtype)), g, pairs.options.PRECISION)
            store_rows(d_value, b, h, column, pairs.keys, pairs.options.keep_scale * dv)

    if pairs.options.BEFORE:
        mass_before = load_number(numbers, MASS_BEFORE, b, h, row, pairs)
        mass_after = load_number(numbers, MASS_AFTER, b, h, row, pairs)
    if rel_key is not None:
        # a query's ds sum to zero but for the rounding of delta, which an edge would collect, having most keys
        level = pairs.options.keep_scale * ds_sum
        if WAITS:
            ds_in = tl.sum(ds_by_label, 1)
            if rel_value is not None:
                ds_by_label -= mass_by_label * level[:, None]
            rows = chunk_rows(rel_key, pairs, b, h, 0, False)
            dq, dr = add_relative(ds_by_label.to(rows.dtype), rows, dq, dr, rel_query, pairs)
            store_chunk(d_rel_key, part, h, 0, ds_by_label, r, scale, pairs, adds, begin)
        if pairs.options.BEFORE:
            ds_after = tl.zeros([ROWS], tl.float32)
            if pairs.options.AFTER:
                ds_after = ds_sum - ds_in - ds_before - (mass_after - mass_in) * level
                ds_before -= mass_before * level
            else:
                ds_before = ds_sum - ds_in - (mass_before - mass_in) * level
            rows = edge_rows(rel_key, pairs, b, h)
            columns = edge_columns(ds_before, ds_after, rows.dtype)
            dq, dr = add_relative(columns, rows, dq, dr, rel_query, pairs)
            store_edges(d_rel_key, part, h, columns, r, scale, pairs, adds)
    if rel_value is not None:
        if WAITS:
            store_chunk(d_rel_value, part, h, 0, mass_by_label, g, pairs.options.keep_scale, pairs, adds, begin)
        if pairs.options.BEFORE:
            columns = edge_columns(mass_before, mass_after, g.dtype)
            store_edges(d_rel_value, part, h, columns, g, pairs.options.keep_scale, pairs, adds)
    store_rows(d_query, b, h, row, pairs.queries, scale * dq)
    if rel_query is not None:
        store_rows(d_rel_query, b, h, row, pairs.queries, scale * dr)


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks"])
def backward_key(query, key, value, rel_key, rel_value, rel_query, grad, left_numbers, d_key, d_value, given,
                 batch, queries, keys, offset, scale, scale2, blocks,
                 ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block_of_keys(query, key, value, rel_key, rel_value, rel_query, grad, left_numbers, d_key, d_value,
                  Pairs(batch, queries, keys, offset, given), scale, scale2, blocks, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_keys(query, key, value, rel_key, rel_value, rel_query, grad, left_numbers, d_key, d_value, pairs, scale,
                  scale2, blocks, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, key_head = head // pairs.options.key_heads, head % pairs.options.key_heads
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    column = block * COLS + tl.arange(0, COLS)
    first, last = block * COLS, tl.minimum(block * COLS + COLS, pairs.keys) - 1
    start, near, resume, stop = query_parts(pairs, first, last, offset, valid_queries, valid_keys, NEAR)
    k, v = load_rows(key, b, key_head, column, valid_keys), load_rows(value, b, key_head, column, valid_keys)
    dk, dv = tl.zeros([COLS, key.PADDED], tl.float32), tl.zeros([COLS, value.PADDED], tl.float32)

    for member in range(pairs.options.GROUP):
        h = key_head * pairs.options.GROUP + member
        tiles_after = (near - start + ROWS - 1) // ROWS
        for step in range(tiles_after + (stop - resume + ROWS - 1) // ROWS):  # far
            is_after, first_row, end = far_part(step, tiles_after, start, near, resume, stop, ROWS)
            row = first_row // 16 * 16 + tl.arange(0, ROWS)
            q, g = load_rows(query, b, h, row, valid_queries), load_rows(grad, b, h, row, valid_queries)
            delta = load_left(left_numbers, DELTA, b, h, row, pairs)
            delta_index, log_index = DELTA, LOG
            if pairs.options.BEFORE:
                delta_index = tl.where(is_after, DELTA_AFTER, DELTA_BEFORE)
                log_index = tl.where(is_after, LOG_AFTER, LOG_BEFORE)
            less = load_left(left_numbers, delta_index, b, h, row, pairs)
            log = load_left(left_numbers, log_index, b, h, row, pairs)
            if first_row + ROWS > end:
                log = tl.where(row < end, log, float("inf"))
            p = tl.exp2(scale2 * product(k, tl.trans(q), pairs.options.PRECISION) - log[None, :])
            dp = product(v, tl.trans(g), pairs.options.PRECISION)
            draw = load_draw(left_numbers, b, h, row, pairs)[None, :]
            p_kept, ds = kept_and_ds(p, dp, delta[None, :], less[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.options.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.options.PRECISION)

        for step in tl.range((resume - near + NEAR - 1) // NEAR, disable_licm=True):  # near
            first_row = near + step * NEAR
            row = first_row // 16 * 16 + tl.arange(0, NEAR)
            position = row + offset
            q, g = load_rows(query, b, h, row, valid_queries), load_rows(grad, b, h, row, valid_queries)
            delta = load_left(left_numbers, DELTA, b, h, row, pairs)
            log_sum = load_left(left_numbers, LOG, b, h, row, pairs)
            if first_row + NEAR > resume:
                log_sum = tl.where(row < resume, log_sum, float("inf"))
            low, high = (
                first - first_row - NEAR + 1 - offset - pairs.options.start,
                last - first_row - offset - pairs.options.start,
            )
            label = labels_of(pairs, b, h, row[None, :], position[None, :], column[:, None])
            key_before, value_before = log_sum, log_sum
            if pairs.options.BEFORE:
                key_before = load_left(left_numbers, KEY_BEFORE, b, h, row, pairs)
                value_before = load_left(left_numbers, VALUE_BEFORE, b, h, row, pairs)
            is_before = column[:, None] < (position + pairs.options.start)[None, :]
            r = rel_queries(q, rel_query, b, h, row, valid_queries)
            key_terms, value_terms = r, g
            if pairs.options.ONE_CHUNK:
                key_terms = terms_by_label(r, rel_key, pairs, b, h, 0, True)
                value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, True)
            e = terms(r, rel_key, key_terms, key_before, pairs, b, h, label, is_before, low, high, True)
            e = add_product(k, tl.trans(q), e, pairs.options.PRECISION)
            may_hide = (last >= valid_keys) | (pairs.options.CAUSAL & (last > first_row + offset))
            e = hide(e, pairs, b, h, row[None, :], position[None, :], column[:, None], valid_keys, may_hide)
            p = tl.exp2(scale2 * e - log_sum[None, :])
            dp = terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, True)
            dp = add_product(v, tl.trans(g), dp, pairs.options.PRECISION)
            draw = load_draw(left_numbers, b, h, row, pairs)[None, :]
            p_kept, ds = kept_and_ds(p, dp, delta[None, :], delta[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.options.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.options.PRECISION)

    alive = (column < valid_keys)[:, None]
    store_rows(d_key, b, key_head, column, pairs.keys, tl.where(alive, scale * dk, 0.0))
    store_rows(d_value, b, key_head, column, pairs.keys, tl.where(alive, pairs.options.keep_scale * dv, 0.0))
