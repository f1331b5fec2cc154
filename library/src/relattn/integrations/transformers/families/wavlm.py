"""WavLM: a bias per bucket of distances, multiplied with a gate per query and head.

    e_ij = q_i · k_j · scale + g_i · b_bucket(j−i)        z_i = Σ_j softmax_j(e_ij) v_j

b has one number per head and bucket. All distances of `max_distance` or more share one bucket per direction. g is
computed from the hidden states of the query.

Arguments of `relative_attention`: g / scale is `rel_query`, and b by distance is `rel_key`. Both have one dimension.
Clipping at `max_distance` is exact because of the shared bucket.

The first layer has the buckets and passes its bias to the others. The model's own code passes n × n numbers per head
and sequence, and multiplies them with the gate in each layer. The patched layers pass the table, (heads, 2 ·
max_distance + 1, 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    project,
    split_heads,
)
from relattn.integrations.transformers.family import SMALL, SMALL_CONVOLUTIONS, Family, labels, sound_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, length), 1 for valid positions
    position_bias: Tensor | None = None,  # (heads, 2 · max_distance + 1, 1), from the first layer
    index: int = 0,
    **kwargs: Any,
) -> Any:
    """Compute the self-attention of one layer: (batch, length, dim), no weights, and the table for the next layer."""
    # the bias of the model's own code is (batch · heads, length, length)
    if position_bias is not None and position_bias.shape[1:] != (2 * module.max_distance + 1, 1):
        return own()
    table = bias_table(module, hidden_states.device) if position_bias is None else position_bias
    query, key, value = project(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    mask = None if attention_mask is None else (attention_mask == 1)[:, None, None]
    options = mask_options(mask, len(hidden_states))
    assert options is not None  # a boolean mask is never a bias
    attended = relative_attention(
        query,
        key,
        value,
        table.to(query.dtype),
        rel_query=gate(module, hidden_states) / module.scaling,
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **options,
    )
    return module.out_proj(join_heads(attended)), None, table


def bias_table(module: Any, device: torch.device) -> Tensor:
    """Return the bias by distance j − i, from −max_distance up: (heads, 2 · max_distance + 1, 1)."""
    distance = torch.arange(-module.max_distance, module.max_distance + 1, device=device)
    return module.rel_attn_embed(module._relative_positions_bucket(distance)).T[..., None]


def gate(module: Any, hidden_states: Tensor) -> Tensor:
    """Return the gate g: (batch, heads, length, 1)."""
    logits = module.gru_rel_pos_linear(split_heads(hidden_states, module.head_dim))  # (batch, heads, length, 8)
    a, b = logits.unflatten(-1, (2, 4)).sum(-1).sigmoid().chunk(2, dim=-1)
    return a * (b * module.gru_rel_pos_const - 1.0) + 2.0


MODULE = "wavlm.modeling_wavlm"
FAMILIES = (
    Family(
        "WavLMForCTC",
        SMALL | SMALL_CONVOLUTIONS | {"vocab_size": 30, "num_buckets": 20, "max_bucket_distance": 37},
        lambda: sound_inputs("input_values", 331) | labels(),
        (ForwardPatch(f"{MODULE}.WavLMAttention", attention),),
        since="5.16",
        unit=f"{MODULE}.WavLMModel",  # it has one of two classes of encoders
    ),
)
