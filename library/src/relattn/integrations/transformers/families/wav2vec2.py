"""Wav2Vec2-BERT, Wav2Vec2-Conformer and the speech encoders of SeamlessM4T v1 and v2.

`position_embeddings_type` selects the scores:

    "relative_key"   e_ij = q_i · (k_j + w_(j−i)) · scale                          Shaw's, with a table of keys
    "relative"       e_ij = ((q_i + u) · k_j + (q_i + v) · R_(i−j)) · scale        Transformer-XL's

The output is z_i = Σ_j softmax_j(e_ij) v_j. "relative_key" clips j − i to −`left_max_position_embeddings` …
`right_max_position_embeddings`.

Arguments of `relative_attention` for "relative_key": w is `rel_key`, and the two limits are `clip`. Arguments of
`transformer_xl` for "relative": u is `content_bias`, v is `position_bias`, and R is the projection of `positions`.

The models' own code stores an n × n × d tensor for "relative_key" and n × (2n − 1) scores per head for "relative".
Their encoders also store an n × n mask of padding, and SeamlessM4T v2 one of its chunks. The patched encoders use a
(batch, 1, 1, n) mask of valid keys, and `chunk`, instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from relattn import relative_attention
from relattn.functional import Chunk, Window
from relattn.integrations.transformers.adapters import (
    ValidPositions,
    farthest_distance,
    join_heads,
    mask_options,
    packing_of,
    project,
    rows_of,
    run_layers,
    transformer_xl,
)
from relattn.integrations.transformers.attention_weights import captured
from relattn.integrations.transformers.family import SMALL, SMALL_CONVOLUTIONS, Family, generate, labels, sound_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    relative_position_embeddings: Tensor | None = None,  # (1, 2 · length − 1, dim) or fewer rows, for "relative"
    *,
    window: Window = None,
    chunk: Chunk = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    options = mask_options(attention_mask, len(hidden_states))
    if options is None or ("mask" in options and options["mask"].shape[2] > 1):  # an encoder's own code masks pairs
        return own()
    query, key, value = project(hidden_states, module.head_size, module.linear_q, module.linear_k, module.linear_v)
    options |= {"scale": module.scaling, "dropout_p": module.dropout.p if module.training else 0.0}
    options |= {"window": window, "chunk": chunk}
    if module.position_embeddings_type == "relative_key":
        clip = module.left_max_position_embeddings, module.right_max_position_embeddings
        table = rows_of(module.distance_embedding, 0, sum(clip), query)
        attended = relative_attention(query, key, value, table, clip=clip, **options)
    else:
        assert relative_position_embeddings is not None
        attended = transformer_xl(
            query,
            key,
            value,
            content_bias=module.pos_bias_u,
            position_bias=module.pos_bias_v,
            positions=relative_position_embeddings[0],
            project_positions=module.linear_pos,
            **options,
        )
    return module.linear_out(join_heads(attended)), None


def encoder(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, length)
    *,
    window: Window = None,
    **kwargs: Any,
) -> Any:
    """Run the encoder of Wav2Vec2-Conformer, whose convolutions read padding, so it is not left out."""
    return bert_encoder(own, module, hidden_states, attention_mask, window=window, **kwargs)


def bert_encoder(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, length)
    *,
    window: Window = None,
    unpad: bool = False,
    **kwargs: Any,
) -> Any:
    """Run the encoder of Wav2Vec2-BERT or Wav2Vec2-Conformer with a mask of valid keys."""
    is_bert = not hasattr(module, "layer_norm")  # its convolution reads the mask, and it has no last normalisation
    states, mask = without_padding(hidden_states, attention_mask)
    states = module.dropout(states)
    if module.embed_positions is not None:
        nearest = states[:, : farthest_distance(states.shape[1], window) + 1]
        kwargs["relative_position_embeddings"] = module.embed_positions(nearest)
    packing = packing_of(mask, len(states), unpad)
    is_packed = packing.places is not None
    if is_bert:
        kwargs["conv_attention_mask"] = packing if is_packed else attention_mask
    kwargs["attention_mask"] = packing.cu_seqlens if is_packed else mask
    collected = (captured() or {}).get("hidden_states", [])  # gets the output of each layer
    start = len(collected)
    states = packing.unpack(run_layers(module, packing.pack(states), module.config.layerdrop, **kwargs))
    collected[start:] = map(packing.unpack, collected[start:])
    return BaseModelOutput(last_hidden_state=states if is_bert else module.layer_norm(states))


def convolution(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim), or packed
    attention_mask: Tensor | ValidPositions | None = None,
) -> Any:
    """Run a convolution, which reads neighbours, on a padded batch."""
    if not isinstance(attention_mask, ValidPositions):
        return own()
    valid = attention_mask.unpack(torch.ones_like(hidden_states[..., :1]))[..., 0]
    return attention_mask.pack(own(hidden_states=attention_mask.unpack(hidden_states), attention_mask=valid))


def seamless_encoder(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, length)
    **kwargs: Any,
) -> Any:
    """Run the encoder of SeamlessM4T with a mask of valid keys. Version 2 may have chunks, which become an option.

    Its adapter reads padding near the last valid position. There the model's own code attends to all positions if the
    chunks of a query have no valid key, and the operator to none. So the own code runs if chunks are that small.
    """
    config = module.config
    states, mask = without_padding(hidden_states, attention_mask)
    options = {"attention_mask": mask, "conv_attention_mask": attention_mask, **kwargs}
    if getattr(module, "embed_positions", None) is not None:  # version 1
        options["relative_position_embeddings"] = module.embed_positions(states)
    elif (size := getattr(config, "speech_encoder_chunk_size", None)) is not None:
        left_chunks = config.speech_encoder_left_chunk_num
        read_padding = config.adaptor_kernel_size**config.num_adapter_layers
        if attention_mask is not None and 0 <= left_chunks * size < read_padding:
            return own()
        options["chunk"] = size, left_chunks if left_chunks >= 0 else None
    states = run_layers(module, module.dropout(states), config.speech_encoder_layerdrop, **options)
    return module.layer_norm(states)


def without_padding(states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return `states` with zeros at padding, and the mask of valid keys, (batch, 1, 1, length)."""
    if attention_mask is None:
        return states, None
    valid = attention_mask.bool()
    return states.masked_fill(~valid[..., None], 0.0), valid[:, None, None]


