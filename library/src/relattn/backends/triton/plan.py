"""Plan of a call, from its sizes and options alone: labels, tiles, and how programs share the work.

Plans are cached, because making one takes longer than a short call takes on a GPU.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from triton.language import constexpr

from relattn.backends.triton.availability import tensor_floats
from relattn.backends.triton.configs import TileConfig, chunk_size, config, generation_of, padded
from relattn.backends.triton.pairs import PairOptions
from relattn.call import Call, keep_scale, keep_threshold

MAX_SPLIT_QUERIES = 16  # with more queries, the keys are not split among programs
MIN_SPLIT_KEYS = 256  # keys per split
SPLIT_PROGRAMS = 264  # programs that splitting aims at: two per multiprocessor of a large GPU
MAX_PARTS = 1024  # with more programs, several short sequences share one, for fewer parts of the tables' gradients
MIN_TILE_KEYS = 64  # keys per tile even if there are fewer, so that decoding is not compiled for every length


class Sizes(NamedTuple):
    """Sizes and options of a call that its plan depends on."""

    generation: int  # of the GPU
    dtype: torch.dtype
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    rel_dim: int | None  # of rel_query, or None
    table_rows: int | None
    has_pos_query: bool
    has_offsets: bool
    has_relations: bool
    has_mask: bool
    left: int
    right: int
    clips: bool
    is_causal: bool
    window_left: int | None
    window_right: int | None
    chunk: int
    dropout_p: float
    precision: str

    @property
    def padded_dim(self) -> int:
        """Return the largest head dimension, padded."""
        return padded(max(self.dim, self.value_dim, self.rel_dim or 0))

    @property
    def has_window(self) -> bool:
        """Return whether a window hides pairs that causality does not."""
        return self.window_left is not None or (self.window_right is not None and not self.is_causal)


def tiles_of(kernel: str, sizes: Sizes) -> TileConfig:
    """Return the tiles of a kernel, which are no larger than the sequences need.

    With more than 4 warps, each warp has 16 rows of the products. Nothing is loaded ahead in a loop of one step, nor if
    a mask or labels are loaded too, nor in `backward_query` with a window or a pos_query: the assembler would make
    products on the tensor cores wait for one another.
    """
    has_one_chunk = bool(pair_options(sizes).ONE_CHUNK.value)
    has_rel_query = sizes.rel_dim is not None
    has_pos_query = sizes.has_pos_query
    tiles = config(kernel, sizes.generation, sizes.dtype, sizes.padded_dim, has_rel_query, has_pos_query, has_one_chunk)
    rows = min(tiles.rows, padded(sizes.queries))
    cols = min(tiles.cols, padded(max(sizes.keys, MIN_TILE_KEYS)))
    loops_over_keys = kernel != "backward_key"
    warps = min(tiles.warps, max(4, (rows if loops_over_keys else cols) // 16))
    one_step = sizes.keys <= cols if loops_over_keys else sizes.queries <= rows
    waits = sizes.has_mask or sizes.has_relations
    if kernel == "backward_query":
        waits = waits or sizes.has_window or sizes.has_pos_query
    stages = 1 if one_step or waits else tiles.stages
    return TileConfig(rows, cols, max(16, min(tiles.near, rows, cols)), warps, stages)


@dataclass(frozen=True)
class Plan:
    """Plan for the computation of a call by the kernels."""

    options: PairOptions  # without its tensors
    tiles: dict[str, TileConfig]
    blocks: dict[str, int]  # programs per head, each with a block of queries, or of keys in `backward_key`
    part_rows: int  # of a part of a table's gradient
    accumulates: bool  # a program adds to its part of the tables' gradients several times
    whole: bool  # one program does the backward pass of a head
    sequences: int  # per such program, one after the other
    splits: int  # programs that share the keys of a query in the forward pass


def plan_of(call: Call, generation: int | None = None) -> Plan:
    """Return the plan of a call on a generation of GPUs, by default that of the call's device."""
    query = call.query
    value = call.value
    batch, heads, queries, dim = query.shape
    _, key_heads, keys, value_dim = value.shape
    return plan(
        Sizes(
            generation_of(query.device) if generation is None else generation,
            query.dtype,
            batch,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim,
            None if call.rel_query is None else call.rel_query.shape[3],
            call.labels or None,
            call.pos_query is not None,
            call.query_offsets is not None,
            call.relations is not None,
            call.mask is not None,
            call.left,
            call.right,
            call.clips,
            call.is_causal,
            call.window_left,
            call.window_right,
            call.chunk,
            call.dropout_p,
            "tf32" if tensor_floats() else "tf32x3",
        )
    )


