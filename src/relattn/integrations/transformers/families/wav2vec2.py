"""Wav2Vec2-BERT, Wav2Vec2-Conformer and SeamlessM4T v2's speech encoder.

`position_embeddings_type` selects the scores:

    "relative_key"   e_ij = q_i · (k_j + w_(j−i)) · scale                          Shaw's, with a table of keys
    "relative"       e_ij = ((q_i + u) · k_j + (q_i + v) · R_(i−j)) · scale        Transformer-XL's

The output is z_i = Σ_j softmax_j(e_ij) v_j. "relative_key" clips j − i to −`left_max_position_embeddings` …
`right_max_position_embeddings`.

Arguments of `relative_attention` for "relative_key": w is `rel_key`, and the two limits are `clip`. Arguments of
`transformer_xl` for "relative": u is `content_bias`, v is `position_bias`, and R is `positions`.

The models' own code stores an n × n × d tensor for "relative_key" and n × (2n − 1) scores per head for "relative".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    needs_attention_weights,
    project,
    transformer_xl,
)
from relattn.integrations.transformers.forward_patch import ForwardPatch


def attention(
    original_forward: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    relative_position_embeddings: Tensor | None = None,  # (1, 2 · length − 1, dim), for "relative"
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    options = mask_options(attention_mask)
    if options is None or needs_attention_weights(module, kwargs.get("output_attentions")):
        if relative_position_embeddings is not None:
            kwargs["relative_position_embeddings"] = relative_position_embeddings
        return original_forward(module, hidden_states, attention_mask=attention_mask, **kwargs)
    query, key, value = project(hidden_states, module.head_size, module.linear_q, module.linear_k, module.linear_v)
    options |= {"scale": module.scaling, "dropout_p": module.dropout.p if module.training else 0.0}
    if module.position_embeddings_type == "relative_key":
        clip = module.left_max_position_embeddings, module.right_max_position_embeddings
        table = module.distance_embedding.weight.to(query.dtype)
        attended = relative_attention(query, key, value, table, clip=clip, **options)
    else:
        assert relative_position_embeddings is not None
        attended = transformer_xl(
            query,
            key,
            value,
            content_bias=module.pos_bias_u,
            position_bias=module.pos_bias_v,
            positions=module.linear_pos(relative_position_embeddings[0]),
            **options,
        )
    return module.linear_out(join_heads(attended)), None


def unsupported_reason(module: Any) -> str | None:
    """Return why `module` keeps its own code, or None."""
    if module.position_embeddings_type not in ("relative", "relative_key"):
        return f"position_embeddings_type must be relative or relative_key, got {module.position_embeddings_type}"
    return None


PATCHES = (
    ForwardPatch("wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention", attention, unsupported_reason),
    ForwardPatch(
        "wav2vec2_conformer.modeling_wav2vec2_conformer.Wav2Vec2ConformerSelfAttention", attention, unsupported_reason
    ),
    ForwardPatch(
        "seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2ConformerSelfAttention", attention, unsupported_reason
    ),
)
