"""The kernels of the way back: `backward_query` for a block of queries, `backward_key` for a block of keys.

    p_ij = 2^(e_ij − lse_i)    dp_ij = g_i · (v_j + aV_ij)    ds_ij = p_ij (dp_ij − delta_i)    delta_i = g_i · z_i

`backward_query` gives dq, and a program's part of the gradients of the tables: the sums of ds and p by label, times q
and g. It leaves delta and the edges' terms of its queries to `backward_key`, which gives dk and dv. Where it has all
queries of a head, WHOLE, it gives those too. No two programs add to one place: there are no atomics.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
from relattn.backends.triton.forward import near_keys, place, place_of_query
from relattn.backends.triton.labels import (
    by_label,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    terms,
    where_met,
)
from relattn.backends.triton.pairs import (
    kept,
    key_tiles,
    labels_of,
    offset_of,
    query_tiles,
    row_numbers,
    sees,
    valid_keys,
)

# kinds of numbers that `backward_query` leaves of each query
DELTA, KEY_BEFORE, KEY_AFTER, VALUE_BEFORE, VALUE_AFTER = (tl.constexpr(kind) for kind in range(5))
KINDS = 5


@triton.jit
def log_sums(lse, b, h, row, pairs):
    """+inf where there is nothing to attend, so that no probability is left."""
    found = tl.load(lse + place_of_query(b, h, row, pairs), mask=row < pairs.queries, other=float("-inf"))
    return tl.where(found == float("-inf"), float("inf"), found)


@triton.jit
def load_numbers(numbers, kind, b, h, row, pairs):
    return tl.load(numbers + place_of_query(b, h, row, pairs, kind), mask=row < pairs.queries, other=0.0)


@triton.jit
def store_numbers(numbers, kind, b, h, row, pairs, found):
    tl.store(numbers + place_of_query(b, h, row, pairs, kind), found, mask=row < pairs.queries)


@triton.jit
def slopes_of(p, dp, edge, delta, pairs, draw, key):
    """Kept probabilities, and ds; `edge` is what dp lacks of a far tile's terms."""
    if pairs.seed is None:
        p_kept = p
        ds = p * (dp - (delta - edge))
    else:
        keep = kept(pairs, draw, key)
        p_kept = tl.where(keep, p, 0.0)
        ds = p * (tl.where(keep, pairs.boost * (dp + edge), 0.0) - delta)
    return p_kept, ds


@triton.jit
def store_chunk(x, part, h, chunk, sums, rows, factor, pairs, ADDS: tl.constexpr):
    """A program's part of the gradient of a chunk of a table, in place of what it had of it, or added to it."""
    label, stop = tl.arange(0, pairs.CHUNK) + pairs.shift + chunk * pairs.CHUNK, pairs.shift + pairs.labels
    found = factor * tl.trans(product(tl.trans(rows), sums.to(rows.dtype), pairs.PRECISION))
    if ADDS:
        found += load_rows(x, part, h, label, stop)
    store_rows(x, part, h, label, stop, found)
    if ADDS:
        tl.debug_barrier()  # before other threads of the program read it


@triton.jit
def store_edges(x, part, h, columns, rows, factor, pairs):
    """A program's part of the gradients of both edges' rows."""
    edge, stop = tl.arange(0, 2) * (pairs.shift + pairs.labels), pairs.shift + pairs.labels + 1
    found = factor * tl.trans(product(tl.trans(rows), columns, pairs.PRECISION))
    store_rows(x, part, h, edge, stop, tl.sum(tl.reshape(found, [8, 2, x.PADDED]), 0))