@lru_cache(maxsize=4096)
def plan(sizes: Sizes) -> Plan:
    options = pair_options(sizes)
    tiles = {kernel: tiles_of(kernel, sizes) for kernel in ("forward", "backward_query", "backward_key", "whole")}
    blocks = {kernel: -(-sizes.queries // tiles[kernel].rows) for kernel in ("forward", "backward_query")}
    blocks |= {"backward_key": -(-sizes.keys // tiles["backward_key"].cols), "whole": 1}
    max_rows = tiles["whole"].rows
    is_short = sizes.heads == sizes.key_heads and 0 < sizes.queries <= max_rows and 0 < sizes.keys <= 2 * max_rows
    whole = is_short and not sizes.has_pos_query
    programs = sizes.batch * sizes.heads
    splits = 1
    if 0 < sizes.queries <= MAX_SPLIT_QUERIES and programs > 0:
        splits = max(1, min(keys_in_windows(sizes) // MIN_SPLIT_KEYS, SPLIT_PROGRAMS // programs))
    query_tiles = tiles["whole" if whole else "backward_query"]
    key_tiles = tiles["backward_key"]
    chunk = options.CHUNK.value
    reach = labels_reached(sizes.keys, query_tiles.near, query_tiles.rows, chunk)
    if sizes.has_pos_query:
        reach = max(reach, labels_reached(sizes.queries, key_tiles.near, key_tiles.cols, chunk))
    if not sizes.has_relations and not sizes.has_offsets and reach < options.labels:
        options = options._replace(reach=reach)
    part_labels = options.labels if options.reach is None else options.reach
    return Plan(
        options=options,
        tiles=tiles,
        blocks=blocks,
        part_rows=options.shift + part_labels + options.AFTER.value,
        accumulates=sizes.has_relations or not options.ONE_CHUNK.value,
        whole=whole,
        sequences=max(1, programs // MAX_PARTS) if whole else 1,
        splits=splits,
    )


def labels_reached(length: int, near: int, block: int, chunk: int) -> int:
    """Return the number of labels that a block of queries reaches, in whole chunks wherever they begin.

    There is one label per key, and one more per further query. A clipping range as wide as the sequence has about twice
    as many labels. A window does not count, because the tables of a call have only the labels that it reaches. The same
    holds for a block of keys.

    Args:
        length: Number of keys, which are visited `near` at a time.
        near: Keys per near tile.
        block: Queries per block.
        chunk: Labels per chunk.
    """
    return round_up(round_up(length, near) + block - 1 + chunk - 1, chunk)


def keys_in_windows(sizes: Sizes) -> int:
    """Return an upper bound of the number of keys that all queries of a sequence attend to together."""
    if sizes.window_left is None or (sizes.window_right is None and not sizes.is_causal):
        return sizes.keys
    right = 0 if sizes.is_causal or sizes.window_right is None else sizes.window_right
    return min(sizes.keys, sizes.queries + sizes.chunk - 1 + sizes.window_left + right)


def round_up(number: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-number // step) * step


def pair_options(sizes: Sizes) -> PairOptions:
    """Return the options of a call, without its tensors.

    Distances start … stop are in the clipping range, whose labels begin at row `shift` of the tables. If the edges have
    separate rows, the range lies between them. In causal attention no key is after it.
    """
    edges = sizes.clips and sizes.table_rows is not None
    if sizes.table_rows is None:
        start = 1
        stop = 1
        shift = 0
    elif not sizes.clips:
        start = -sizes.left
        stop = sizes.right + 1
        shift = 0
    else:
        start = 1 - sizes.left
        shift = 1
        stop = max(sizes.right + sizes.is_causal, start)
    labels = stop - start
    if sizes.has_relations and sizes.table_rows is not None:
        labels = sizes.table_rows
    after = edges and not sizes.is_causal
    window_right = None if sizes.is_causal else sizes.window_right  # such a window ends after the query
    chunk = chunk_size(labels + after, sizes.generation, sizes.dtype, sizes.padded_dim)
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
        window_left=sizes.window_left,
        window_right=window_right,
        chunk_size=sizes.chunk if sizes.has_window and sizes.chunk > 1 else None,
        keep_threshold=keep_threshold(sizes.dropout_p),
        keep_scale=keep_scale(sizes.dropout_p),
        GROUP=constant(sizes.heads // sizes.key_heads),
        CHUNK=constant(chunk),
        ONE_CHUNK=constant(labels + after <= chunk),
        BEFORE=constant(edges),
        AFTER=constant(after),
        CAUSAL=constant(sizes.is_causal),
        WINDOW=constant(sizes.has_window),
        PRECISION=constant(sizes.precision),
    )


@cache
def constant(value: int | str) -> constexpr:
    """Return a compile-time constant of a kernel.

    Booleans become 0 and 1, which `cache` does not distinguish from them: a stride of 1 that came back as True would be
    an integer of one bit.
    """
    return constexpr(int(value) if isinstance(value, bool) else value)


@cache
def dims(dim: int) -> tuple[constexpr, constexpr]:
    """Return a head dimension and its padded width as constants."""
    return constant(dim), constant(padded(dim))
