"""The kernels of the backward pass: `backward_query` for a block of queries, `backward_key` for a block of keys.

    p_ij = 2^(e_ij − lse_i)    dp_ij = g_i · (v_j + aV_ij)    ds_ij = p_ij (dp_ij − delta_i)    delta_i = g_i · z_i

`backward_query` gives dq, and a program's part of the gradients of the tables: the sums of ds and p by label, times q
and g. It leaves numbers of its queries to `backward_key`, which gives dk and dv. Where it has all queries of a head,
WHOLE, it gives those too. No two programs add to one place: there are no atomics.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
from relattn.backends.triton.forward import (
    LOG_SUM,
    MASS_AFTER,
    MASS_BEFORE,
    place,
    place_of_query,
    room_of,
    store_number,
)
from relattn.backends.triton.labels import (
    by_label,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    terms,
    terms_by_label,
    where_met,
)
from relattn.backends.triton.pairs import (
    Pairs,
    far_part,
    hide,
    kept,
    key_parts,
    labels_of,
    offset_of,
    query_parts,
    row_numbers,
    valid_keys,
)

# kinds of numbers that `backward_query` leaves of each query: the log-sum-exp and delta, less what the relative terms
# of pairs before and after the window add to all their scores and dp; those terms of pairs before it; and the bits of
# the number to draw from where probabilities are dropped
LOG, LOG_BEFORE, LOG_AFTER, DELTA, DELTA_BEFORE, DELTA_AFTER = (tl.constexpr(kind) for kind in range(6))
KEY_BEFORE, VALUE_BEFORE, DRAW = (tl.constexpr(kind) for kind in range(6, 9))
LEFT_KINDS = 9


@triton.jit
def load_number(numbers, kind, b, h, row, pairs, other=0.0):
    """One that `forward` left."""
    return tl.load(numbers + place_of_query(b, h, row, pairs, kind), mask=row < pairs.queries, other=other)


@triton.jit
def load_left(numbers, kind, b, h, row, pairs):
    """One that `backward_query` left. Past the queries it leaves zeros, and +∞ for the log-sum-exp."""
    return tl.load(numbers + place_of_query(b, h, row, pairs, kind), mask=row < room_of(pairs), other=0.0)


@triton.jit
def load_draw(numbers, b, h, row, pairs):
    draw = row
    if pairs.options.seed is not None:
        draw = load_left(numbers, DRAW, b, h, row, pairs).to(tl.uint32, bitcast=True)
    return draw


@triton.jit
def slopes_of(p, dp, delta, less, pairs, draw, key):
    """Kept probabilities, and ds; `less` is delta without what dp lacks of a far tile's terms."""
    if pairs.options.seed is None:
        p_kept = p
        ds = p * (dp - less)
    else:
        keep = kept(pairs, draw, key)
        p_kept = tl.where(keep, p, 0.0)
        ds = p * tl.where(keep, pairs.options.boost * dp - less, -delta)
    return p_kept, ds


@triton.jit
def store_chunk(x, part, h, chunk, sums, rows, factor, pairs, adds):
    """A program's part of the gradient of a chunk of a table, in place of what it had of it, or added to it."""
    row = tl.arange(0, pairs.options.CHUNK) + pairs.options.shift + chunk * pairs.options.CHUNK
    found = tl.trans(product(tl.trans(rows), sums.to(rows.dtype), pairs.options.PRECISION))
    store_part(x, part, h, row, pairs.options.shift + pairs.options.labels, factor * found, adds)


