"""Relative positions: the only place where j − i becomes a row of a table.

Query row r of a call has position i = query_offset + r on the key axis; key row j has position j. The label of a pair
is clip(j − i, −left, right) + left, so row 0 of a table means "left or more to the left", and −1 means that the pair
has no relative term. This is section 3.2 of the paper, with its sign: key position minus query position.
"""

from __future__ import annotations

import torch
from torch import Tensor


def query_positions(queries: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Return the positions i of the queries: (queries,), or (batch, queries) for an offset per sequence."""
    rows = torch.arange(queries, device=device)
    return rows + (offset[:, None] if isinstance(offset, Tensor) else offset)


def distances(queries: int, keys: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Return j − i of every pair: (queries, keys), or (batch, queries, keys) for an offset per sequence."""
    return torch.arange(keys, device=device) - query_positions(queries, offset, device)[..., None]


def labels(distance: Tensor, left: int, right: int, *, clips: bool) -> Tensor:
    """Return the table row of each distance, in [0, left + right], in a tensor of the same shape.

    Distances beyond the clipping range get the row of the edge if `clips`, else −1.
    """
    label = distance.clamp(-left, right) + left
    if not clips:
        label = label.masked_fill((distance < -left) | (distance > right), -1)
    return label


def farthest_pairs(
    queries: int, keys: int, offsets: tuple[int, int] | None, *, is_causal: bool
) -> tuple[int, int] | None:
    """Return the largest distances to the left and to the right of any pair of a call that may attend.

    Args:
        queries: Number of queries.
        keys: Number of keys.
        offsets: Least and largest position of a first query; None if unknown, as while tracing.
        is_causal: Whether keys to the right are never attended to.

    Returns:
        Two numbers >= 0, or None if `offsets` is.
    """
    if offsets is None:
        return None
    least, most = offsets
    return max(0, queries - 1 + most), 0 if is_causal else max(0, keys - 1 - least)


def reached_range(
    left: int, right: int, farthest: tuple[int, int] | None, window_left: int | None, window_right: int | None,
    chunk: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the part of a clipping range (left, right) that pairs which attend reach; it contains distance 0."""
    if farthest is not None:
        left = min(left, farthest[0])
        right = min(right, farthest[1])
    if window_left is not None:
        left = min(left, window_left + chunk - 1)
    return left, right if window_right is None else min(right, window_right)


def is_valid(positions: int, lengths: Tensor) -> Tensor:
    """Return which positions of right-padded sequences are not padding: (batch, positions), bool."""
    return torch.arange(positions, device=lengths.device) < lengths[:, None]