def unsupported_reason(module: Any) -> str | None:
    """Return why an attention module keeps its own code, or None."""
    if module.position_embeddings_type not in ("relative", "relative_key"):
        return f"position_embeddings_type must be relative or relative_key, got {module.position_embeddings_type}"
    return None


def unsupported_encoder_reason(module: Any) -> str | None:
    """Return why an encoder keeps its own code, or None."""
    return unsupported_reason(module.config)


BERT = "wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2Bert"
CONFORMER = "wav2vec2_conformer.modeling_wav2vec2_conformer.Wav2Vec2Conformer"
SEAMLESS = {
    "hidden_size": 16, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 24, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24,
    "vocab_size": 30,
}  # fmt: skip
CLIP = {"left_max_position_embeddings": 11, "right_max_position_embeddings": 3, "feature_projection_input_dim": 10}


def padded_reason(module: Any) -> str | None:
    """Return why an encoder of Wav2Vec2-BERT must read padding, or None."""
    if module.config.add_adapter:
        return "add_adapter must be False, because the adapter reads neighbours across padding, got True"
    if module.config.position_embeddings_type != "relative_key":
        return f"position_embeddings_type must be relative_key, got {module.config.position_embeddings_type}"
    return None


def seamless(prefix: str, settings: dict[str, Any]) -> Family:
    """Return the family of a version of SeamlessM4T."""
    return Family(
        f"{prefix}ForSpeechToText",
        SEAMLESS | settings,
        lambda: sound_inputs("input_features", 67, 10) | labels(),
        (
            ForwardPatch(f"{prefix}ConformerSelfAttention", attention, unsupported_reason),
            ForwardPatch(f"{prefix}ConformerEncoder", seamless_encoder, unsupported_encoder_reason),
        ),
        since="5.16",
        run=generate,
        unit=f"{prefix}ConformerEncoder",
    )


FAMILIES = (
    Family(
        "Wav2Vec2BertForCTC",
        SMALL | CLIP | {"vocab_size": 30},
        lambda: sound_inputs("input_features", 67, 10) | labels(),
        (
            ForwardPatch(f"{BERT}SelfAttention", attention, unsupported_reason, takes_window=True),
            ForwardPatch(f"{BERT}ConvolutionModule", convolution, has_attention=False),
            ForwardPatch(
                f"{BERT}Encoder",
                bert_encoder,
                unsupported_encoder_reason,
                takes_window=True,
                padded_reason=padded_reason,
            ),
        ),
        since="5.16",
        unit=f"{BERT}Encoder",
    ),
    Family(
        "Wav2Vec2ConformerForCTC",
        SMALL | SMALL_CONVOLUTIONS | {"position_embeddings_type": "relative", "vocab_size": 30},
        lambda: sound_inputs("input_values", 331) | labels(),
        (
            ForwardPatch(f"{CONFORMER}SelfAttention", attention, unsupported_reason, takes_window=True),
            ForwardPatch(f"{CONFORMER}Encoder", encoder, unsupported_encoder_reason, takes_window=True),
        ),
        since="5.16",
        unit=f"{CONFORMER}Encoder",
    ),
    seamless("seamless_m4t.modeling_seamless_m4t.SeamlessM4T", {"feature_projection_input_dim": 10}),
    seamless(
        "seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2",
        CLIP | {"speech_encoder_chunk_size": 20, "speech_encoder_left_chunk_num": 1},
    ),
)
