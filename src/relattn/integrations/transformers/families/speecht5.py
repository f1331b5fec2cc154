"""SpeechT5's encoder: a_ij = softmax_j (q_i · (k_j + w_(i−j)) · s), w clipped to `max_length` positions.

Its own code makes n × n × d numbers of the table, once for all layers; here the layers get the table, the other way
round, for j − i: `max_length` − 1 to the left, `max_length` to the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.calls import joined, projected, seen, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def positions(own: Callable[..., Any], module: Any, hidden_states: Tensor) -> Tensor:
    """(labels, head_dim), the table."""
    weight: Tensor = module.pe_k.weight
    return weight.flip(0)


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    key_value_states: Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,  # (labels, head_dim)
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer of the encoder; the decoder's has no positions and keeps its own."""
    given = key_value_states, past_key_values, attention_mask
    if position_bias is None or position_bias.dim() != 2:
        return own(module, hidden_states, *given, position_bias, output_attentions, **kwargs)
    where, farthest = seen(attention_mask, hidden_states.shape[1]), len(position_bias) // 2
    if where is None or weights_wanted(module, output_attentions):
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        distance = (position - position[:, None]).clamp(1 - farthest, farthest)
        whole = position_bias[distance + farthest - 1]  # (length, length, head_dim)
        return own(module, hidden_states, *given, whole, output_attentions, **kwargs)
    query, key, value = projected(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    attended = relative_attention(
        query,
        key,
        value,
        position_bias.to(query.dtype),
        clip=(farthest - 1, farthest),
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **where,
    )
    return module.out_proj(joined(attended)), None


PATCHES = (
    ForwardPatch("speecht5.modeling_speecht5.SpeechT5RelativePositionalEncoding", positions),
    ForwardPatch("speecht5.modeling_speecht5.SpeechT5Attention", attention),
)
