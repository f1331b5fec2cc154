"""What models of transformers hand to their attention, as what the operator takes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import _active_collector

from relattn import relative_attention

_log = logging.getLogger(__name__)
_told: set[str] = set()


def weights_wanted(module: nn.Module, asked: bool | None = False) -> bool:
    """Whether a call wants attention weights, which the operator has not: the model's own code is to answer.

    Args:
        module: of the call.
        asked: the call's own argument for it, where it has one.
    """
    collected = _active_collector.get()
    wanted = bool(asked) or (collected is not None and any("attentions" in name for name in collected))
    kind = type(module)
    if wanted and kind.__module__ not in _told:  # once for a kind of model
        _told.add(kind.__module__)
        _log.warning("%s: attention weights are wanted, so the model's own code computes them", kind.__name__)
    return wanted


def heads(x: Tensor, head_dim: int) -> Tensor:
    """(batch, length, heads · head_dim) -> (batch, heads, length, head_dim)"""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def projected(x: Tensor, head_dim: int, *maps: nn.Module) -> tuple[Tensor, ...]:
    """(batch, length, dim) by each of some maps -> (batch, heads, length, head_dim) each"""
    return tuple(heads(each(x), head_dim) for each in maps)


def joined(x: Tensor) -> Tensor:
    """(batch, heads, length, head_dim) -> (batch, length, heads · head_dim)"""
    return x.transpose(1, 2).flatten(2)


def seen(mask: Tensor | None, queries: int) -> dict[str, Any] | None:
    """Options that say what is attended to, as a mask of the model says; None where it adds numbers to scores.

    Args:
        mask: (batch or 1, heads or 1, queries or 1, keys), True for what is attended to, or 0 for that and large
            negative numbers for the rest.
        queries: how many there are.
    """
    if mask is None:
        return {}
    if mask.dtype == torch.bool:
        allowed = mask
    else:
        allowed = mask == 0
        if bool((~allowed & (mask > torch.finfo(mask.dtype).min / 4)).any()):
            return None
    row = allowed[:, :1, :1]  # (batch, 1, 1, keys)
    if not bool((allowed == row).all()):
        return {"mask": allowed}
    lengths = row.sum(-1).flatten()
    if not bool((row.squeeze((1, 2)) == (torch.arange(row.shape[-1], device=row.device) < lengths[:, None])).all()):
        return {"mask": row}
    if bool((lengths == row.shape[-1]).all()):
        return {}
    return {"key_lengths": lengths, "query_lengths": torch.full_like(lengths, queries)}  # padding queries attend too


def transformer_xl(
    query: Tensor,  # (batch, heads, queries, head_dim), the last of the keys
    key: Tensor,  # (batch, heads or fewer, keys, head_dim)
    value: Tensor,
    *,
    content_bias: Tensor,  # u: (heads, head_dim)
    position_bias: Tensor,  # v: (heads, head_dim)
    positions: Tensor,  # (2 · keys − 1, heads · head_dim), projected; row 0 is for keys farthest to the left
    **options: Any,
) -> Tensor:  # (batch, heads, queries, head_dim)
    """((q_i + u) · k_j + (q_i + v) · R_(i−j)) · scale: one call with a query of its own for the relative term."""
    farthest = key.shape[2] - 1
    table = positions.unflatten(-1, (-1, query.shape[-1])).transpose(0, 1)  # (heads, labels, head_dim)
    return relative_attention(
        query + content_bias[:, None],
        key,
        value,
        table,
        rel_query=query + position_bias[:, None],
        clip=(farthest, farthest),
        **options,
    )
