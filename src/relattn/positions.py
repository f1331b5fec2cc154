"""Relative positions: the one place where j − i becomes a row of a table, and where a pair may attend.

Query row r of a call stands at position i = query_offset + r on the key axis; key row j stands at j. The label of
a pair is clip(j − i, −left, right) + left, so that row 0 of a table means "left or more to the left", and −1 means
that the pair has no relative term. Section 3.2 of the paper, with its sign: key position minus query position.
"""

import torch
from torch import Tensor

from relattn.call import Beyond, Call


def query_positions(queries: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Positions i of the queries: (queries,), or (batch, queries) where offsets are ragged."""
    rows = torch.arange(queries, device=device)
    return rows + (offset[:, None] if isinstance(offset, Tensor) else offset)


def distances(queries: int, keys: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """j − i of every pair: (queries, keys), or (batch, queries, keys) where offsets are ragged."""
    return torch.arange(keys, device=device) - query_positions(queries, offset, device)[..., None]


def labels(distance: Tensor, left: int, right: int, beyond: Beyond) -> Tensor:
    """The table row of each distance, in [0, left + right]; outside the window the edge's, or −1 under "zero"."""
    label = distance.clamp(-left, right) + left
    if beyond == "zero":
        label = label.masked_fill((distance < -left) | (distance > right), -1)
    return label


def visible(call: Call) -> Tensor | None:
    """The pairs that may attend, bool, broadcastable to (batch, heads, queries, keys); None where all may.

    Rows of padding queries (own position at or past the sequence's length) are False throughout.
    """
    queries, keys, device = call.query.shape[2], call.key.shape[2], call.query.device
    parts = [] if call.mask is None else [call.mask[(None,) * (4 - call.mask.dim())]]
    if call.is_causal:
        causal = distances(queries, keys, call.query_offset, device) <= 0
        parts.append(causal[:, None] if causal.dim() == 3 else causal[None, None])
    if call.key_lengths is not None:
        lengths = call.key_lengths[:, None, None, None]
        parts.append(torch.arange(keys, device=device) < lengths)
        parts.append(live_queries(call))
    if not parts:
        return None
    together = parts[0]
    for part in parts[1:]:
        together = together & part
    return together


def live_queries(call: Call) -> Tensor:
    """The queries that are not padding under `key_lengths`: (batch, 1, queries, 1)."""
    assert call.key_lengths is not None
    position = query_positions(call.query.shape[2], call.query_offset, call.query.device)
    return (position < call.key_lengths[:, None])[:, None, :, None]
