"""Relative positions: the one place where j − i becomes a row of a table, and where a pair may attend.

Query row r of a call stands at position i = query_offset + r on the key axis; key row j stands at j. The label of
a pair is clip(j − i, −left, right) + left, so that row 0 of a table means "left or more to the left", and −1 means
that the pair has no relative term. Section 3.2 of the paper, with its sign: key position minus query position.
"""

import torch
from torch import Tensor

from relattn.call import Call


def query_positions(queries: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """Positions i of the queries: (queries,), or (batch, queries) where offsets are ragged."""
    rows = torch.arange(queries, device=device)
    return rows + (offset[:, None] if isinstance(offset, Tensor) else offset)


def distances(queries: int, keys: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """j − i of every pair: (queries, keys), or (batch, queries, keys) where offsets are ragged."""
    return torch.arange(keys, device=device) - query_positions(queries, offset, device)[..., None]


def labels(distance: Tensor, left: int, right: int, *, clips: bool) -> Tensor:
    """The table row of each distance, in [0, left + right]; outside the window the edge's, or −1 where none clips."""
    label = distance.clamp(-left, right) + left
    if not clips:
        label = label.masked_fill((distance < -left) | (distance > right), -1)
    return label


def labels_of_pairs(call: Call) -> Tensor:
    """A call's labels, int64: (batch or 1, heads or 1, queries, keys)."""
    if call.relations is not None:
        return call.relations.long()
    distance = distances(call.query.shape[2], call.key.shape[2], call.offset, call.query.device)
    label = labels(distance, call.left, call.right, clips=call.clips)
    return label[:, None] if label.dim() == 3 else label[None, None]


def without_unused_rows(call: Call, offsets: tuple[int, int] | None) -> Call:
    """The call with tables that lack the rows which no pair takes, at the ends; offsets are within those given.

    Distance zero stays in the window.
    """
    left, right = call.left, 0 if call.is_causal else call.right
    if offsets is not None:
        least, most = offsets
        left = min(left, max(0, call.query.shape[2] - 1 + most))
        right = min(right, max(0, call.key.shape[2] - 1 - least))
    if (left, right) == (call.left, call.right):
        return call
    rows = slice(call.left - left, call.left + right + 1)
    rel_key, rel_value = (None if x is None else x[..., rows, :] for x in (call.rel_key, call.rel_value))
    return call._replace(left=left, right=right, rel_key=rel_key, rel_value=rel_value)


def visible(call: Call) -> Tensor | None:
    """The pairs that may attend, bool, broadcastable to (batch, heads, queries, keys); None where all may.

    Rows of padding queries, those from `query_lengths` on, are False throughout.
    """
    queries, keys, device = call.query.shape[2], call.key.shape[2], call.query.device
    parts = [] if call.mask is None else [call.mask]
    if call.is_causal:
        causal = distances(queries, keys, call.offset, device) <= 0
        parts.append(causal[:, None] if causal.dim() == 3 else causal[None, None])
    if call.key_lengths is not None:
        parts.append(torch.arange(keys, device=device) < call.key_lengths[:, None, None, None])
    if call.query_lengths is not None:
        parts.append(torch.arange(queries, device=device)[:, None] < call.query_lengths[:, None, None, None])
    if not parts:
        return None
    together = parts[0]
    for part in parts[1:]:
        together = together & part
    return together
