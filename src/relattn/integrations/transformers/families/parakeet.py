"""Parakeet's encoder, and that of Nemotron for streaming: Transformer-XL's scores in a Fast Conformer.

Its own code makes n × (2n − 1) numbers a head, and for padded batches a mask of n × n that attention and convolution
read. The mask here is (batch, 1, 1, n): keys that are no padding. What padding itself attends to makes no difference:
the convolution takes it out, attention and output do not look at it.

Nemotron attends to a chunk and so many positions before it, by a mask; while streaming, keys come from a cache, and the
queries are the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.integrations.transformers.calls import joined, projected, seen, transformer_xl, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    position_embeddings: Tensor | None,  # (1 or batch, 2 · keys − 1, dim)
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer."""
    where = seen(attention_mask, hidden_states.shape[1])
    dropped = module.training and module.config.dropout_positions > 0  # other positions for each sequence
    several = position_embeddings is not None and len(position_embeddings) > 1 and dropped
    if where is None or position_embeddings is None or several or weights_wanted(module):
        kwargs |= {} if past_key_values is None else {"past_key_values": past_key_values}
        return own(module, hidden_states, position_embeddings, attention_mask, **kwargs)
    query, key, value = projected(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, module.layer_idx)
    attended = transformer_xl(
        query,
        key,
        value,
        content_bias=module.bias_u,
        position_bias=module.bias_v,
        positions=module.relative_k_proj(position_embeddings[0]),
        scale=module.scaling,
        dropout_p=module.attention_dropout if module.training else 0.0,
        **where,
    )
    return module.o_proj(joined(attended)), None


@merge_with_config_defaults
@capture_outputs
def encode(
    module: Any,
    input_features: Tensor,  # (batch, frames, bins)
    attention_mask: Tensor | None = None,  # (batch, frames)
    output_attention_mask: bool = True,
    **kwargs: Any,
) -> ParakeetEncoderModelOutput:
    """The encoder, with positions once for all sequences and a mask of one row."""
    states = module.subsampling(input_features, attention_mask) * module.input_scale
    positions = module.encode_positions(states[:1])
    states = nn.functional.dropout(states, p=module.dropout, training=module.training)
    positions = nn.functional.dropout(positions, p=module.dropout_positions, training=module.training)
    valid = mask = None
    if attention_mask is not None:
        valid = module._get_output_attention_mask(attention_mask, target_length=states.shape[1])
        mask = valid[:, None, None]
    for layer in module.layers:
        if module.training and module.layerdrop > 0.0 and float(torch.rand([])) < module.layerdrop:
            continue
        states = layer(states, attention_mask=mask, position_embeddings=positions, **kwargs)
    shown = valid.int() if valid is not None and output_attention_mask else None
    return ParakeetEncoderModelOutput(last_hidden_state=states, attention_mask=shown)


def encoder(own: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """The whole encoder; its own where attention weights are wanted, which are of the mask that it makes."""
    if weights_wanted(module, kwargs.get("output_attentions", module.config.output_attentions)):
        return own(module, *args, **kwargs)
    return encode(module, *args, **kwargs)


PATCHES = (
    ForwardPatch("parakeet.modeling_parakeet.ParakeetEncoderAttention", attention),
    ForwardPatch("parakeet.modeling_parakeet.ParakeetEncoder", encoder),
    ForwardPatch(
        "nemotron_asr_streaming.modeling_nemotron_asr_streaming.NemotronAsrStreamingEncoderAttention", attention
    ),
)
