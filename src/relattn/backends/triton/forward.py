"""The kernel of the way there: output and log-sum-exp of ROWS queries, by an online softmax over tiles of keys.

In a far tile the relative terms are constants of a query, and its masses sums over the tile: one add a row. A near tile
gathers, NEAR keys at a time. What a query owes aV of labels in its window waits as scores, one a label, until the
log-sum-exp is known.
"""

import triton
import triton.language as tl

from relattn.backends.triton.arrays import add_product, load_rows, product, store_rows
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
from relattn.backends.triton.pairs import kept, key_tiles, labels_of, offset_of, row_numbers, sees, valid_keys


@triton.jit
def place(pairs, blocks):
    """A program's block of queries, sequence and head."""
    program = tl.program_id(0)
    return program % blocks, program // blocks // pairs.heads, program // blocks % pairs.heads


@triton.jit
def place_of_query(b, h, row, pairs, kind=0):
    """Of a number a query in (kinds, batch, heads, queries)."""
    return ((pairs.batch * kind + b).to(tl.int64) * pairs.heads + h) * pairs.queries + row


@triton.jit
def near_keys(step, left, resume, full, COLS: tl.constexpr, NEAR: tl.constexpr):
    """First key of a step through the near tiles left … resume and from `full` on, NEAR keys a step."""
    parts: tl.constexpr = COLS // NEAR
    skipped = tl.where(step < parts * (resume - left), left, full - resume + left)
    return NEAR * (parts * skipped + step)


@triton.jit
def forward(query, key, value, rel_key, rel_value, output, lse, pairs, scale2, blocks,
            ROWS: tl.constexpr, COLS: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    block, b, h = place(pairs, blocks)
    key_head = h // pairs.group
    offset, valid = offset_of(pairs, b), valid_keys(pairs, b)
    row = block * ROWS + tl.arange(0, ROWS)
    position = row + offset
    last = tl.minimum(block * ROWS + ROWS, pairs.queries) - 1 + offset
    left, resume, full, tiles = key_tiles(pairs, block * ROWS + offset, last, valid, COLS)
    WAITS: tl.constexpr = pairs.ONE_CHUNK and pairs.relations is None and rel_value is not None

    q = load_rows(query, b, h, row, pairs.queries)
    q = tl.where(scale2 < 0, -q, q)  # so that the largest product is the largest score
    scale2 = tl.abs(scale2)
    before, after = edge_terms(q, rel_key, pairs, b, h)
    number = row_numbers(pairs, b, h, row)[:, None]

    z = tl.zeros([ROWS, value.PADDED], tl.float32)
    top, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    mass_before, mass_after = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    scores = tl.full([ROWS, pairs.CHUNK], float("-inf"), tl.float32)  # by label

    for step in range(left + full - resume):  # far
        is_before = step < left
        column = tl.where(is_before, step, resume - left + step) * COLS + tl.arange(0, COLS)
        k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
        e = product(q, tl.trans(k), pairs.PRECISION)
        edge = scale2 * tl.where(is_before, before, after)
        new_top = tl.maximum(top, scale2 * tl.max(e, 1) + edge)
        p = tl.exp2(scale2 * e - (new_top - edge)[:, None])
        shrink = tl.exp2(top - new_top)
        top, total = new_top, total * shrink + tl.sum(p, 1)
        if pairs.seed is not None:
            p = tl.where(kept(pairs, number, column[None, :]), p, 0.0)
        if pairs.EDGES and rel_value is not None:
            mass = tl.sum(p, 1)
            mass_before = mass_before * shrink + tl.where(is_before, mass, 0.0)
            mass_after = mass_after * shrink + tl.where(is_before, 0.0, mass)
        z = add_product(p.to(v.dtype), v, z * shrink[:, None], pairs.PRECISION)

    for step in tl.range(COLS // NEAR * (resume - left + tiles - full), disable_licm=True):  # near
        first_key = near_keys(step, left, resume, full, COLS, NEAR)
        column = first_key + tl.arange(0, NEAR)
        k, v = load_rows(key, b, key_head, column, pairs.keys), load_rows(value, b, key_head, column, pairs.keys)
        label = labels_of(pairs, b, h, row[:, None], position[:, None], column[None, :])
        e = terms(q, rel_key, before, after, pairs, b, h, label, False)
        e = scale2 * add_product(q, tl.trans(k), e, pairs.PRECISION)
        e = tl.where(sees(pairs, b, h, row[:, None], position[:, None], column[None, :], valid), e, float("-inf"))
        new_top = tl.maximum(top, tl.max(e, 1))
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(e - finite[:, None])
        shrink = tl.exp2(top - finite)
        top, total = new_top, total * shrink + tl.sum(p, 1)
        if pairs.seed is not None:
            keep = kept(pairs, number, column[None, :])
            p, e = tl.where(keep, p, 0.0), tl.where(keep, e, float("-inf"))
        z = add_product(p.to(v.dtype), v, z * shrink[:, None], pairs.PRECISION)
        if WAITS:
            scores = tl.maximum(scores, where_met(e, pairs, position, first_key, 0, float("-inf")))
        elif rel_value is not None:
            first, stop = chunks_of(pairs, label)
            for chunk in range(first, stop):
                rows = chunk_rows(rel_value, pairs, b, h, chunk)
                masses = by_label(p, pairs, label, position, first_key, chunk)
                z = add_product(masses.to(rows.dtype), rows, z, pairs.PRECISION)
        if pairs.EDGES and rel_value is not None:
            mass_before = mass_before * shrink + tl.sum(tl.where(label < 0, p, 0.0), 1)
            mass_after = mass_after * shrink + tl.sum(tl.where(label >= pairs.labels, p, 0.0), 1)

    if WAITS:
        rows = chunk_rows(rel_value, pairs, b, h, 0)
        masses = tl.exp2(scores - tl.where(top == float("-inf"), 0.0, top)[:, None])
        z = add_product(masses.to(rows.dtype), rows, z, pairs.PRECISION)
    if pairs.EDGES and rel_value is not None:
        rows = edge_rows(rel_value, pairs, b, h)
        z = add_product(edge_columns(mass_before, mass_after, rows.dtype), rows, z, pairs.PRECISION)
    alive = total != 0  # or not a number, which is to be seen
    if pairs.lengths is not None:
        alive = alive & (position < valid)
    total = tl.where(alive, total, 1.0)
    store_rows(output, b, h, row, pairs.queries, tl.where(alive[:, None], z * (pairs.boost / total)[:, None], 0.0))
    log_sum = tl.where(alive, top + tl.log2(total), float("-inf"))
    tl.store(lse + place_of_query(b, h, row, pairs), log_sum, mask=row < pairs.queries)
