"""FastSpeech2-Conformer: Transformer-XL's scores in encoder and decoder, as ESPnet has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from relattn.integrations.transformers.calls import joined, projected, seen, transformer_xl, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor | None = None,  # (batch, 1, length), 0 for padding
    pos_emb: Tensor | None = None,  # (1, 2 · length − 1, dim)
    output_attentions: bool | None = False,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer."""
    if pos_emb is None or len(pos_emb) > 1 or weights_wanted(module, output_attentions):
        return own(module, hidden_states, attention_mask, pos_emb, output_attentions)
    where = seen(None if attention_mask is None else attention_mask[:, None] != 0, hidden_states.shape[1])
    assert where is not None  # a mask of True and False has no numbers
    query, key, value = projected(hidden_states, module.head_dim, module.linear_q, module.linear_k, module.linear_v)
    attended = transformer_xl(
        query,
        key,
        value,
        content_bias=module.pos_bias_u,
        position_bias=module.pos_bias_v,
        positions=module.linear_pos(pos_emb[0]),
        dropout_p=module.dropout.p if module.training else 0.0,
        **where,
    )
    return module.linear_out(joined(attended)), None


PATCHES = (
    ForwardPatch("fastspeech2_conformer.modeling_fastspeech2_conformer.FastSpeech2ConformerAttention", attention),
)
