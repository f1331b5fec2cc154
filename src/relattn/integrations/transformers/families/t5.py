"""T5's encoder and its kin: mT5, Pop2Piano, Switch Transformers, UMT5.

a_ij = softmax_j (q_i · k_j + b(bucket(j − i))), unscaled, with a number for each head and bucket. All distances from
`max_distance` on are in one bucket, so a table clipped there is exact: a relative query of one dim, which is 1.

The first layer of a stack has the buckets and hands what it made of them to the others: n × n numbers a head in its own
code, here (heads, labels, 1). Attention in a decoder, and to a source, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.calls import joined, projected, seen, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,  # (heads, labels, 1), as the first layer returned it
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Self-attention of a layer, and the table for the next one."""
    where = seen(mask, hidden_states.shape[1])
    biased = module.has_relative_attention_bias if position_bias is None else position_bias.dim() == 3
    if where is None or not biased or weights_wanted(module, kwargs.get("output_attentions")):
        return own(module, hidden_states, mask=mask, position_bias=position_bias, **kwargs)
    table = buckets(module) if position_bias is None else position_bias
    return module.o(attended(module, hidden_states, table, where)), table, None


def attention_of_umt5(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer, each of which has its own buckets."""
    where = seen(attention_mask, hidden_states.shape[1])
    if where is None or weights_wanted(module, kwargs.get("output_attentions")):
        return own(module, hidden_states, attention_mask=attention_mask, **kwargs)
    return module.o(attended(module, hidden_states, buckets(module), where)), None


def buckets(module: Any) -> Tensor:
    """(heads, 2 · max_distance + 1, 1): the numbers of each distance, those of keys farthest to the left first."""
    farthest = module.relative_attention_max_distance
    # of one query, at `farthest`, and 2 · farthest + 1 keys
    bias = module.compute_bias(1, 2 * farthest + 1, past_seen_tokens=farthest)
    return bias[0, :, 0, :, None]


def attended(module: Any, hidden_states: Tensor, table: Tensor, where: dict[str, Any]) -> Tensor:
    """(batch, length, dim) -> (batch, length, heads · head_dim)"""
    query, key, value = projected(hidden_states, module.key_value_proj_dim, module.q, module.k, module.v)
    return joined(
        relative_attention(
            query,
            key,
            value,
            table.to(query.dtype),
            rel_query=torch.ones_like(query[..., :1]),
            scale=module.scaling,
            dropout_p=module.dropout if module.training else 0.0,
            **where,
        )
    )


def why_not(module: Any) -> str | None:
    """Why a module keeps its own attention: all that attends to a source or has a cache is in a decoder."""
    return "in a decoder" if module.is_decoder else None


PATCHES = (
    *(
        ForwardPatch(f"{name}.modeling_{name}.{kind}Attention", attention, why_not)
        for name, kind in (
            ("t5", "T5"),
            ("mt5", "MT5"),
            ("pop2piano", "Pop2Piano"),
            ("switch_transformers", "SwitchTransformers"),
        )
    ),
    ForwardPatch("umt5.modeling_umt5.UMT5Attention", attention_of_umt5, why_not),
)
