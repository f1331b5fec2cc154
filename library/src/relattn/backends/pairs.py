"""Pairs of a call, in plain PyTorch: their labels, and which of them may attend."""

import functools
import math

import torch
from torch import Tensor

from relattn import positions
from relattn.call import Call
from relattn.checks import can_read


def labels_of_pairs(call: Call) -> Tensor:
    """Return the labels of a call's pairs, int64: (batch or 1, heads or 1, queries, keys)."""
    if call.relations is not None:
        return call.relations.long()
    distance = positions.distances(call.query.shape[2], call.key.shape[2], call.offset, call.query.device)
    label = positions.labels(distance, call.left, call.right, clips=call.clips)
    return with_heads(label)


def with_heads(x: Tensor) -> Tensor:
    """Return an array of pairs, (queries, keys) or (batch, queries, keys), with four dimensions."""
    return x[:, None] if x.dim() == 3 else x[None, None]


def visible(call: Call) -> Tensor | None:
    """Return which pairs may attend, bool, broadcastable to (batch, heads, queries, keys); None if all may.

    Rows of padding queries, those from `query_lengths` on, are False throughout.
    """
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    device = call.query.device
    masks = [] if call.mask is None else [call.mask]
    if call.bias is not None:
        masks.append(call.bias != -torch.inf)
    if call.is_causal:
        masks.append(with_heads(positions.distances(queries, keys, call.offset, device) <= 0))
    if call.window_left is not None or call.window_right is not None:
        masks.append(with_heads(is_in_window(call)))
    if call.key_lengths is not None:
        masks.append(positions.is_valid(keys, call.key_lengths)[:, None, None])
    if call.query_lengths is not None:
        masks.append(positions.is_valid(queries, call.query_lengths)[:, None, :, None])
    return functools.reduce(torch.logical_and, masks) if masks else None


def is_in_window(call: Call) -> Tensor:
    """Return which pairs are in the window: (queries, keys), or (batch, queries, keys) for an offset per sequence."""
    position = positions.query_positions(call.query.shape[2], call.offset, call.query.device)
    distance = torch.arange(call.key.shape[2], device=position.device) - (position - position % call.chunk)[..., None]
    inside = torch.ones_like(distance, dtype=torch.bool)
    if call.window_left is not None:
        inside &= distance >= -call.window_left
    if call.window_right is not None:
        inside &= distance <= call.window_right
    return inside


def may_skip_rows(call: Call) -> bool:
    """Return whether there may be rows of tables that no pair takes; `Call` has cut off those beyond all distances."""
    hiding = call.relations, call.key_lengths, call.query_lengths, call.query_offsets, call.mask, call.bias
    return call.chunk > 1 or any(x is not None for x in hiding)


def is_finite(table: Tensor) -> bool:
    """Return whether a table has finite numbers only; True if its memory was freed."""
    return table.data_ptr() == 0 or math.isfinite(table.detach().sum())


def without_unread_rows(call: Call) -> Call:
    """Return the call with zeros for NaN and infinity in the rows of tables that no pair takes.

    Sums over labels multiply these rows by zero.
    """
    sample = call
    tables = call.tables()
    if not may_skip_rows(call) or all(not can_read(table) or is_finite(table) for table in tables.values()):
        return call
    if call.cu_seqlens is not None:  # shorter sequences have the same pairs, or fewer
        sample = call._replace(query=call.query[:, :, : call.longest], key=call.key[:, :, : call.longest])
    label = labels_of_pairs(sample)
    shown = visible(sample)
    label = label if shown is None else label.masked_fill(~shown, -1)
    for name, table in tables.items():
        read = torch.zeros(table.shape[-2] + 1, 1, dtype=torch.bool, device=table.device)
        read[label.unique()] = True  # −1 is the last
        tables[name] = table.masked_fill(~read[:-1] & ~table.isfinite(), 0.0)
    return call._replace(**tables)


def without_padding(call: Call) -> Call:
    """Return the call with zeros in its padding, so that NaN or infinity there cannot reach a product."""
    if call.key_lengths is not None:
        padding = ~positions.is_valid(call.key.shape[2], call.key_lengths)[:, None, :, None]
        call = call._replace(key=call.key.masked_fill(padding, 0.0), value=call.value.masked_fill(padding, 0.0))
    if call.query_lengths is not None:
        padding = ~positions.is_valid(call.query.shape[2], call.query_lengths)[:, None, :, None]
        rel_query = None if call.rel_query is None else call.rel_query.masked_fill(padding, 0.0)
        call = call._replace(query=call.query.masked_fill(padding, 0.0), rel_query=rel_query)
    return call
