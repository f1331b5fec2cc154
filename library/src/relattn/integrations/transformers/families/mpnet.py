"""MPNet: a bias per bucket of distances, as in T5, shared by all layers.

    e_ij = q_i · k_j · scale + b_bucket(j−i)        z_i = Σ_j softmax_j(e_ij) v_j

b has one number per head and bucket. All distances of 128 or more share one bucket per direction.

Arguments of `relative_attention`: b by distance is `rel_bias`. Clipping at 128 is exact because of the shared bucket.

The model's own encoder computes n × n numbers per head and sequence and passes them to its layers. The patched encoder
passes the table, (heads, 257).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from relattn import relative_attention
from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    packing_of,
    project,
)
from relattn.integrations.transformers.family import SMALL, Family, masked_text_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch

MAX_DISTANCE = 128  # the default of `relative_position_bucket`, which the encoder does not change


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,  # (heads, 257) from the patched encoder
    **kwargs: Any,
) -> Any:
    """Compute the self-attention of one layer: (batch, length, dim)."""
    if position_bias is None or position_bias.dim() != 2:
        return own()
    options = mask_options(attention_mask, len(hidden_states))
    assert options is not None  # the encoder has checked it
    query, key, value = project(hidden_states, module.attention_head_size, module.q, module.k, module.v)
    attended = relative_attention(
        query,
        key,
        value,
        rel_bias=position_bias.to(query.dtype),
        dropout_p=module.dropout.p if module.training else 0.0,
        **options,
    )
    return (module.o(join_heads(attended)),)


def encoder(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    output_hidden_states: bool = False,
    return_dict: bool = False,
    unpad: bool = False,
    **kwargs: Any,
) -> Any:
    """Run the layers with a table of biases."""
    if mask_options(attention_mask, len(hidden_states)) is None:
        return own()
    distance = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1, device=hidden_states.device)
    table = module.relative_attention_bias(module.relative_position_bucket(distance)).T  # (heads, 257)
    packing = packing_of(attention_mask, len(hidden_states), unpad)
    mask = attention_mask if packing.cu_seqlens is None else packing.cu_seqlens
    states: tuple[Tensor, ...] | None = (hidden_states,) if output_hidden_states else None
    hidden_states = packing.pack(hidden_states)
    for layer in module.layer:
        hidden_states = layer(hidden_states, mask, table, **kwargs)[0]
        states = None if states is None else (*states, packing.unpack(hidden_states))
    output = BaseModelOutput(last_hidden_state=packing.unpack(hidden_states), hidden_states=states)
    return output if return_dict else output.to_tuple()


MODULE = "mpnet.modeling_mpnet"
FAMILIES = (
    Family(
        "MPNetForMaskedLM",
        SMALL | {"vocab_size": 30},
        lambda: masked_text_inputs(157),
        (ForwardPatch(f"{MODULE}.MPNetSelfAttention", attention), ForwardPatch(f"{MODULE}.MPNetEncoder", encoder)),
        since="5.0",
        unit=f"{MODULE}.MPNetEncoder",
    ),
)
