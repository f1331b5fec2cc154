"""Wav2Vec2-BERT, SeamlessM4T v2's speech encoder, Wav2Vec2-Conformer.

relative_key   a_ij = softmax_j (q_i · (k_j + w_(j−i)) · s), w clipped to `left_max_…` keys to the left and
               `right_max_…` to the right: a table of keys alone, in a lopsided window
relative       Transformer-XL's scores

Their own code makes n × n × d numbers of the first and n × (2n − 1) of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.calls import joined, projected, seen, transformer_xl, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,
    relative_position_embeddings: Tensor | None = None,  # (1, 2 · length − 1, dim), of "relative"
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer."""
    where = seen(attention_mask, hidden_states.shape[1])
    if where is None or weights_wanted(module, kwargs.get("output_attentions")):
        if relative_position_embeddings is not None:
            kwargs["relative_position_embeddings"] = relative_position_embeddings
        return own(module, hidden_states, attention_mask=attention_mask, **kwargs)
    query, key, value = projected(hidden_states, module.head_size, module.linear_q, module.linear_k, module.linear_v)
    where |= {"scale": module.scaling, "dropout_p": module.dropout.p if module.training else 0.0}
    if module.position_embeddings_type == "relative_key":
        window = module.left_max_position_embeddings, module.right_max_position_embeddings
        table = module.distance_embedding.weight.to(query.dtype)
        attended = relative_attention(query, key, value, table, clip=window, **where)
    else:
        assert relative_position_embeddings is not None
        attended = transformer_xl(
            query,
            key,
            value,
            content_bias=module.pos_bias_u,
            position_bias=module.pos_bias_v,
            positions=module.linear_pos(relative_position_embeddings[0]),
            **where,
        )
    return module.linear_out(joined(attended)), None


def why_not(module: Any) -> str | None:
    """Why a module keeps its own attention."""
    if module.position_embeddings_type not in ("relative", "relative_key"):
        return f"position_embeddings_type {module.position_embeddings_type}"
    return None


PATCHES = (
    ForwardPatch("wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention", attention, why_not),
    ForwardPatch("wav2vec2_conformer.modeling_wav2vec2_conformer.Wav2Vec2ConformerSelfAttention", attention, why_not),
    ForwardPatch("seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2ConformerSelfAttention", attention, why_not),
)
