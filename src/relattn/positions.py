"""Relative positions: the only place where j − i becomes a row of a table, and where pairs may attend.

Query row r of a call has position i = query_offset + r on the key axis; key row j has position j. The label of a pair
is clip(j − i, −left, right) + left, so row 0 of a table means "left or more to the left", and −1 means that the pair
has no relative term. This is section 3.2 of the paper, with its sign: key position minus query position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from relattn.call import Call


def query_positions(queries: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Return the positions i of the queries: (queries,), or (batch, queries) for an offset per sequence."""
    rows = torch.arange(queries, device=device)
    return rows + (offset[:, None] if isinstance(offset, Tensor) else offset)


def distances(queries: int, keys: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Return j − i of every pair: (queries, keys), or (batch, queries, keys) for an offset per sequence."""
    return torch.arange(keys, device=device) - query_positions(queries, offset, device)[..., None]


def labels(distance: Tensor, left: int, right: int, *, clips: bool) -> Tensor:
    """Return the table row of each distance, in [0, left + right].

    Distances beyond the clipping range get the row of the edge if `clips`, else −1.
    """
    label = distance.clamp(-left, right) + left
    if not clips:
        label = label.masked_fill((distance < -left) | (distance > right), -1)
    return label


def labels_of_pairs(call: Call) -> Tensor:
    """Return the labels of a call's pairs, int64: (batch or 1, heads or 1, queries, keys)."""
    if call.relations is not None:
        return call.relations.long()
    distance = distances(call.query.shape[2], call.key.shape[2], call.offset, call.query.device)
    label = labels(distance, call.left, call.right, clips=call.clips)
    return label[:, None] if label.dim() == 3 else label[None, None]


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
        left, right = min(left, farthest[0]), min(right, farthest[1])
    if window_left is not None:
        left = min(left, window_left + chunk - 1)
    return left, right if window_right is None else min(right, window_right)


def visible(call: Call) -> Tensor | None:
    """Return which pairs may attend, bool, broadcastable to (batch, heads, queries, keys); None if all may.

    Rows of padding queries, those from `query_lengths` on, are False throughout.
    """
    queries, keys, device = call.query.shape[2], call.key.shape[2], call.query.device
    masks = [] if call.mask is None else [call.mask]
    if call.bias is not None:
        masks.append(call.bias != -torch.inf)
    if call.is_causal:
        causal = distances(queries, keys, call.offset, device) <= 0
        masks.append(causal[:, None] if causal.dim() == 3 else causal[None, None])
    if call.window_left is not None or call.window_right is not None:
        window = is_in_window(call)
        masks.append(window[:, None] if window.dim() == 3 else window[None, None])
    if call.key_lengths is not None:
        masks.append(is_valid(keys, call.key_lengths)[:, None, None])
    if call.query_lengths is not None:
        masks.append(is_valid(queries, call.query_lengths)[:, None, :, None])
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = combined & mask
    return combined


def is_in_window(call: Call) -> Tensor:
    """Return which pairs are in the window: (queries, keys), or (batch, queries, keys) for an offset per sequence."""
    position = query_positions(call.query.shape[2], call.offset, call.query.device)
    distance = torch.arange(call.key.shape[2], device=position.device) - (position - position % call.chunk)[..., None]
    inside = torch.ones_like(distance, dtype=torch.bool)
    if call.window_left is not None:
        inside &= distance >= -call.window_left
    if call.window_right is not None:
        inside &= distance <= call.window_right
    return inside


def is_valid(positions: int, lengths: Tensor) -> Tensor:
    """Return which positions of right-padded sequences are no padding: (batch, positions), bool."""
    return torch.arange(positions, device=lengths.device) < lengths[:, None]


def without_padding(call: Call) -> Call:
    """Return the call with zeros in its padding, so that NaN or infinity there cannot reach a product."""
    if call.key_lengths is not None:
        padding = ~is_valid(call.key.shape[2], call.key_lengths)[:, None, :, None]
        call = call._replace(key=call.key.masked_fill(padding, 0.0), value=call.value.masked_fill(padding, 0.0))
    if call.query_lengths is not None:
        padding = ~is_valid(call.query.shape[2], call.query_lengths)[:, None, :, None]
        rel_query = None if call.rel_query is None else call.rel_query.masked_fill(padding, 0.0)
        call = call._replace(query=call.query.masked_fill(padding, 0.0), rel_query=rel_query)
    return call
