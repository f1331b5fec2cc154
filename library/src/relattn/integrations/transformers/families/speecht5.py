"""SpeechT5's encoder: Shaw's attention with a table of keys.

    e_ij = q_i · (k_j + w_(i−j)) · scale        z_i = Σ_j softmax_j(e_ij) v_j

i − j is clipped to −`max_length` … `max_length` − 1.

Arguments of `relative_attention`: the operator indexes its tables by j − i, so `rel_key` is w in reverse order, and
`clip` is (`max_length` − 1, `max_length`).

The model's own code builds an n × n × d tensor from w, once for all layers. The patched encoder passes the table to the
layers instead.
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
    rows_of,
)
from relattn.integrations.transformers.attention_weights import needs_attention_weights
from relattn.integrations.transformers.family import SMALL_CONVOLUTIONS, Family, generate, labels, sound_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def positions(own: Forward, module: Any, hidden_states: Tensor) -> Tensor:
    """Return the table in the operator's order: (2 · max_length, head_dim)."""
    return rows_of(module.pe_k, 2 * module.max_length - 1, 0, hidden_states)


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,  # (2 · max_length, head_dim)
    output_attentions: bool = False,
    **kwargs: Any,
) -> Any:
    """Compute the self-attention of one encoder layer: (batch, length, dim), and no weights."""
    if position_bias is None or position_bias.dim() != 2:
        return own()
    options = mask_options(attention_mask, len(hidden_states))
    max_length = len(position_bias) // 2
    if options is None or needs_attention_weights(module, output_attentions):
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        distance = (position - position[:, None]).clamp(1 - max_length, max_length)
        full_bias = position_bias[distance + max_length - 1]  # (length, length, head_dim)
        return own(position_bias=full_bias)
    query, key, value = project(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    attended = relative_attention(
        query,
        key,
        value,
        position_bias,
        clip=(max_length - 1, max_length),
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **options,
    )
    return module.out_proj(join_heads(attended)), None


def unsupported_reason(module: Any) -> str | None:
    """Return why an attention module keeps its own code, or None."""
    return "decoder attention has no relative positions" if module.is_decoder else None


MODULE = "speecht5.modeling_speecht5"
FAMILIES = (
    Family(
        "SpeechT5ForSpeechToText",
        SMALL_CONVOLUTIONS
        | {"hidden_size": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
        | {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 30}
        | {"encoder_max_relative_position": 11},
        lambda: sound_inputs("input_values", 331) | labels(),
        (
            ForwardPatch(f"{MODULE}.SpeechT5RelativePositionalEncoding", positions),
            ForwardPatch(f"{MODULE}.SpeechT5Attention", attention, unsupported_reason, answers_weights=True),
        ),
        since="5.0",
        run=generate,
        unit=f"{MODULE}.SpeechT5Encoder",
    ),
)
