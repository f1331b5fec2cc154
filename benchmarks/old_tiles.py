"""The Triton kernels' tiles as they were at commit bf1abb3, chosen by registers and spills alone: a method to be timed
beside those of today."""

import torch

from relattn.backends.triton.configs import Config
from relattn.backends.triton.plan import Sizes, padded
from relattn.backends.triton.plan import tiles_of as tiles_of_today

Numbers = tuple[int, int, int, int, int]  # rows, cols, near, warps, stages
Tiles = dict[tuple[int, int], dict[str, Numbers]]  # by bytes of a number, and by head dim, at most

SMALL: Numbers = (16, 16, 16, 8, 1)

HOPPER: Tiles = {
    (2, 64): {
        "forward": (128, 64, 32, 8, 2),
        "backward_query": (64, 64, 32, 8, 2),
        "backward_key": (64, 64, 16, 8, 2),
        "whole": (128, 32, 16, 8, 1),
    },
    (2, 128): {
        "forward": (64, 64, 32, 8, 2),
        "backward_query": (64, 32, 16, 8, 1),
        "backward_key": (64, 32, 16, 8, 2),
        "whole": SMALL,
    },
    (4, 64): {
        "forward": (32, 32, 16, 8, 1),
        "backward_query": SMALL,
        "backward_key": (64, 32, 16, 8, 2),
        "whole": SMALL,
    },
}
BLACKWELL: Tiles = HOPPER | {(2, 64): HOPPER[2, 64] | {"backward_key": (64, 32, 16, 8, 2)}}
AMPERE: Tiles = {
    (2, 64): {
        "forward": (64, 64, 32, 8, 2),
        "backward_query": (64, 32, 16, 8, 2),
        "backward_key": (64, 64, 16, 4, 2),
        "whole": (32, 32, 16, 8, 1),
    },
    (2, 128): {
        "forward": (32, 32, 16, 8, 1),
        "backward_query": SMALL,
        "backward_key": (64, 32, 16, 8, 2),
        "whole": SMALL,
    },
    (4, 64): {
        "forward": (32, 32, 16, 8, 1),
        "backward_query": SMALL,
        "backward_key": SMALL,
        "whole": SMALL,
    },
}
KERNELS = ("forward", "backward_query", "backward_key", "whole")


def tiles_of(kernel: str, sizes: Sizes) -> Config:
    """In the place of `plan.tiles_of`, which has the tiles of kernels that were not there then."""
    if kernel not in KERNELS:
        return tiles_of_today(kernel, sizes)
    tiles = config(kernel, sizes.device, sizes.dtype, max(padded(sizes.dim), padded(sizes.value_dim)))
    rows, cols = min(tiles.rows, padded(sizes.queries)), min(tiles.cols, padded(sizes.keys))
    return tiles._replace(rows=rows, cols=cols, near=max(16, min(tiles.near, rows, cols)))


def config(kernel: str, device: torch.device, kind: torch.dtype, dim: int) -> Config:
    generation = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    for (size, most), tiles in {8: AMPERE, 9: HOPPER}.get(generation, BLACKWELL).items():
        if kind.itemsize == size and dim <= most:
            return Config(*tiles[kernel])
    return Config(*SMALL)
