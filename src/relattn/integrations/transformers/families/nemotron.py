"""Nemotron's streaming encoder: Parakeet's attention in chunks.

A query attends to its chunk and to a number of chunks before it. The model's settings are a look-ahead, which is the
size of a chunk less one, and `sliding_window`, which is one more than the positions before the query's chunk.

Arguments of `transformer_xl`: those of Parakeet, and `chunk`.

The model's own code stores an n × n mask of the chunks, and position embeddings of 2n − 1 distances. The patched
encoder stores neither, so it also accepts inputs longer than `max_position_embeddings`. While streaming, the keys come
from a cache, and the queries are the last of them. These calls keep the model's own mask, which is as wide as a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.nemotron_asr_streaming import modeling_nemotron_asr_streaming as modeling
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.integrations.transformers.adapters import farthest_distance, needs_attention_weights, run_layers
from relattn.integrations.transformers.families.parakeet import attention, inputs_of_layers
from relattn.integrations.transformers.family import Family, sound_inputs
from relattn.integrations.transformers.forward_patch import ForwardPatch


@merge_with_config_defaults
@capture_outputs
def encode(
    module: Any,
    input_features: Tensor,  # (batch, frames, bins)
    attention_mask: Tensor | None = None,  # (batch, frames)
    past_key_values: Any = None,
    output_attention_mask: bool = True,
    use_cache: bool | None = None,
    padding_cache: Any = None,
    num_lookahead_tokens: int | None = None,
    **kwargs: Any,
) -> modeling.NemotronAsrStreamingEncoderModelOutput:
    """Run the encoder on a whole input, or on the first part of a stream, without a mask of the chunks."""
    if use_cache:
        past_key_values = DynamicCache(config=module.config) if past_key_values is None else past_key_values
        if padding_cache is None:
            padding_cache = modeling.NemotronAsrStreamingEncoderCausalConvPaddingCache()
    states = module.subsampling(input_features, attention_mask, padding_cache=padding_cache) * module.input_scale
    length = states.shape[1]
    left, right = module._resolve_attn_context(num_lookahead_tokens)
    size = right + 1
    left_chunks = left // size if left >= 0 else None
    chunk = size, left_chunks
    states, positions, valid = inputs_of_layers(module, states, farthest_distance(length, chunk=chunk), attention_mask)
    mask = hidden = None
    if valid is not None:
        mask = valid[:, None, None]  # (batch, 1, 1, n)
        chunks = torch.arange(length, device=states.device) // size
        first_keys = (chunks - (length if left_chunks is None else left_chunks)) * size
        hidden = (first_keys >= valid.sum(-1, keepdim=True))[:, None]  # (batch, 1, n): no key to attend to
    states = run_layers(
        module,
        states,
        module.layerdrop,
        attention_mask=mask,
        all_masked_rows=hidden,
        position_embeddings=positions,
        past_key_values=past_key_values,
        padding_cache=padding_cache,
        use_cache=use_cache,
        chunk=chunk,
        **kwargs,
    )
    return modeling.NemotronAsrStreamingEncoderModelOutput(
        last_hidden_state=states,
        attention_mask=valid.int() if valid is not None and output_attention_mask else None,
        past_key_values=past_key_values,
        padding_cache=padding_cache,
    )


def encoder(
    original_forward: Callable[..., Any],
    module: Any,
    input_features: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run `encode`, or the original encoder if earlier keys are in a cache or attention weights are needed."""
    is_continued = past_key_values is not None and past_key_values.get_seq_length() > 0
    needs_weights = needs_attention_weights(module, kwargs.get("output_attentions", module.config.output_attentions))
    if is_continued or position_ids is not None or needs_weights:
        return original_forward(module, input_features, attention_mask, position_ids, past_key_values, *args, **kwargs)
    return encode(module, input_features, attention_mask, past_key_values, *args, **kwargs)


MODULE = "nemotron_asr_streaming.modeling_nemotron_asr_streaming"
FAMILIES = (
    Family(
        "NemotronAsrStreamingEncoder",
        {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
        | {"num_key_value_heads": 2, "num_mel_bins": 16, "subsampling_conv_channels": 8}
        | {"sliding_window": 10},
        lambda: sound_inputs("input_features", 331, 16) | {"num_lookahead_tokens": 2},
        (
            ForwardPatch(f"{MODULE}.NemotronAsrStreamingEncoderAttention", attention),
            ForwardPatch(f"{MODULE}.NemotronAsrStreamingEncoder", encoder),
        ),
        unit=f"{MODULE}.NemotronAsrStreamingEncoder",
    ),
)
