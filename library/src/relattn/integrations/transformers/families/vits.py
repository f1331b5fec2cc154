"""VITS's text encoder: Shaw's attention with tables of keys and values, and no relative term for longer distances.

    e_ij = q_i · (k_j + wK_(j−i)) · scale        z_i = Σ_j softmax_j(e_ij) (v_j + wV_(j−i))

wK and wV are 0 where |j − i| > `window_size`.

Arguments of `relative_attention`: `rel_key` is wK, `rel_value` is wV, and `beyond` is "zero".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relattn import relative_attention
from relattn.integrations.transformers.adapters import join_heads, mask_options, project
from relattn.integrations.transformers.family import Family, text_inputs, valid_rows
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    key_value_states: Tensor | None = None,  # ignored by the original forward too
    attention_mask: Tensor | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    options = mask_options(attention_mask, len(hidden_states))
    if options is None:
        return own()
    query, key, value = project(hidden_states, module.head_dim, module.q_proj, module.k_proj, module.v_proj)
    attended = relative_attention(
        query,
        key,
        value,
        module.emb_rel_k[0],
        module.emb_rel_v[0],
        beyond="zero",
        scale=module.scaling,
        dropout_p=module.dropout if module.training else 0.0,
        **options,
    )
    return module.out_proj(join_heads(attended)), None


def unsupported_reason(module: Any) -> str | None:
    """Return why `module` keeps its own code, or None."""
    return None if module.window_size else f"window_size must be at least 1, got {module.window_size}"


FAMILIES = (
    Family(
        "vits.modeling_vits.VitsTextEncoder",
        {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 24, "vocab_size": 30},
        lambda: text_inputs() | {"padding_mask": valid_rows(67)[..., None].float()},
        (ForwardPatch("vits.modeling_vits.VitsAttention", attention, unsupported_reason),),
        since="5.0",
        config="VitsConfig",
    ),
)