@triton.jit
def backward_query(query, key, value, rel_key, rel_value, output, grad, lse, numbers, d_query, d_key, d_value,
                   d_rel_key, d_rel_value, pairs, scale, scale2, blocks, WHOLE: tl.constexpr,
                   ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block, b, h = place(pairs, blocks)
    part, key_head = b * blocks + block, h // pairs.group
    offset, valid = offset_of(pairs, b), valid_keys(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    last = tl.minimum(block * ROWS + ROWS, pairs.queries) - 1 + offset
    left, resume, full, tiles = key_tiles(pairs, block * ROWS + offset, last, valid, COLS)
    if WHOLE:  # every key is near, and has a gradient to be written
        tiles = (pairs.keys + COLS - 1) // COLS
        left, resume, full = 0, tiles, tiles
    WAITS: tl.constexpr = pairs.ONE_CHUNK and pairs.relations is None

    q = load_rows(query, b, h, row, pairs.queries)
    g = load_rows(grad, b, h, row, pairs.queries)
    z = load_rows(output, b, h, row, pairs.queries)
    log_sum = log_sums(lse, b, h, row, pairs)
    delta = tl.sum(g.to(tl.float32) * z.to(tl.float32), 1)
    key_before, key_after = edge_terms(q, rel_key, pairs, b, h)
    value_before, value_after = edge_terms(g, rel_value, pairs, b, h)
    if not WHOLE:
        store_numbers(numbers, DELTA, b, h, row, pairs, delta)
        if pairs.EDGES:
            store_numbers(numbers, KEY_BEFORE, b, h, row, pairs, key_before)
            store_numbers(numbers, KEY_AFTER, b, h, row, pairs, key_after)
            store_numbers(numbers, VALUE_BEFORE, b, h, row, pairs, value_before)
            store_numbers(numbers, VALUE_AFTER, b, h, row, pairs, value_after)
    draw = row_numbers(pairs, b, h, row)[:, None]

    dq = tl.zeros([ROWS, query.PADDED], tl.float32)
    slopes, masses = tl.zeros([ROWS, pairs.CHUNK], tl.float32), tl.zeros([ROWS, pairs.CHUNK], tl.float32)  # by label
    # sums over a row: of ds, all and either side's, and of either side's probabilities, all and kept
    slope = tl.zeros([ROWS], tl.float32)
    slope_before, slope_after = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    mass_before, mass_after = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    kept_before, kept_after = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)

    for step in range(left + full - resume):  # far
        is_before = step < left
        column = tl.where(is_before, step, resume - left + step) * COLS + tl.arange(0, COLS)
        k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
        edge = scale2 * tl.where(is_before, key_before, key_after)
        p = tl.exp2(scale2 * product(q, tl.trans(k), pairs.PRECISION) - (log_sum - edge)[:, None])
        dp = product(g, tl.trans(v), pairs.PRECISION)
        edge = tl.where(is_before, value_before, value_after)
        p_kept, ds = slopes_of(p, dp, edge[:, None], delta[:, None], pairs, draw, column[None, :])
        dq = add_product(ds.to(k.dtype), k, dq, pairs.PRECISION)
        total = tl.sum(ds, 1)
        slope += total
        if pairs.EDGES:
            mass = tl.sum(p_kept, 1)
            slope_before += tl.where(is_before, total, 0.0)
            slope_after += tl.where(is_before, 0.0, total)
            kept_before += tl.where(is_before, mass, 0.0)
            kept_after += tl.where(is_before, 0.0, mass)
            if pairs.seed is not None:
                mass = tl.sum(p, 1)
                mass_before += tl.where(is_before, mass, 0.0)
                mass_after += tl.where(is_before, 0.0, mass)

    for step in tl.range(COLS // NEAR * (resume - left + tiles - full), disable_licm=True):  # near
        first_key = near_keys(step, left, resume, full, COLS, NEAR)
        column = first_key + tl.arange(0, NEAR)
        k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
        label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])
        e = terms(q, rel_key, key_before, key_after, pairs, b, h, label, False)
        e = scale2 * add_product(q, tl.trans(k), e, pairs.PRECISION)
        dp = terms(g, rel_value, value_before, value_after, pairs, b, h, label, False)
        dp = add_product(g, tl.trans(v), dp, pairs.PRECISION)
        seen = sees(pairs, b, h, row[:, None], position[:, None], column[None, :], valid)
        p = tl.exp2(tl.where(seen, e - log_sum[:, None], float("-inf")))
        p_kept, ds = slopes_of(p, dp, 0.0, delta[:, None], pairs, draw, column[None, :])
        dq = add_product(ds.to(k.dtype), k, dq, pairs.PRECISION)
        if WAITS:
            if rel_key is not None:
                slopes += where_met(ds, pairs, position, first_key, 0, 0.0)
            if rel_value is not None:
                masses += where_met(p_kept, pairs, position, first_key, 0, 0.0)
        else:
            first, stop = chunks_of(pairs, label)
            if rel_key is not None:
                for chunk in tl.range(first, stop, disable_licm=True):
                    sums = by_label(ds, pairs, label, position, first_key, chunk)
                    rows = chunk_rows(rel_key, pairs, b, h, chunk)
                    dq = add_product(sums.to(rows.dtype), rows, dq, pairs.PRECISION)
                    store_chunk(d_rel_key, part, h, chunk, sums, q, scale, pairs, True)
            if rel_value is not None:
                for chunk in tl.range(first, stop, disable_licm=True):
                    sums = by_label(p_kept, pairs, label, position, first_key, chunk)
                    store_chunk(d_rel_value, part, h, chunk, sums, g, pairs.boost, pairs, True)
        slope += tl.sum(ds, 1)
        if pairs.EDGES:
            slope_before += tl.sum(tl.where(label < 0, ds, 0.0), 1)
            slope_after += tl.sum(tl.where(label >= pairs.labels, ds, 0.0), 1)
            kept_before += tl.sum(tl.where(label < 0, p_kept, 0.0), 1)
            kept_after += tl.sum(tl.where(label >= pairs.labels, p_kept, 0.0), 1)
            if pairs.seed is not None:
                mass_before += tl.sum(tl.where(label < 0, p, 0.0), 1)
                mass_after += tl.sum(tl.where(label >= pairs.labels, p, 0.0), 1)
        if WHOLE:
            dk = product(tl.trans(ds.to(q.dtype)), q, pairs.PRECISION)
            store_rows(d_key, b, h, column, pairs.keys, scale * dk)
            dv = product(tl.trans(p_kept.to(g.dtype)), g, pairs.PRECISION)
            store_rows(d_value, b, h, column, pairs.keys, pairs.boost * dv)

    if rel_key is not None:
        # ds of a row sums to nothing but for rounding in delta, which an edge, having most keys, would collect
        if WAITS:
            if rel_value is not None and pairs.seed is None:
                slopes -= masses * slope[:, None]
            rows = chunk_rows(rel_key, pairs, b, h, 0)
            dq = add_product(slopes.to(rows.dtype), rows, dq, pairs.PRECISION)
            store_chunk(d_rel_key, part, h, 0, slopes, q, scale, pairs, False)
        if pairs.EDGES:
            if pairs.seed is None:
                mass_before, mass_after = kept_before, kept_after
            slope_before -= mass_before * slope
            slope_after -= mass_after * slope
            rows = edge_rows(rel_key, pairs, b, h)
            columns = edge_columns(slope_before, slope_after, rows.dtype)
            dq = add_product(columns, rows, dq, pairs.PRECISION)
            store_edges(d_rel_key, part, h, columns, q, scale, pairs)
    if rel_value is not None:
        if WAITS:
            store_chunk(d_rel_value, part, h, 0, masses, g, pairs.boost, pairs, False)
        if pairs.EDGES:
            columns = edge_columns(kept_before, kept_after, g.dtype)
            store_edges(d_rel_value, part, h, columns, g, pairs.boost, pairs)
    store_rows(d_query, b, h, row, pairs.queries, scale * dq)


