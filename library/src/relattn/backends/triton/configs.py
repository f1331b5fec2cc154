"""Tiles, warps and stages of each kernel, by generation of GPU and by head dimension.

Those of Hopper for 16-bit types and head dimensions to 64 are the fastest of about ten candidates per kernel on an H200
(`benchmarks/results/tiles-gpu.csv`). The others have not been timed. They were chosen by the machine code of the
kernels' loops (`python -m benchmarks.compiled`), on every supported version of Triton, by these criteria:

1. No product on the tensor cores waits for another: the assembler prints no remark C75…. No kernel is a trap.
2. Redundancy is about 1: no pair is computed twice. Products need 16 rows per warp: 8 warps for 128 rows, 4 for 64.
3. The loop over far tiles has no register spills. Spills outside of loops cost almost nothing, and in near tiles
   little.
4. Among the remaining ones, the fewest instructions per pair.
"""

from typing import NamedTuple

import torch


class TileConfig(NamedTuple):
    """Tile sizes and launch options of a kernel."""

    rows: int  # queries per tile
    cols: int  # keys per tile
    near: int  # keys per near tile, or queries in `backward_key`
    warps: int
    stages: int  # of software pipelining: loads that a loop has in flight


Tiles = dict[tuple[int, int], dict[str, TileConfig]]  # by bytes per element and by the largest head dimension

SMALL = TileConfig(16, 16, 16, 4, 1)

HOPPER: Tiles = {  # `whole` has as many rows as there are queries; its entry is the maximum
    (2, 64): {
        "forward": TileConfig(64, 64, 32, 4, 3),
        "backward_query": TileConfig(64, 64, 32, 4, 3),
        "backward_key": TileConfig(64, 64, 32, 4, 3),
        "whole": TileConfig(128, 64, 32, 8, 1),
    },
    (2, 128): {
        "forward": TileConfig(128, 64, 32, 8, 3),
        "backward_query": TileConfig(128, 64, 32, 8, 2),
        "backward_key": TileConfig(64, 128, 16, 8, 2),
        "whole": TileConfig(128, 64, 16, 8, 1),
    },
    (2, 256): {
        "forward": TileConfig(128, 32, 16, 8, 1),
        "backward_query": TileConfig(128, 32, 16, 8, 1),
        "backward_key": SMALL,
        "whole": SMALL,
    },
    (4, 64): {
        "forward": TileConfig(128, 32, 16, 8, 1),
        "backward_query": TileConfig(64, 32, 16, 4, 1),
        "backward_key": TileConfig(32, 128, 16, 8, 1),
        "whole": TileConfig(64, 32, 16, 4, 1),
    },
}
BLACKWELL: Tiles = {  # not timed
    (2, 64): {
        "forward": TileConfig(128, 128, 32, 8, 2),
        "backward_query": TileConfig(128, 64, 32, 8, 2),
        "backward_key": TileConfig(64, 128, 32, 8, 2),
        "whole": TileConfig(128, 64, 32, 8, 1),
    },
    (2, 128): {**HOPPER[2, 128], "forward": TileConfig(128, 128, 32, 8, 2)},
    (2, 256): HOPPER[2, 256],  # the next one is smaller, because the compiler turns that of Hopper into a trap
    (4, 64): {**HOPPER[4, 64], "backward_key": TileConfig(32, 32, 16, 4, 1)},
}
SEVERAL_CHUNKS: Tiles = {  # on Hopper, if labels are in several chunks
    (2, 64): {
        "forward": TileConfig(64, 64, 64, 4, 3),
        "backward_query": TileConfig(64, 64, 64, 4, 2),
    },
}
REL_QUERY: Tiles = {  # on both, if a rel_query needs too many registers for the tiles above
    (2, 256): {"backward_query": TileConfig(32, 32, 16, 4, 1)},
    (4, 64): {"backward_query": TileConfig(32, 32, 16, 4, 1)},
}
POS_QUERY: Tiles = {  # on both, for the same reason; (2, 64) on Blackwell only
    (2, 64): {"backward_key": TileConfig(64, 128, 16, 8, 2)},
    (2, 128): {"backward_key": TileConfig(64, 64, 16, 4, 1)},
    (4, 64): {"backward_key": TileConfig(32, 64, 16, 4, 1)},  # wider tiles need more shared memory than there is
}
AMPERE: Tiles = {  # also for Ada and unknown generations, since these need the least shared memory
    (2, 64): {
        "forward": TileConfig(128, 64, 32, 8, 2),
        "backward_query": TileConfig(128, 64, 16, 8, 2),
        "backward_key": TileConfig(32, 128, 16, 8, 2),
        "whole": TileConfig(64, 64, 32, 4, 1),
    },
    (2, 128): {
        "forward": TileConfig(128, 64, 16, 8, 2),
        "backward_query": TileConfig(64, 32, 32, 4, 1),
        "backward_key": TileConfig(32, 64, 32, 4, 1),
        "whole": SMALL,
    },
    (4, 64): {
        "forward": TileConfig(64, 32, 16, 4, 1),
        "backward_query": TileConfig(32, 32, 16, 4, 1),
        "backward_key": TileConfig(32, 32, 16, 4, 1),
        "whole": TileConfig(32, 32, 16, 4, 1),
    },
}


def config(
    kernel: str,
    generation: int,
    dtype: torch.dtype,
    dim: int,
    has_rel_query: bool,
    has_pos_query: bool,
    has_one_chunk: bool,
) -> TileConfig:
    """Return the configuration of a kernel.

    Args:
        kernel: "forward", "backward_query", "backward_key" or "whole".
        generation: Major compute capability.
        dtype: Of the inputs.
        dim: The largest padded head dimension of keys, values and rel_query.
        has_rel_query: Whether the call has a rel_query.
        has_pos_query: Whether the call has a pos_query.
        has_one_chunk: Whether one product has all labels.
    """
    table = {9: HOPPER, 10: BLACKWELL}.get(generation, AMPERE)
    for sizes, tiles in table.items():
        if dtype.itemsize == sizes[0] and dim <= sizes[1]:
            for option, smaller in (
                (has_pos_query and not (generation == 9 and sizes == (2, 64)), POS_QUERY),
                (has_rel_query, REL_QUERY),
                (not has_one_chunk and generation == 9, SEVERAL_CHUNKS),
            ):
                if option and table is not AMPERE:
                    tiles = {**tiles, **smaller.get(sizes, {})}
            return tiles[kernel]
    return SMALL


def generation_of(device: torch.device) -> int:
    """Return the major compute capability of a GPU, and that of Hopper for other devices."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def padded(size: int) -> int:
    """Return the power of two, at least 16, that a dimension is padded to.

    It is found by comparisons, so that a graph of `torch.compile` with a symbolic size serves every size that is padded
    to the same width.
    """
    width = 16
    while width < size:
        width *= 2
    return width


def chunk_size(labels: int, generation: int, dtype: torch.dtype, dim: int) -> int:
    """Return the number of labels per matrix product.

    With more than 32 labels it is 16, since 32 spills registers, except with the smaller tiles that Hopper has for
    16-bit types and head dimensions to 64.
    """
    if labels > 32:
        return 32 if generation == 9 and dtype.itemsize == 2 and dim <= 64 else 16
    return 32 if labels > 16 else 16
