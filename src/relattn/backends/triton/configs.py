"""Tiles, warps and stages of each kernel, by generation of GPU and by size of a head.

None has been timed on a GPU. They are chosen by the machine code of the kernels' loops (`python -m
benchmarks.compiled`), on every version of Triton that is supported:

1. No product on the matrix units waits for another: the assembler makes no remark C75…. No kernel is a trap.
2. Redundancy is about 1: no pair is computed twice. Products want 16 rows per warp: 8 warps for 128 rows, 4 for 64.
3. The loop through far tiles loads and stores no spilled registers. Outside of loops spills cost next to nothing, and
   in near tiles little.
4. Of what is left, the fewest instructions per pair.
"""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    rows: int  # queries of a tile
    cols: int  # keys of a tile
    near: int  # keys of a near tile, or queries of one in `backward_key`
    warps: int
    stages: int  # of loads that a loop has in flight


Tiles = dict[tuple[int, int], dict[str, Config]]  # by bytes per number and by the largest head dim

SMALL = Config(16, 16, 16, 4, 1)

HOPPER: Tiles = {  # `whole` has as many rows as there are queries: here are the most it is taken for
    (2, 64): {
        "forward": Config(128, 128, 32, 8, 2),
        "backward_query": Config(128, 64, 32, 8, 2),
        "backward_key": Config(64, 128, 32, 8, 2),
        "whole": Config(128, 64, 32, 8, 1),
    },
    (2, 128): {
        "forward": Config(128, 128, 32, 8, 2),
        "backward_query": Config(128, 64, 32, 8, 2),
        "backward_key": Config(64, 128, 16, 8, 2),
        "whole": Config(128, 64, 16, 8, 1),
    },
    (2, 256): {
        "forward": Config(128, 32, 16, 8, 1),
        "backward_query": Config(128, 32, 16, 8, 1),
        "backward_key": SMALL,
        "whole": SMALL,
    },
    (4, 64): {
        "forward": Config(128, 32, 16, 8, 1),
        "backward_query": Config(64, 32, 16, 4, 1),
        "backward_key": Config(32, 128, 16, 8, 1),
        "whole": Config(64, 32, 16, 4, 1),
    },
}
BLACKWELL: Tiles = {  # as Hopper's, but for one of which the compiler makes a trap
    **HOPPER,
    (4, 64): {**HOPPER[4, 64], "backward_key": Config(32, 32, 16, 4, 1)},
}
REL_QUERY: Tiles = {  # on both, where a rel_query is too much for the tiles above
    (2, 256): {"backward_query": Config(32, 32, 16, 4, 1)},
    (4, 64): {"backward_query": Config(32, 32, 16, 4, 1)},
}
AMPERE: Tiles = {  # and Ada, and unknown generations: these need the least shared memory
    (2, 64): {
        "forward": Config(128, 64, 32, 8, 2),
        "backward_query": Config(128, 64, 16, 8, 2),
        "backward_key": Config(32, 128, 16, 8, 2),
        "whole": Config(64, 64, 32, 4, 1),
    },
    (2, 128): {
        "forward": Config(128, 64, 16, 8, 2),
        "backward_query": Config(64, 32, 32, 4, 1),
        "backward_key": Config(32, 64, 32, 4, 1),
        "whole": SMALL,
    },
    (4, 64): {
        "forward": Config(64, 32, 16, 4, 1),
        "backward_query": Config(32, 32, 16, 4, 1),
        "backward_key": Config(32, 32, 16, 4, 1),
        "whole": Config(32, 32, 16, 4, 1),
    },
}


def config(kernel: str, generation: int, dtype: torch.dtype, dim: int, has_rel_query: bool = False) -> Config:
    """For heads of `dim`, the largest of those of keys, values and a rel_query, padded."""
    table = {9: HOPPER, 10: BLACKWELL}.get(generation, AMPERE)
    for sizes, tiles in table.items():
        if dtype.itemsize == sizes[0] and dim <= sizes[1]:
            instead = REL_QUERY.get(sizes, {}) if has_rel_query and table is not AMPERE else {}
            return instead.get(kernel, tiles[kernel])
    return SMALL


def generation_of(device: torch.device) -> int:
    """The major number of a GPU's compute capability; Hopper's for what is no GPU."""
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


def labels_at_once(labels: int) -> int:
    """Rows of a table that a product takes. Windows wider than 32 are worked off in 16s, since 32s would spill."""
    return 32 if 16 < labels <= 32 else 16