@triton.jit
def backward_key(query, key, value, rel_key, rel_value, grad, lse, numbers, d_key, d_value, pairs, scale, scale2,
                 blocks, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, key_head = head // pairs.key_heads, head % pairs.key_heads
    offset, valid = offset_of(pairs, b), valid_keys(pairs, b)
    column = block * COLS + tl.arange(0, COLS)
    last = tl.minimum(block * COLS + COLS, pairs.keys) - 1
    start, near, resume, stop = query_tiles(pairs, block * COLS, last, valid, offset, ROWS)
    k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
    dk, dv = tl.zeros([COLS, key.PADDED], tl.float32), tl.zeros([COLS, value.PADDED], tl.float32)

    for member in range(pairs.group):
        h = key_head * pairs.group + member
        for step in range(near - start + stop - resume):  # far
            is_after = step < near - start
            row = tl.where(is_after, start + step, resume - near + start + step) * ROWS + tl.arange(0, ROWS)
            q, g = load_rows(query, b, h, row, pairs.queries), load_rows(grad, b, h, row, pairs.queries)
            log_sum, delta = log_sums(lse, b, h, row, pairs), load_numbers(numbers, DELTA, b, h, row, pairs)
            edge = tl.zeros([ROWS], tl.float32)
            if pairs.EDGES:
                log_sum -= scale2 * load_numbers(numbers, tl.where(is_after, KEY_AFTER, KEY_BEFORE), b, h, row, pairs)
                edge = load_numbers(numbers, tl.where(is_after, VALUE_AFTER, VALUE_BEFORE), b, h, row, pairs)
            p = tl.exp2(scale2 * product(k, tl.trans(q), pairs.PRECISION) - log_sum[None, :])
            dp = product(v, tl.trans(g), pairs.PRECISION)
            draw = row_numbers(pairs, b, h, row)[None, :]
            p_kept, ds = slopes_of(p, dp, edge[None, :], delta[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.PRECISION)

        for step in tl.range(near * (ROWS // NEAR), resume * (ROWS // NEAR), disable_licm=True):  # near
            row = step * NEAR + tl.arange(0, NEAR)
            position = row + offset
            q, g = load_rows(query, b, h, row, pairs.queries), load_rows(grad, b, h, row, pairs.queries)
            log_sum, delta = log_sums(lse, b, h, row, pairs), load_numbers(numbers, DELTA, b, h, row, pairs)
            label = labels_of(pairs, b, h, row[None, :], position[None, :], column[:, None])
            before, after = log_sum, log_sum
            if pairs.EDGES:
                before = load_numbers(numbers, KEY_BEFORE, b, h, row, pairs)
                after = load_numbers(numbers, KEY_AFTER, b, h, row, pairs)
            e = terms(q, rel_key, before, after, pairs, b, h, label, True)
            e = scale2 * add_product(k, tl.trans(q), e, pairs.PRECISION)
            if pairs.EDGES:
                before = load_numbers(numbers, VALUE_BEFORE, b, h, row, pairs)
                after = load_numbers(numbers, VALUE_AFTER, b, h, row, pairs)
            dp = terms(g, rel_value, before, after, pairs, b, h, label, True)
            dp = add_product(v, tl.trans(g), dp, pairs.PRECISION)
            seen = sees(pairs, b, h, row[None, :], position[None, :], column[:, None], valid)
            p = tl.exp2(tl.where(seen, e - log_sum[None, :], float("-inf")))
            draw = row_numbers(pairs, b, h, row)[None, :]
            p_kept, ds = slopes_of(p, dp, 0.0, delta[None, :], pairs, draw, column[:, None])
            dv = add_product(p_kept.to(g.dtype), g, dv, pairs.PRECISION)
            dk = add_product(ds.to(q.dtype), q, dk, pairs.PRECISION)

    alive = (column < valid)[:, None]
    store_rows(d_key, b, key_head, column, pairs.keys, tl.where(alive, scale * dk, 0.0))
    store_rows(d_value, b, key_head, column, pairs.keys, tl.where(alive, pairs.boost * dv, 0.0))
