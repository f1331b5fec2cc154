"""What the sizes and options of a call settle before its numbers are seen: labels, tiles, and how work is shared out.

Plans are remembered, since working one out takes longer than a short call takes a GPU.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from triton.language import constexpr

from relattn.backends.fused import Arguments
from relattn.backends.triton.configs import Config, config, labels_at_once
from relattn.backends.triton.kinds import tensor_floats
from relattn.backends.triton.pairs import Options

FEW = 16  # queries, so few that their keys are split among programs
SHARE = 256  # keys of such a program, at least
ENOUGH = 264  # programs: two on every multiprocessor of a large GPU
MANY = 1024  # programs, past which short sequences share them, and fewer parts of the tables' gradients are made
FEWEST = 64  # keys of a tile, however few there are: decoding is compiled once, not for each length


class Sizes(NamedTuple):
    device: torch.device
    dtype: torch.dtype
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    table_rows: int | None
    has_relations: bool
    has_mask: bool
    left: int
    right: int
    clips: bool
    is_causal: bool
    dropout_p: float
    precision: str


@dataclass(frozen=True)
class Plan:
    options: Options  # without its tensors
    tiles: dict[str, Config]
    blocks: dict[str, int]  # of rows of a head, each the work of a program: of queries, or in `backward_key` of keys
    table_rows: int  # of a part of a table's gradient
    adds: bool  # a program works through its part of the tables' gradients in several goes
    whole: bool  # one program has all of a head, backward
    members: int  # sequences that such a program takes, one after the other
    splits: int  # programs that the keys of a query are split among, forward


def plan_of(given: Arguments) -> Plan:
    query, value, table = given.query, given.value, given.rel_key
    if table is None:
        table = given.rel_value
    batch, heads, queries, dim = query.shape
    _, key_heads, keys, value_dim = value.shape
    return plan(
        Sizes(
            query.device,
            query.dtype,
            batch,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim,
            None if table is None else table.shape[-2],
            given.relations is not None,
            given.mask is not None,
            given.left,
            given.right,
            given.clips,
            given.is_causal,
            given.dropout_p,
            "tf32" if tensor_floats() else "tf32x3",
        )
    )


@lru_cache(maxsize=4096)
def plan(sizes: Sizes) -> Plan:
    options = labelled(sizes)
    at_once = options.CHUNK.value
    tiles = {kernel: tiles_of(kernel, sizes) for kernel in ("forward", "backward_query", "backward_key", "whole")}
    blocks = {kernel: -(-sizes.queries // tiles[kernel].rows) for kernel in ("forward", "backward_query")}
    blocks |= {"backward_key": -(-sizes.keys // tiles["backward_key"].cols), "whole": 1}
    most = tiles["whole"].rows
    whole = sizes.heads == sizes.key_heads and 0 < sizes.queries <= most and 0 < sizes.keys <= 2 * most
    programs = sizes.batch * sizes.heads
    splits = 1
    if 0 < sizes.queries <= FEW and programs > 0:
        splits = max(1, min(sizes.keys // SHARE, ENOUGH // programs))
    return Plan(
        options=options,
        tiles=tiles,
        blocks=blocks,
        table_rows=options.shift + options.labels + options.AFTER.value,
        adds=sizes.has_relations or options.labels > at_once,
        whole=whole,
        members=max(1, programs // MANY) if whole else 1,
        splits=splits,
    )


def labelled(sizes: Sizes) -> Options:
    """Distances in the window are start … stop, or none; it has a number of labels, the first of them row `shift`.
    Where both edges have rows of their own, the window is what is between them; under causality no key is after it."""
    edges = sizes.clips and sizes.table_rows is not None
    if sizes.table_rows is None:
        start, stop, shift = 1, 1, 0
    elif not sizes.clips:
        start, stop, shift = -sizes.left, sizes.right + 1, 0
    else:
        start, shift = 1 - sizes.left, 1
        stop = max(sizes.right + sizes.is_causal, start)
    labels = stop - start
    if sizes.has_relations and sizes.table_rows is not None:
        labels = sizes.table_rows
    after = edges and not sizes.is_causal
    at_once = labels_at_once(labels + after)
    kept = 1.0 - sizes.dropout_p
    return Options(
        relations=None,
        mask=None,
        offsets=None,
        lengths=None,
        seed=None,
        heads=sizes.heads,
        key_heads=sizes.key_heads,
        start=start,
        stop=stop,
        labels=labels,
        shift=shift,
        threshold=int(kept * 2**24),
        boost=1.0 / kept if kept > 0.0 else 0.0,
        GROUP=fixed(sizes.heads // sizes.key_heads),
        CHUNK=fixed(at_once),
        ONE_CHUNK=fixed(labels + after <= at_once),
        BEFORE=fixed(edges),
        AFTER=fixed(after),
        CAUSAL=fixed(sizes.is_causal),
        PRECISION=fixed(sizes.precision),
    )


def tiles_of(kernel: str, sizes: Sizes) -> Config:
    """No larger than the sequences need; no more warps than have 16 rows of the products each, but for 4; and no loads
    in flight where a loop has one step, or where a mask or labels are loaded beside: the assembler would then make
    products of the matrix units wait for one another."""
    dim = max(padded(sizes.dim), padded(sizes.value_dim))
    tiles = config(kernel, sizes.device, sizes.dtype, dim)
    rows, cols = min(tiles.rows, padded(sizes.queries)), min(tiles.cols, padded(max(sizes.keys, FEWEST)))
    steps_of_keys = kernel != "backward_key"
    warps = min(tiles.warps, max(4, (rows if steps_of_keys else cols) // 16))
    one_step = sizes.keys <= cols if steps_of_keys else sizes.queries <= rows
    stages = 1 if one_step or sizes.has_mask or sizes.has_relations else tiles.stages
    return Config(rows, cols, max(16, min(tiles.near, rows, cols)), warps, stages)


@cache
def fixed(value: int | str) -> constexpr:
    """What is known when a kernel is compiled. Truth values become 0 and 1: a cache does not tell them from these, and
    a stride that came back as True would be a number of one bit."""
    return constexpr(int(value) if isinstance(value, bool) else value)


@cache
def dims(dim: int) -> tuple[constexpr, constexpr]:
    """A head dim as the kernels take it, and padded."""
    return fixed(dim), fixed(padded(dim))


def padded(size: int) -> int:
    """The power of two that a dimension is padded to, 16 at least."""
    return 1 << max(4, (size - 1).bit_length())
