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
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.models.nemotron_asr_streaming import modeling_nemotron_asr_streaming as modeling
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.integrations.transformers.adapters import farthest_distance, needs_attention_weights, run_layers
from relattn.integrations.transformers.families.parakeet import SMALL, attention, inputs_of_layers
from relattn.integrations.transformers.family import Family, sound_inputs
from relattn.integrations.transformers.forward_patch import ForwardPatch


@merge_with_config_defaults
@capture_outputs
def encode(
    module: Any,
    input_features: Tensor,  # (batch, frames, bins)
    attention_mask: Tensor | None = None,  # (batch, frames)
    output_attention_mask: bool = True,
    use_cache: bool | None = None,
    padding_cache: Any = None,
    num_lookahead_tokens: int | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> modeling.NemotronAsrStreamingEncoderModelOutput:
    """Run the encoder on a whole input, or on the first part of a stream, without a mask of the chunks."""
    if use_cache:
        cache = DynamicCache(config=module.config) if cache is None else cache
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
        padding_cache=padding_cache,
        use_cache=use_cache,
        chunk=chunk,
        **{CACHE: cache},
        **kwargs,
    )
    return modeling.NemotronAsrStreamingEncoderModelOutput(
        last_hidden_state=states,
        attention_mask=valid.int() if valid is not None and output_attention_mask else None,
        padding_cache=padding_cache,
        **{CACHE: cache},
    )


def encoder(
    own: Callable[..., Any],
    module: Any,
    input_features: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,  # the cache of attention, up to transformers 5.23
    cache: Any = None,  # the same, since 5.24
    output_attention_mask: bool = True,
    use_cache: bool | None = None,
    padding_cache: Any = None,
    num_lookahead_tokens: int | None = None,
    **kwargs: Any,
) -> Any:
    """Run `encode`, or the original encoder if earlier keys are in a cache or attention weights are needed."""
    cache = past_key_values if cache is None else cache
    is_continued = cache is not None and cache.get_seq_length() > 0
    needs_weights = needs_attention_weights(module, kwargs.get("output_attentions", module.config.output_attentions))
    if is_continued or position_ids is not None or needs_weights:
        return own()
    return encode(
        module, input_features, attention_mask, output_attention_mask, use_cache, padding_cache, num_lookahead_tokens,
        cache, **kwargs,
    )  # fmt: skip


def stream(model: nn.Module, inputs: dict[str, Any]) -> list[Any]:
    """Call the encoder on the whole input, and on two parts of it, the second with the cache of the first."""
    first, second = inputs["input_features"].tensor_split([144], dim=1)
    options = {"use_cache": True, "num_lookahead_tokens": 2}
    start = model(first, **options)
    past = {CACHE: start[CACHE], "padding_cache": start.padding_cache}
    return [model(**inputs), start.last_hidden_state, model(second[:, :144], **options, **past).last_hidden_state]


Output = modeling.NemotronAsrStreamingEncoderModelOutput
CACHE = next(name for name in ("cache", "past_key_values") if name in Output.__dataclass_fields__)
MODULE = "nemotron_asr_streaming.modeling_nemotron_asr_streaming"
FAMILIES = (
    Family(
        "NemotronAsrStreamingEncoder",
        SMALL | {"sliding_window": 10},
        lambda: sound_inputs("input_features", 331, 16) | {"num_lookahead_tokens": 2},
        (
            ForwardPatch(f"{MODULE}.NemotronAsrStreamingEncoderAttention", attention),
            ForwardPatch(f"{MODULE}.NemotronAsrStreamingEncoder", encoder),
        ),
        since="5.2",
        run=stream,
        unit=f"{MODULE}.NemotronAsrStreamingEncoder",
    ),
)