@triton.jit
def store_edges(x, part, h, columns, rows, factor, pairs, adds):
    """A program's part of the gradients of both edges' rows."""
    last = pairs.options.shift + pairs.options.labels
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


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks", "members"])
def backward_query(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key, d_value,
                   d_rel_key, d_rel_value, given, batch, queries, keys, offset, scale, scale2, blocks, members,
                   WHOLE: tl.constexpr, SEVERAL: tl.constexpr,
                   ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    work_of_queries(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key, d_value,
                    d_rel_key, d_rel_value, Pairs(batch, queries, keys, offset, given), scale, scale2, blocks,
                    members, WHOLE, SEVERAL, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def work_of_queries(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key,
                    d_value, d_rel_key, d_rel_value, pairs, scale, scale2, blocks, members,
                    WHOLE: tl.constexpr, SEVERAL: tl.constexpr,
                    ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """A program's: a block of queries, or all of SEVERAL sequences, whose gradients of the tables are added up."""
    block, part, h, _ = place(pairs, blocks)
    if SEVERAL:
        for member in tl.range(0, tl.minimum(members, pairs.batch - part * members), disable_licm=True):
            block_of_queries(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key,
                             d_value, d_rel_key, d_rel_value, pairs, scale, scale2, block, part * members + member, h,
                             part, member > 0, WHOLE, ROWS, COLS, NEAR)  # fmt: skip
            tl.debug_barrier()  # before other threads of the program read its parts of the tables' gradients
    else:
        block_of_queries(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key,
                         d_value, d_rel_key, d_rel_value, pairs, scale, scale2, block, part, h,
                         part * blocks + block, False, WHOLE, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_queries(query, key, value, rel_key, rel_value, output, grad, numbers, left_numbers, d_query, d_key,
                     d_value, d_rel_key, d_rel_value, pairs, scale, scale2, block, b, h, part, adds,
                     WHOLE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    key_head = h // pairs.options.GROUP
    offset, valid = offset_of(pairs, b), valid_keys(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    first, last = block * ROWS + offset, tl.minimum(block * ROWS + ROWS, pairs.queries) - 1 + offset
    left, resume, stop = key_parts(pairs, first, last, valid, NEAR)
    seen_until = resume
    if WHOLE:  # every key is near, and has a gradient to be written
        left, resume, seen_until = 0, pairs.keys, stop
    WAITS: tl.constexpr = pairs.options.ONE_CHUNK and pairs.options.relations is None

    q = load_rows(query, b, h, row, pairs.queries)
    g = load_rows(grad, b, h, row, pairs.queries)
    z = load_rows(output, b, h, row, pairs.queries)
    log_sum = load_number(numbers, LOG_SUM, b, h, row, pairs, float("inf"))
    delta = tl.sum(g.to(tl.float32) * z.to(tl.float32), 1)
    key_before, key_after = edge_terms(q, rel_key, pairs, b, h)
    value_before, value_after = edge_terms(g, rel_value, pairs, b, h)
    log_before, log_after = log_sum - scale2 * key_before, log_sum - scale2 * key_after
    delta_before, delta_after = delta - pairs.options.boost * value_before, delta - pairs.options.boost * value_after
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

    dq = tl.zeros([ROWS, query.PADDED], tl.float32)
    slopes = tl.zeros([ROWS, pairs.options.CHUNK], tl.float32)  # by label, of ds
    masses = slopes  # and of the probabilities that are kept
    # sums over a row: of ds, of all pairs, those before the window and those in it; of the probabilities in the window
    slope = tl.zeros([ROWS], tl.float32)
    slope_before, slope_in, mass_in = slope, slope, slope

    if not WHOLE:
        tiles_before = (left + COLS - 1) // COLS
        for step in range(tiles_before + (stop - resume + COLS - 1) // COLS):  # far
            is_before, first_key, end = far_part(step, tiles_before, 0, left, resume, stop, COLS)
            column = first_key + tl.arange(0, COLS)
            k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
            log = tl.where(is_before, log_before, log_after)
            p = tl.exp2(scale2 * product(q, tl.trans(k), pairs.options.PRECISION) - log[:, None])
            if first_key + COLS > end:
                p = tl.where((column < end)[None, :], p, 0.0)
            dp = product(g, tl.trans(v), pairs.options.PRECISION)
            less = tl.where(is_before, delta_before, delta_after)
            _, ds = slopes_of(p, dp, delta[:, None], less[:, None], pairs, draw, column[None, :])
            dq = add_product(ds.to(k.dtype), k, dq, pairs.options.PRECISION)
            found = tl.sum(ds, 1)
            slope += found
            slope_before += tl.where(is_before, found, 0.0)

    key_terms, value_terms = q, g
    if pairs.options.ONE_CHUNK:
        key_terms = terms_by_label(q, rel_key, pairs, b, h, 0, False)
        value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, False)
    for step in tl.range((resume - left + NEAR - 1) // NEAR, disable_licm=True):  # near
        first_key = left + step * NEAR
        column = first_key + tl.arange(0, NEAR)
        k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
        low, high = first_key - last - pairs.options.start, first_key + NEAR - 1 - first - pairs.options.start
        label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])
        is_before = column[None, :] < (position + pairs.options.start)[:, None]
        e = terms(q, rel_key, key_terms, key_before, pairs, b, h, label, is_before, low, high, False)
        e = add_product(q, tl.trans(k), e, pairs.options.PRECISION)
        may_hide = (first_key + NEAR > seen_until) | (pairs.options.CAUSAL & (first_key + NEAR - 1 > first))
        e = hide(e, pairs, b, h, row[:, None], position[:, None], column[None, :], seen_until, may_hide)
        p = tl.exp2(scale2 * e - log_sum[:, None])
        dp = terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, False)
        dp = add_product(g, tl.trans(v), dp, pairs.options.PRECISION)
        p_kept, ds = slopes_of(p, dp, delta[:, None], delta[:, None], pairs, draw, column[None, :])
        dq = add_product(ds.to(k.dtype), k, dq, pairs.options.PRECISION)
        if WAITS:
            if rel_key is not None:
                slopes += where_met(ds, pairs, position, first_key, 0, 0.0)
            if rel_value is not None:
                masses += where_met(p_kept, pairs, position, first_key, 0, 0.0)
        else:
            first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
            if rel_key is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = by_label(ds, pairs, label, position, first_key, chunk)
                    rows = chunk_rows(rel_key, pairs, b, h, chunk, False)
                    dq = add_product(sums.to(rows.dtype), rows, dq, pairs.options.PRECISION)
                    store_chunk(d_rel_key, part, h, chunk, sums, q, scale, pairs, True)
                    slope_in += tl.sum(sums, 1)
            if rel_value is not None:
                for chunk in tl.range(first_chunk, stop_chunk, disable_licm=True):
                    sums = by_label(p_kept, pairs, label, position, first_key, chunk)
                    store_chunk(d_rel_value, part, h, chunk, sums, g, pairs.options.boost, pairs, True)
        slope += tl.sum(ds, 1)
        if pairs.options.BEFORE and rel_key is not None:
            if pairs.options.AFTER:
                slope_before += tl.sum(tl.where(is_before, ds, 0.0), 1)
            if rel_value is None:
                mass_in += tl.sum(tl.where((label >= 0) & (label < pairs.options.labels), p_kept, 0.0), 1)
        if WHOLE:
            dk = product(tl.trans(ds.to(q.dtype)), q, pairs.options.PRECISION)
            store_rows(d_key, b, h, column, pairs.keys, scale * dk)
            dv = product(tl.trans(p_kept.to(g.dtype)), g, pairs.options.PRECISION)
            store_rows(d_value, b, h, column, pairs.keys, pairs.options.boost * dv)

    if pairs.options.BEFORE:
        mass_before = load_number(numbers, MASS_BEFORE, b, h, row, pairs)
        mass_after = load_number(numbers, MASS_AFTER, b, h, row, pairs)
    if rel_key is not None:
        # ds of a row sums to nothing but for rounding in delta, which an edge, having most keys, would collect
        level = pairs.options.boost * slope
        if WAITS:
            slope_in = tl.sum(slopes, 1)
            if rel_value is not None:
                slopes -= masses * level[:, None]
            rows = chunk_rows(rel_key, pairs, b, h, 0, False)
            dq = add_product(slopes.to(rows.dtype), rows, dq, pairs.options.PRECISION)
            store_chunk(d_rel_key, part, h, 0, slopes, q, scale, pairs, adds)
        if pairs.options.BEFORE:
            slope_after = tl.zeros([ROWS], tl.float32)
            if pairs.options.AFTER:
                slope_after = slope - slope_in - slope_before - (mass_after - mass_in) * level
                slope_before -= mass_before * level
            else:
                slope_before = slope - slope_in - (mass_before - mass_in) * level
            rows = edge_rows(rel_key, pairs, b, h)
            columns = edge_columns(slope_before, slope_after, rows.dtype)
            dq = add_product(columns, rows, dq, pairs.options.PRECISION)
            store_edges(d_rel_key, part, h, columns, q, scale, pairs, adds)
    if rel_value is not None:
        if WAITS:
            store_chunk(d_rel_value, part, h, 0, masses, g, pairs.options.boost, pairs, adds)
        if pairs.options.BEFORE:
            columns = edge_columns(mass_before, mass_after, g.dtype)
            store_edges(d_rel_value, part, h, columns, g, pairs.options.boost, pairs, adds)
    store_rows(d_query, b, h, row, pairs.queries, scale * dq)


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks"])
def backward_key(query, key, value, rel_key, rel_value, grad, left_numbers, d_key, d_value, given,
                 batch, queries, keys, offset, scale, scale2, blocks,
                 ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block_of_keys(query, key, value, rel_key, rel_value, grad, left_numbers, d_key, d_value,
                  Pairs(batch, queries, keys, offset, given), scale, scale2, blocks, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def block_of_keys(query, key, value, rel_key, rel_value, grad, left_numbers, d_key, d_value, pairs, scale,
                  scale2, blocks, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, key_head = head // pairs.options.key_heads, head % pairs.options.key_heads
    offset, valid = offset_of(pairs, b), valid_keys(pairs, b)
    column = block * COLS + tl.arange(0, COLS)
    first, last = block * COLS, tl.minimum(block * COLS + COLS, pairs.keys) - 1
    start, near, resume, stop = query_parts(pairs, first, last, valid, offset, NEAR)
    k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
    dk, dv = tl.zeros([COLS, key.PADDED], tl.float32), tl.zeros([COLS, value.PADDED], tl.float32)

    for member in range(pairs.options.GROUP):
        h = key_head * pairs.options.GROUP + member
        tiles_after = (near - start + ROWS - 1) // ROWS
        for step in range(tiles_after + (stop - resume + ROWS - 1) // ROWS):  # far
            is_after, first_row, end = far_part(step, tiles_after, start, near, resume, stop, ROWS)
            row = first_row // 16 * 16 + tl.arange(0, ROWS)
            q, g = load_rows(query, b, h, row, pairs.queries), load_rows(grad, b, h, row, pairs.queries)
            delta = load_left(left_numbers, DELTA, b, h, row, pairs)
            kind, log_kind = DELTA, LOG
            if pairs.options.BEFORE:
                kind = tl.where(is_after, DELTA_AFTER, DELTA_BEFORE)
                log_kind = tl.where(is_after, LOG_AFTER, LOG_BEFORE)
            less = load_left(left_numbers, kind, b, h, row, pairs)
            log = load_left(left_numbers, log_kind, b, h, row, pairs)
            if first_row + ROWS > end:
                log = tl.where(row < end, log, float("inf"))
            p = tl.exp2(scale2 * product(k, tl.trans(q), pairs.options.PRECISION) - log[None, :])
            dp = product(v, tl.trans(g), pairs.options.PRECISION)
            draw = load_draw(left_numbers, b, h, row, pairs)[None, :]
            p_kept, ds = slopes_of(p, dp, delta[None, :], less[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.options.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.options.PRECISION)

        for step in tl.range((resume - near + NEAR - 1) // NEAR, disable_licm=True):  # near
            first_row = near + step * NEAR
            row = first_row // 16 * 16 + tl.arange(0, NEAR)
            position = row + offset
            q, g = load_rows(query, b, h, row, pairs.queries), load_rows(grad, b, h, row, pairs.queries)
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
            key_terms, value_terms = q, g
            if pairs.options.ONE_CHUNK:
                key_terms = terms_by_label(q, rel_key, pairs, b, h, 0, True)
                value_terms = terms_by_label(g, rel_value, pairs, b, h, 0, True)
            e = terms(q, rel_key, key_terms, key_before, pairs, b, h, label, is_before, low, high, True)
            e = add_product(k, tl.trans(q), e, pairs.options.PRECISION)
            may_hide = (last >= valid) | (pairs.options.CAUSAL & (last > first_row + offset))
            e = hide(e, pairs, b, h, row[None, :], position[None, :], column[:, None], valid, may_hide)
            p = tl.exp2(scale2 * e - log_sum[None, :])
            dp = terms(g, rel_value, value_terms, value_before, pairs, b, h, label, is_before, low, high, True)
            dp = add_product(v, tl.trans(g), dp, pairs.options.PRECISION)
            draw = load_draw(left_numbers, b, h, row, pairs)[None, :]
            p_kept, ds = slopes_of(p, dp, delta[None, :], delta[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.options.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.options.PRECISION)

    alive = (column < valid)[:, None]
    store_rows(d_key, b, key_head, column, pairs.keys, tl.where(alive, scale * dk, 0.0))
    store_rows(d_value, b, key_head, column, pairs.keys, tl.where(alive, pairs.options.boost * dv, 0.0))
