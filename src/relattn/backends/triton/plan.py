"""What follows from the sizes and options of a call alone: labels, tiles, and how work is shared among programs.

Plans are remembered, since making one takes longer than a short call takes a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from triton.language import constexpr

from relattn.backends.triton.availability import tensor_floats
from relattn.backends.triton.configs import Config, config, generation_of, labels_at_once, padded
from relattn.backends.triton.pairs import PairOptions
from relattn.call import Call, keep_scale, keep_threshold

FEW = 16  # at so many queries or fewer, their keys are split among programs
SHARE = 256  # keys of such a program, at least
ENOUGH = 264  # programs: two for every multiprocessor of a large GPU
MANY = 1024  # programs, past which several short sequences share one, for fewer parts of the tables' gradients
FEWEST = 64  # keys of a tile, however few there are: decoding is compiled once, and not for every length


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
    rel_dim: int | None  # of a rel_query
    table_rows: int | None
    has_offsets: bool
    has_relations: bool
    has_mask: bool
    left: int
    right: int
    clips: bool
    is_causal: bool
    dropout_p: float
    precision: str


def tiles_of(kernel: str, sizes: Sizes, generation: int | None = None) -> Config:
    """Tiles are no larger than the sequences need. Where there are more than 4 warps, each has 16 rows of the products.
    Nothing is loaded ahead in a loop of one step, nor where a mask or labels are loaded too: the assembler would make
    products on the matrix units wait for one another. The generation of GPU is the device's by default."""
    if generation is None:
        generation = generation_of(sizes.device)
    dim = padded(max(sizes.dim, sizes.value_dim, sizes.rel_dim or 0))
    tiles = config(kernel, generation, sizes.dtype, dim, sizes.rel_dim is not None)
    rows, cols = min(tiles.rows, padded(sizes.queries)), min(tiles.cols, padded(max(sizes.keys, FEWEST)))
    steps_of_keys = kernel != "backward_key"
    warps = min(tiles.warps, max(4, (rows if steps_of_keys else cols) // 16))
    one_step = sizes.keys <= cols if steps_of_keys else sizes.queries <= rows
    stages = 1 if one_step or sizes.has_mask or sizes.has_relations else tiles.stages
    return Config(rows, cols, max(16, min(tiles.near, rows, cols)), warps, stages)


TilesOf = Callable[[str, Sizes], Config]  # of a kernel


@dataclass(frozen=True)
class Plan:
    options: PairOptions  # without its tensors
    tiles: dict[str, Config]
    blocks: dict[str, int]  # programs per head, each with a block of queries, or of keys in `backward_key`
    part_rows: int  # of a part of a table's gradient
    adds: bool  # a program adds to its part of the tables' gradients several times
    whole: bool  # backward, one program has all of a head
    members: int  # sequences that such a program has, one after the other
    splits: int  # forward, programs that the keys of a query are split among


def plan_of(call: Call, tiles_of: TilesOf = tiles_of) -> Plan:
    query, value, table = call.query, call.value, call.rel_key
    if table is None:
        table = call.rel_value
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
            None if call.rel_query is None else call.rel_query.shape[3],
            None if table is None else table.shape[-2],
            call.query_offsets is not None,
            call.relations is not None,
            call.mask is not None,
            call.left,
            call.right,
            call.clips,
            call.is_causal,
            call.dropout_p,
            "tf32" if tensor_floats() else "tf32x3",
        ),
        tiles_of,
    )


@lru_cache(maxsize=4096)
def plan(sizes: Sizes, tiles_of: TilesOf) -> Plan:
    options = labelled(sizes)
    tiles = {kernel: tiles_of(kernel, sizes) for kernel in ("forward", "backward_query", "backward_key", "whole")}
    blocks = {kernel: -(-sizes.queries // tiles[kernel].rows) for kernel in ("forward", "backward_query")}
    blocks |= {"backward_key": -(-sizes.keys // tiles["backward_key"].cols), "whole": 1}
    most = tiles["whole"].rows
    whole = sizes.heads == sizes.key_heads and 0 < sizes.queries <= most and 0 < sizes.keys <= 2 * most
    programs = sizes.batch * sizes.heads
    splits = 1
    if 0 < sizes.queries <= FEW and programs > 0:
        splits = max(1, min(sizes.keys // SHARE, ENOUGH // programs))
    of_parts = tiles["whole" if whole else "backward_query"]
    reach = labels_reached(sizes, of_parts, options.CHUNK.value)
    if not sizes.has_relations and not sizes.has_offsets and reach < options.labels:
        options = options._replace(reach=reach)
    of_window = options.labels if options.reach is None else options.reach
    return Plan(
        options=options,
        tiles=tiles,
        blocks=blocks,
        part_rows=options.shift + of_window + options.AFTER.value,
        adds=sizes.has_relations or options.labels > options.CHUNK.value,
        whole=whole,
        members=max(1, programs // MANY) if whole else 1,
        splits=splits,
    )


def labels_reached(sizes: Sizes, tiles: Config, at_once: int) -> int:
    """Labels that the tiles of a block of queries have: one for each key and for each query but one, in whole chunks
    wherever they begin. A window as wide as the sequence has about twice as many."""
    keys = up_to(sizes.keys, tiles.near)
    return up_to(keys + tiles.rows - 1 + at_once - 1, at_once)


def up_to(number: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-number // step) * step


def first_label(options: PairOptions, last: int) -> int:
    """As the function of this name in `labels.py`."""
    return max(-last - options.start, 0) // options.CHUNK.value * options.CHUNK.value


def labelled(sizes: Sizes) -> PairOptions:
    """Distances start … stop are in the window, whose labels begin at row `shift` of the tables. Where the edges have
    rows of their own, the window is what lies between them; under causality no key is after it."""
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
    return PairOptions(
        relations=None,
        mask=None,
        offsets=None,
        key_lengths=None,
        query_lengths=None,
        seed=None,
        heads=sizes.heads,
        key_heads=sizes.key_heads,
        start=start,
        stop=stop,
        labels=labels,
        shift=shift,
        reach=None,
        keep_threshold=keep_threshold(sizes.dropout_p),
        keep_scale=keep_scale(sizes.dropout_p),
        GROUP=fixed(sizes.heads // sizes.key_heads),
        CHUNK=fixed(at_once),
        ONE_CHUNK=fixed(labels + after <= at_once),
        BEFORE=fixed(edges),
        AFTER=fixed(after),
        CAUSAL=fixed(sizes.is_causal),
        PRECISION=fixed(sizes.precision),
    )


@cache
def fixed(value: int | str) -> constexpr:
    """A constant of a kernel. Truth values become 0 and 1, which `cache` does not tell from them: a stride that came
    back as True would be a number of one bit."""
    return constexpr(int(value) if isinstance(value, bool) else value)


@cache
def dims(dim: int) -> tuple[constexpr, constexpr]:
    """A head dim as the kernels take it, and padded."""
    return fixed(dim), fixed(padded(dim))
