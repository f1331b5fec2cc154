"""Parakeet's encoder: the attention of Transformer-XL in a Fast Conformer.

    e_ij = ((q_i + u) · k_j + (q_i + v) · R_(i−j)) · scale        z_i = Σ_j softmax_j(e_ij) v_j

Arguments of `transformer_xl`: u is `content_bias`, v is `position_bias`, and R is the projection of `positions`, the
position embeddings.

The model's own code stores n × (2n − 1) scores per head. For padded batches it also stores an n × n mask, which its
convolution reads as well. The patched encoder uses a (batch, 1, 1, n) mask of valid keys instead. Its outputs at
padding differ from the original. This has no effect on valid positions, because the convolution zeroes padding and
attention never reads it.

The convolutions before the layers run on pieces of a long input, which bounds their memory.

With a window, position embeddings are made for the distances inside the window only. The result is NeMo's local
attention, `RelPositionMultiHeadAttentionLongformer`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.functional import Window
from relattn.integrations.transformers.adapters import (
    farthest_distance,
    join_heads,
    mask_options,
    project,
    run_layers,
    transformer_xl,
)
from relattn.integrations.transformers.attention_weights import needs_attention_weights
from relattn.integrations.transformers.family import SMALL, Family, generate, labels, sound_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch
from relattn.positions import is_valid

CHUNK_POSITIONS = 512  # positions whose frames the convolutions before the layers read at a time


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    position_embeddings: Tensor | None,  # (1 or batch, 2 · keys − 1, dim), or fewer rows about the middle one
    attention_mask: Tensor | None = None,
    *,
    window: Window = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    options = mask_options(attention_mask, len(hidden_states))
    # Dropout gives each sequence its own position embeddings, which one table cannot hold.
    positions_dropped = module.training and module.config.dropout_positions > 0
    positions_differ = position_embeddings is not None and len(position_embeddings) > 1 and positions_dropped
    if options is None or position_embeddings is None or positions_differ:
        return own()
    query, key, value = project(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    attended = transformer_xl(
        query,
        key,
        value,
        content_bias=module.bias_u,
        position_bias=module.bias_v,
        positions=position_embeddings[0],
        project_positions=module.relative_k_proj,
        window=window,
        scale=module.scaling,
        dropout_p=module.attention_dropout if module.training else 0.0,
        **options,
    )
    return module.o_proj(join_heads(attended)), None


@merge_with_config_defaults
@capture_outputs
def encode(
    module: Any,
    input_features: Tensor,  # (batch, frames, bins)
    attention_mask: Tensor | None = None,  # (batch, frames)
    output_attention_mask: bool = True,
    *,
    window: Window = None,
    **kwargs: Any,
) -> ParakeetEncoderModelOutput:
    """Run the encoder with position embeddings shared by all sequences and a mask of valid keys."""
    states = subsample(module, input_features, attention_mask) * module.input_scale
    length = states.shape[1]
    positions = module.encode_positions(states[:1, : farthest_distance(length, window) + 1])
    states = nn.functional.dropout(states, p=module.dropout, training=module.training)
    positions = nn.functional.dropout(positions, p=module.dropout_positions, training=module.training)
    options = {"attention_mask": None, "position_embeddings": positions, **kwargs}
    output_mask = None
    if attention_mask is not None:
        valid = module._get_output_attention_mask(attention_mask, target_length=length)
        options["attention_mask"] = valid[:, None, None]  # (batch, 1, 1, n)
        output_mask = valid.int() if output_attention_mask else None
    states = run_layers(module, states, module.layerdrop, **options)
    return ParakeetEncoderModelOutput(last_hidden_state=states, attention_mask=output_mask)


def subsample(module: Any, features: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Run the convolutions before the layers on pieces of the input: (batch, n, dim).

    Their numbers are the largest of the encoder, 256 channels for every other frame and bin. Each piece is convolved
    with its neighbours' nearest frames, so the result is that of the whole input.
    """
    config = module.config
    frames = features.shape[1]
    factor = config.subsampling_factor
    margin = config.subsampling_conv_kernel_size // 2
    length = -(-frames // factor)
    if length <= CHUNK_POSITIONS:
        states: Tensor = module.subsampling(features, attention_mask)
        return states
    outputs = []
    for begin in range(0, length, CHUNK_POSITIONS):
        first = max(0, begin - margin)
        end = begin + CHUNK_POSITIONS + margin
        chunk_features = features[:, first * factor : end * factor]
        mask = None
        if attention_mask is not None:
            mask = is_valid(chunk_features.shape[1], attention_mask.sum(-1) - first * factor)
        outputs.append(module.subsampling(chunk_features, mask)[:, begin - first : begin - first + CHUNK_POSITIONS])
    return torch.cat(outputs, dim=1)


def encoder(
    own: Forward,
    module: Any,
    input_features: Tensor,
    attention_mask: Tensor | None = None,
    output_attention_mask: bool = True,
    **kwargs: Any,
) -> Any:
    """Run `encode`, or the original encoder if attention weights are needed, because these depend on its full mask."""
    if needs_attention_weights(module, kwargs.get("output_attentions", module.config.output_attentions)):
        return own()
    return encode(module, input_features, attention_mask, output_attention_mask, **kwargs)


MODULE = "parakeet.modeling_parakeet"
ENCODER = SMALL | {"num_key_value_heads": 2, "num_mel_bins": 16, "subsampling_conv_channels": 8}
FAMILIES = (
    Family(
        "ParakeetForCTC",
        {"vocab_size": 30, "pad_token_id": 0, "encoder_config": ENCODER},
        lambda: sound_inputs("input_features", 331, 16) | labels(),
        (
            ForwardPatch(f"{MODULE}.ParakeetEncoderAttention", attention, takes_window=True),
            ForwardPatch(f"{MODULE}.ParakeetEncoder", encoder, takes_window=True),
        ),
        since="5.2",
        run=generate,
        unit=f"{MODULE}.ParakeetEncoder",
    ),
)
