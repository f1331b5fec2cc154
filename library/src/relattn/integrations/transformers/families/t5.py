"""The encoders of T5, mT5, Pop2Piano, Switch Transformers and UMT5.

    e_ij = q_i · k_j + b_bucket(j−i)        z_i = Σ_j softmax_j(e_ij) v_j

b has one number per head and bucket. All distances of `max_distance` or more share one bucket per direction.

Arguments of `relative_attention`: `rel_query` is 1 for all queries, and `rel_key` is b by distance. Both have one
dimension, so their product is b. Clipping at `max_distance` is exact because of the shared bucket. The scores are not
scaled, so `scale` is 1.

In all models except UMT5, the first layer of a stack has the buckets and passes its bias to the other layers. The
models' own code passes n × n numbers per head. The patched layers pass the table, (heads, 2 · max_distance + 1, 1).
Decoders keep their own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    packing_of,
    project,
)
from relattn.integrations.transformers.attention_weights import needs_attention_weights
from relattn.integrations.transformers.family import Family, generate, labels, text_inputs
from relattn.integrations.transformers.forward_patch import SETTING, Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,  # (heads, 2 · max_distance + 1, 1), from the first layer
    **kwargs: Any,
) -> Any:
    """Compute the self-attention of one layer: (batch, length, dim), the table for the next layer, and no weights."""
    options = mask_options(kwargs.get("cu_seqlens", mask), len(hidden_states))
    has_table = module.has_relative_attention_bias if position_bias is None else position_bias.dim() == 3
    if options is None or not has_table:
        return own()
    table = bias_table(module, hidden_states.device) if position_bias is None else position_bias
    return module.o(attend(module, hidden_states, table, options)), table, None


def umt5_attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Compute the self-attention of one UMT5 layer: (batch, length, dim). Each layer has its own table of buckets."""
    options = mask_options(kwargs.get("cu_seqlens", attention_mask), len(hidden_states))
    if options is None:
        return own()
    return module.o(attend(module, hidden_states, bias_table(module, hidden_states.device), options)), None


def stack(
    own: Forward,
    module: Any,
    input_ids: Tensor | None = None,  # (batch, length)
    attention_mask: Tensor | None = None,  # (batch, length)
    inputs_embeds: Tensor | None = None,  # (batch, length, dim), or `input_ids`
    unpad: bool = False,
    **kwargs: Any,
) -> Any:
    """Run an encoder, with `unpad` on the valid tokens of a padded batch only."""
    name, given = ("input_ids", input_ids) if inputs_embeds is None else ("inputs_embeds", inputs_embeds)
    layers = [layer.SelfAttention for layer in module.modules() if hasattr(layer, "SelfAttention")]
    needs_weights = needs_attention_weights(module, kwargs.get("output_attentions", module.config.output_attentions))
    if given is None or attention_mask is None or attention_mask.dim() != 2 or needs_weights:
        return own()
    packing = packing_of(attention_mask[:, None, None] != 0, len(given), unpad)
    if packing.places is None or any(getattr(layer, SETTING, None) is None for layer in layers):
        return own()
    packed = {name: packing.pack(given), "attention_mask": None, "cu_seqlens": packing.cu_seqlens}
    output = own(**packed, return_dict=True)
    output["last_hidden_state"] = packing.unpack(output.last_hidden_state)
    if output.get("hidden_states") is not None:
        output["hidden_states"] = tuple(packing.unpack(x) for x in output.hidden_states)
    return output if kwargs.get("return_dict", module.config.return_dict) else output.to_tuple()


def bias_table(module: Any, device: torch.device) -> Tensor:
    """Return the bias by distance j − i, from −max_distance up: (heads, 2 · max_distance + 1, 1)."""
    max_distance = module.relative_attention_max_distance
    # One query at position max_distance sees each distance once.
    bias = module.compute_bias(1, 2 * max_distance + 1, device=device, past_seen_tokens=max_distance)
    return bias[0, :, 0, :, None]


def attend(module: Any, hidden_states: Tensor, table: Tensor, options: dict[str, Any]) -> Tensor:
    """Project `hidden_states`, (batch, length, dim), and attend: (batch, length, heads · head_dim)."""
    query, key, value = project(hidden_states, module.key_value_proj_dim, module.q, module.k, module.v)
    attended = relative_attention(
        query,
        key,
        value,
        table.to(query.dtype),
        rel_query=torch.ones_like(query[..., :1]),
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **options,
    )
    return join_heads(attended)


def unsupported_reason(module: Any) -> str | None:
    """Return why `module` keeps its own code. Cross-attention and caches occur in decoders only."""
    return "decoder attention is not supported" if module.is_decoder else None


SMALL = {
    "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 30,
    "decoder_start_token_id": 0,
}  # fmt: skip


def family(folder: str, prefix: str, forward: Forward, run: Callable[..., list[Any]] = generate) -> Family:
    """Return the family of one model. Its stack passes the table from layer to layer."""
    module = f"{folder}.modeling_{folder}.{prefix}"
    patches: tuple[ForwardPatch, ...] = (ForwardPatch(f"{module}Attention", forward, unsupported_reason),)
    if folder != "switch_transformers":  # whose experts take a number of tokens that depends on the padded length
        patches += (ForwardPatch(f"{module}Stack", stack, unsupported_reason),)
    return Family(
        f"{prefix}ForConditionalGeneration",
        SMALL | {"relative_attention_max_distance": 37},
        lambda: text_inputs() | labels(),
        patches,
        since="5.15",
        run=run,
        unit=f"{module}Stack",
    )


FAMILIES = (
    family("t5", "T5", attention),
    family("mt5", "MT5", attention),
    family("pop2piano", "Pop2Piano", attention, lambda model, inputs: [model(**inputs)]),  # it generates from sound
    family("switch_transformers", "SwitchTransformers", attention),
    family("umt5", "UMT5", umt5_attention),
)
