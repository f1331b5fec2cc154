"""The kernels of the forward pass: output and log-sum-exp of ROWS queries, by an online softmax over tiles of keys.

In a far tile the relative term of a query is the same for every key, and all its probability belongs to one label. In a
near tile, NEAR keys wide, terms are gathered by label. The scores of the labels inside the window wait until the
log-sum-exp is known, and only then weight aV. Where few queries would leave most of a GPU idle, the keys are split
among programs, and `join` puts together what they found.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, places, product, store_rows
from relattn.backends.triton.labels import (
    by_label,
    chunk_rows,
    chunks_of,
    edge_columns,
    edge_rows,
    edge_terms,
    rel_queries,
    terms,
    terms_by_label,
    where_met,
)
from relattn.backends.triton.numbers import LOG_SUM, MASS_AFTER, MASS_BEFORE, NUMBERS, place_of_query, store_number
from relattn.backends.triton.pairs import (
    Pairs,
    far_part,
    hide,
    is_kept,
    key_parts,
    labels_of,
    lengths_of,
    offset_of,
    row_numbers,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def place(pairs, blocks):
    """A program's block of queries, sequence and head, and its part of the keys."""
    program = tl.program_id(0)
    sequence = program // blocks // pairs.options.heads
    return program % blocks, sequence % pairs.batch, program // blocks % pairs.options.heads, sequence // pairs.batch


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "blocks", "splits"])
def forward(query, key, value, rel_key, rel_value, rel_query, output, lse, numbers, given, batch, queries, keys, offset,
            scale2, blocks, splits, ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    attend(query, key, value, rel_key, rel_value, rel_query, output, lse, numbers,
           Pairs(batch, queries, keys, offset, given), scale2, blocks, splits, ROWS, COLS, NEAR)  # fmt: skip


@triton.jit
def attend(query, key, value, rel_key, rel_value, rel_query, output, lse, numbers, pairs, scale2, blocks, splits,
           ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """A block of queries of a head, on a part of its keys."""
    block, b, h, split = place(pairs, blocks)
    key_head, part = h // pairs.options.GROUP, split * pairs.batch + b
    offset = offset_of(pairs, b)
    valid_queries, valid_keys = lengths_of(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    first, last = block * ROWS + offset, tl.minimum(block * ROWS + ROWS, valid_queries) - 1 + offset
    left, resume, stop = key_parts(pairs, first, last, valid_keys, NEAR)
    share = (stop + splits * NEAR - 1) // (splits * NEAR) * NEAR  # of the keys, for each program
    begin = tl.minimum(split * share, stop)
    stop = tl.minimum(begin + share, stop)
    left, resume = tl.minimum(tl.maximum(left, begin), stop), tl.minimum(tl.maximum(resume, begin), stop)
    WAITS: tl.constexpr = pairs.options.ONE_CHUNK and pairs.options.relations is None and rel_value is not None

    q = load_rows(query, b, h, row, valid_queries)
    r = rel_queries(q, rel_query, b, h, row, valid_queries)
    before, after = edge_terms(r, rel_key, pairs, b, h)
    number = row_numbers(pairs, b, h, row)[:, None]

    z = tl.zeros([ROWS, value.PADDED], tl.float32)
    top, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    mass, mass_before, mass_in = total, total, total  # kept: of all pairs, before and in the window
    scores = tl.full([ROWS, pairs.options.CHUNK], float("-inf"), tl.float32)  # by label

    tiles_before = (left - begin + COLS - 1) // COLS
    for step in range(tiles_before + (stop - resume + COLS - 1) // COLS):  # far
        is_before, first_key, end = far_part(step, tiles_before, begin, left, resume, stop, COLS)
        column = first_key + tl.arange(0, COLS)
        k, v = load_rows(key, b, key_head, column, valid_keys), load_rows(value, b, key_head, column, valid_keys)
        e = product(q, tl.trans(k), pairs.options.PRECISION)
        if first_key + COLS > end:
            e = tl.where((column < end)[None, :], e, float("-inf"))
        edge = scale2 * tl.where(is_before, before, after)
        new_top = tl.maximum(top, scale2 * tl.max(e, 1) + edge)
        p = tl.exp2(scale2 * e - (new_top - edge)[:, None])
        shrink = tl.exp2(top - new_top)
        found = tl.sum(p, 1)
        top, total = new_top, total * shrink + found
        if pairs.options.seed is not None:
            p = tl.where(is_kept(pairs, number, column[None, :]), p, 0.0)
            found = tl.sum(p, 1)
        if pairs.options.BEFORE:
            mass, mass_in = mass * shrink + found, mass_in * shrink
            mass_before = mass_before * shrink + tl.where(is_before, found, 0.0)
        z = add_product(p.to(v.dtype), v, z * shrink[:, None], pairs.options.PRECISION)

    terms_of_query = r
    if pairs.options.ONE_CHUNK:
        terms_of_query = terms_by_label(r, rel_key, pairs, b, h, 0, False)
    for step in tl.range((resume - left + NEAR - 1) // NEAR, disable_licm=True):  # near
        first_key = left + step * NEAR
        column = first_key + tl.arange(0, NEAR)
        k, v = load_rows(key, b, key_head, column, valid_keys), load_rows(value, b, key_head, column, valid_keys)
        low, high = first_key - last - pairs.options.start, first_key + NEAR - 1 - first - pairs.options.start
        label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])
        is_before = column[None, :] < (position + pairs.options.start)[:, None]
        e = terms(r, rel_key, terms_of_query, before, pairs, b, h, label, is_before, low, high, False)
        e = add_product(q, tl.trans(k), e, pairs.options.PRECISION)
        may_hide = (first_key + NEAR > resume) | (pairs.options.CAUSAL & (first_key + NEAR - 1 > first))
        e = hide(e, pairs, b, h, row[:, None], position[:, None], column[None, :], resume, may_hide)
        new_top = tl.maximum(top, scale2 * tl.max(e, 1))
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scale2 * e - finite[:, None])
        shrink = tl.exp2(top - finite)
        found = tl.sum(p, 1)
        top, total = new_top, total * shrink + found
        if pairs.options.seed is not None:
            kept = is_kept(pairs, number, column[None, :])
            p, e = tl.where(kept, p, 0.0), tl.where(kept, e, float("-inf"))
            found = tl.sum(p, 1)
        z = add_product(p.to(v.dtype), v, z * shrink[:, None], pairs.options.PRECISION)
        mass_in *= shrink
        if WAITS:
            scores = where_met(e, pairs, position, first_key, 0, scores)
        elif rel_value is not None:
            first_chunk, stop_chunk = chunks_of(pairs, label, low, high)
            for chunk in range(first_chunk, stop_chunk):
                rows = chunk_rows(rel_value, pairs, b, h, chunk, False)
                masses = by_label(p, pairs, label, position, first_key, chunk)
                z = add_product(masses.to(rows.dtype), rows, z, pairs.options.PRECISION)
                mass_in += tl.sum(masses, 1)
        if pairs.options.BEFORE:
            mass, mass_before = mass * shrink + found, mass_before * shrink
            if pairs.options.AFTER:
                mass_before += tl.sum(tl.where(is_before, p, 0.0), 1)

    if WAITS:
        rows = chunk_rows(rel_value, pairs, b, h, 0, False)
        masses = tl.exp2(scale2 * scores - tl.where(top == float("-inf"), 0.0, top)[:, None])
        z = add_product(masses.to(rows.dtype), rows, z, pairs.options.PRECISION)
        mass_in = tl.sum(masses, 1)
    alive = total != 0  # or NaN, which is to be seen
    if pairs.options.query_lengths is not None:
        alive = alive & (row < valid_queries)
    if pairs.options.BEFORE:  # what is neither in the window nor before it is after it
        mass_after = tl.zeros([ROWS], tl.float32)
        if pairs.options.AFTER:
            mass_after = mass - mass_in - mass_before
        else:
            mass_before = mass - mass_in
        if rel_value is not None:
            rows = edge_rows(rel_value, pairs, b, h)
            z = add_product(edge_columns(mass_before, mass_after, rows.dtype), rows, z, pairs.options.PRECISION)
        share_of = tl.where(alive, 1.0 / tl.where(alive, total, 1.0), 0.0)
        store_number(numbers, split * NUMBERS + MASS_BEFORE, b, h, row, pairs, mass_before * share_of)
        store_number(numbers, split * NUMBERS + MASS_AFTER, b, h, row, pairs, mass_after * share_of)
    total = tl.where(alive, total, 1.0)
    z = tl.where(alive[:, None], z * (pairs.options.keep_scale / total)[:, None], 0.0)
    store_rows(output, part, h, row, pairs.queries, z)
    log_sum = top + tl.log2(total)
    store_number(numbers, split * NUMBERS + LOG_SUM, b, h, row, pairs, tl.where(alive, log_sum, float("inf")))
    of_lse = lse + (part.to(tl.int64) * pairs.options.heads + h) * pairs.queries + row
    tl.store(of_lse, tl.where(alive, log_sum * LN2, float("-inf")), mask=row < pairs.queries)


@triton.jit(do_not_specialize=["batch", "queries", "keys", "offset", "splits"])
def join(parts, part_numbers, output, lse, numbers, given, batch, queries, keys, offset, splits,
         SPLITS: tl.constexpr):  # fmt: skip
    join_parts(parts, part_numbers, output, lse, numbers, Pairs(batch, queries, keys, offset, given), splits, SPLITS)


@triton.jit
def join_parts(parts, part_numbers, output, lse, numbers, pairs, splits, SPLITS: tl.constexpr):
    """A query's output and numbers from those of the `splits` parts of its keys, in their order."""
    program = tl.program_id(0)
    row, h, b = (
        program % pairs.queries,
        program // pairs.queries % pairs.options.heads,
        program // pairs.queries // pairs.options.heads,
    )
    split, column = tl.arange(0, SPLITS), tl.arange(0, output.PADDED)
    there, inside = split < splits, column < output.DIM
    of_parts = part_numbers + place_of_query(b, h, row, pairs, split * NUMBERS)
    stride = place_of_query(0 * b, 0, 0, pairs, 1)
    log_sums = tl.load(of_parts + LOG_SUM * stride, mask=there, other=float("inf"))
    log_sums = tl.where(log_sums == float("inf"), float("-inf"), log_sums)
    top = tl.max(log_sums, 0)
    alive = top != float("-inf")
    weight = tl.exp2(log_sums - tl.where(alive, top, 0.0))
    total = tl.where(alive, tl.sum(weight, 0), 1.0)
    weight = weight / total
    head = (split * pairs.batch + b).to(tl.int64) * pairs.options.heads + h
    rows = parts + (head * pairs.queries + row)[:, None] * output.DIM + column[None, :]
    z = tl.sum(tl.load(rows, mask=there[:, None] & inside[None, :], other=0.0) * weight[:, None], 0)
    tl.store(places(output, b, h, row, column), z.to(output.data.dtype.element_ty), mask=inside)
    if pairs.options.BEFORE:
        before = tl.load(of_parts + MASS_BEFORE * stride, mask=there, other=0.0)
        after = tl.load(of_parts + MASS_AFTER * stride, mask=there, other=0.0)
        tl.store(numbers + place_of_query(b, h, row, pairs, MASS_BEFORE), tl.sum(before * weight, 0))
        tl.store(numbers + place_of_query(b, h, row, pairs, MASS_AFTER), tl.sum(after * weight, 0))
    log_sum = top + tl.log2(total)
    tl.store(numbers + place_of_query(b, h, row, pairs, LOG_SUM), tl.where(alive, log_sum, float("inf")))
    tl.store(lse + program, tl.where(alive, log_sum * LN2, float("-inf")))
