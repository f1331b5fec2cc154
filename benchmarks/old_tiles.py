"""The Triton kernels with their tiles as of commit bf1abb3, chosen by registers and spills alone: a method to be timed
beside today's."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.peers import Case
from relattn.backends import custom_ops
from relattn.backends.triton.configs import Config, generation_of, padded
from relattn.backends.triton.operators import run_backward, run_forward
from relattn.backends.triton.plan import Sizes
from relattn.backends.triton.row_stats import FORWARD_STATS
from relattn.call import Call
from relattn.positions import reached_range

Numbers = tuple[int, int, int, int, int]  # rows, cols, near, warps, stages
Tiles = dict[tuple[int, int], dict[str, Numbers]]  # by bytes per number and by the largest head dim

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


def tiles_of(kernel: str, sizes: Sizes) -> Config:
    tiles = config(kernel, generation_of(sizes.device), sizes.dtype, max(padded(sizes.dim), padded(sizes.value_dim)))
    rows, cols = min(tiles.rows, padded(sizes.queries)), min(tiles.cols, padded(sizes.keys))
    return tiles._replace(rows=rows, cols=cols, near=max(16, min(tiles.near, rows, cols)))


def config(kernel: str, generation: int, dtype: torch.dtype, dim: int) -> Config:
    for (size, most), tiles in {8: AMPERE, 9: HOPPER}.get(generation, BLACKWELL).items():
        if dtype.itemsize == size and dim <= most:
            return Config(*tiles[kernel])
    return Config(*SMALL)


forward, backward = partial(run_forward, tiles_of=tiles_of), partial(run_backward, tiles_of=tiles_of)
operator, *_ = custom_ops.register("triton_old_tiles", forward, backward, FORWARD_STATS.value)


def attend(case: Case, query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor) -> Tensor:
    left, right = reached_range(case.left, case.right, query.shape[2], key.shape[2], (0, 0), is_causal=case.is_causal)
    rows = slice(case.left - left, case.left + right + 1)
    call = Call(
        query, key, value, rel_key[..., rows, :], rel_value[..., rows, :],
        left=left, right=right, is_causal=case.is_causal, scale=case.dim**-0.5,
    )  # fmt: skip
    return custom_ops.attend(call, operator, return_lse=False)[0]
