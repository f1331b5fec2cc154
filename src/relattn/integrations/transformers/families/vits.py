"""VITS's text encoder: tables of keys and values for distances up to `window_size`, and no relative term beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.calls import joined, projected, seen, weights_wanted
from relattn.integrations.transformers.patching import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    key_value_states: Tensor | None = None,  # which its own code does not read
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of a layer."""
    where = seen(attention_mask, hidden_states.shape[1])
    if where is None or weights_wanted(module, output_attentions):
        return own(module, hidden_states, key_value_states, attention_mask, output_attentions)
    query, key, value = projected(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    attended = relative_attention(
        query,
        key,
        value,
        module.emb_rel_k[0],
        module.emb_rel_v[0],
        beyond="zero",
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **where,
    )
    return module.out_proj(joined(attended)), None


def why_not(module: Any) -> str | None:
    """Why a module keeps its own attention."""
    return None if module.window_size else f"window_size {module.window_size}"


PATCHES = (ForwardPatch("vits.modeling_vits.VitsAttention", attention, why_not),)
