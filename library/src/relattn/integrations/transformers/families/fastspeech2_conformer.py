"""FastSpeech2-Conformer: the attention of Transformer-XL in the encoder and the decoder, as in ESPnet.

    e_ij = ((q_i + u) · k_j + (q_i + v) · R_(i−j)) / √d        z_i = Σ_j softmax_j(e_ij) v_j

Arguments of `transformer_xl`: u is `content_bias`, v is `position_bias`, and R is the projection of
`positions`. The operator divides by √d by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    needs_attention_weights,
    project,
    transformer_xl,
)
from relattn.integrations.transformers.family import Family, valid_rows
from relattn.integrations.transformers.forward_patch import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, 1, length), 0 for padding
    pos_emb: Tensor | None = None,  # (1, 2 · length − 1, dim)
    output_attentions: bool | None = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    if pos_emb is None or len(pos_emb) > 1 or needs_attention_weights(module, output_attentions):
        return own()
    options = mask_options(None if attention_mask is None else attention_mask[:, None] != 0, len(hidden_states))
    assert options is not None  # a boolean mask is never a bias
    query, key, value = project(hidden_states, module.head_dim, module.linear_q, module.linear_k, module.linear_v)
    attended = transformer_xl(
        query,
        key,
        value,
        content_bias=module.pos_bias_u,
        position_bias=module.pos_bias_v,
        positions=pos_emb[0],
        project_positions=module.linear_pos,
        dropout_p=module.dropout.p if module.training else 0.0,
        **options,
    )
    return module.linear_out(join_heads(attended)), None


MODULE = "fastspeech2_conformer.modeling_fastspeech2_conformer"
FAMILIES = (
    Family(
        "FastSpeech2ConformerModel",
        {"hidden_size": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_num_attention_heads": 2}
        | {"encoder_linear_units": 24, "decoder_linear_units": 24, "speech_decoder_postnet_units": 8, "vocab_size": 30}
        | {"duration_predictor_channels": 8, "energy_predictor_channels": 8, "pitch_predictor_channels": 8},
        lambda: {
            "input_tensor": torch.randint(1, 30, (2, 67)),
            "attention_mask": valid_rows(2, 67)[:, None],
            "return_dict": True,
        },
        (ForwardPatch(f"{MODULE}.FastSpeech2ConformerAttention", attention),),
        since="5.0",
        part="encoder",
    ),
)
