"""DeBERTa, and DeBERTa v2 and v3: disentangled attention.

    e_ij = (q_i · k_j + q_i · K_r + k_j · Q_r) · scale        z_i = Σ_j softmax_j(e_ij) v_j

r is the row of i − j. In version 1 it is i − j itself; in versions 2 and 3 it is a logarithmic bucket of i − j. K and Q
are projections of the position embeddings. The second term is "c2p" of `pos_att_type`, and the third is "p2c".

Arguments of `relative_attention`: K by distance is `rel_key`, and Q by distance is `pos_query`. All distances of
`max_relative_positions` or more share one row per direction, so clipping there is exact.

The models' own code stores an n × n mask and n × n distances, and gathers n × n scores per head for each term. The
patched encoders use a (batch, 1, 1, n) mask of valid keys, and no distances. Their outputs at padding differ from the
original, where padding attends to everything; valid positions never read them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from relattn import relative_attention
from relattn.integrations.transformers.adapters import (
    join_heads,
    mask_options,
    packing_of,
    project,
    split_heads,
)
from relattn.integrations.transformers.family import SMALL, Family, masked_text_inputs
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor,  # (batch, 1, 1, length) from the patched encoder, or the ends of packed sequences
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,  # empty from the patched encoder, else distances that the caller may choose
    rel_embeddings: Tensor | None = None,  # (2 · span, dim)
) -> tuple[Tensor, Tensor | None]:
    """Compute the self-attention of one layer: (batch, length, dim), and no weights."""
    if relative_pos is None or relative_pos.numel() > 0:
        return own()
    options = mask_options(attention_mask, len(hidden_states))
    assert options is not None  # a boolean mask is never a bias
    assert rel_embeddings is not None  # the encoder passes them
    is_packed = attention_mask.dim() == 1
    length = int(attention_mask.diff().max()) if is_packed else hidden_states.shape[1]
    used, rows = used_embeddings(module, length, hidden_states.device)
    embeddings = module.pos_dropout(rel_embeddings)[used]
    query, key, value, K, Q = projections(module, hidden_states, embeddings)
    # Version 1 also counts terms of other names, which it does not compute.
    terms = len(module.pos_att_type) if hasattr(module, "in_proj") else (K is not None) + (Q is not None)
    attended = relative_attention(
        query,
        key,
        value,
        None if K is None else K[:, rows],
        pos_query=None if Q is None else Q[:, rows],
        clip=len(rows) // 2,
        scale=((1 + terms) * query.shape[-1]) ** -0.5,
        dropout_p=module.dropout.p if module.training else 0.0,
        **options,
    )
    return join_heads(attended), None


def projections(
    module: Any, states: Tensor, embeddings: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return query, key and value, (batch, heads, length, head_dim), and K and Q, (heads, rows, head_dim)."""
    head_dim = module.attention_head_size
    if hasattr(module, "in_proj"):  # version 1
        query, key, value = split_heads(module.in_proj(states), 3 * head_dim).chunk(3, dim=-1)
        query = query + split_heads(module.q_bias[None, None], head_dim)
        value = value + split_heads(module.v_bias[None, None], head_dim)
        names = "pos_proj", "pos_q_proj"
    else:
        query, key, value = project(states, head_dim, module.query_proj, module.key_proj, module.value_proj)
        names = ("key_proj", "query_proj") if module.share_att_key else ("pos_key_proj", "pos_query_proj")
    K = Q = None
    if "c2p" in module.pos_att_type:
        K = project(embeddings[None], head_dim, getattr(module, names[0]))[0][0]
    if "p2c" in module.pos_att_type:
        Q = project(embeddings[None], head_dim, getattr(module, names[1]))[0][0]
    return query, key, value, K, Q


def used_embeddings(module: Any, length: int, device: torch.device) -> tuple[slice, Tensor]:
    """Return which position embeddings a sequence needs, and the row among them of each i − j, the farthest first."""
    buckets = getattr(module, "position_buckets", -1)
    max_distance = module.max_relative_positions
    farthest = min(length - 1, max_distance)
    span = buckets if buckets > 0 else max_distance
    distance = torch.arange(farthest, -farthest - 1, -1, device=device)
    if buckets > 0:
        distance = bucket_of(distance, buckets // 2, max_distance)
    # Buckets of less than half the span are distances. Short sequences project few rows.
    reach = farthest if farthest < span // 2 else span
    return slice(span - reach, span + reach + 1), distance.clamp(-span, span - 1) + reach


def bucket_of(distance: Tensor, linear: int, max_distance: int) -> Tensor:
    """Return the logarithmic bucket of each distance; up to `linear` it is the distance itself.

    The models' own function computes in the default dtype, which another thread may change at any time.
    """
    size = distance.abs().clamp(min=linear).float() / linear
    base = torch.tensor((max_distance - 1) / linear, dtype=torch.float32, device=distance.device)
    bucket = (size.log() / base.log() * (linear - 1)).ceil().long() + linear
    return torch.where(distance.abs() <= linear, distance, distance.sign() * bucket)


def encoder(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_mask: Tensor,  # (batch, length)
    output_hidden_states: bool = True,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    return_dict: bool = True,
    unpad: bool = False,
) -> Any:
    """Run the layers with a mask of valid keys and no distances."""
    if query_states is not None or relative_pos is not None or attention_mask.dim() != 2:
        return own()
    options = {"rel_embeddings": module.get_rel_embedding(), "relative_pos": hidden_states.new_empty(0)}
    with torch.inference_mode(False):  # `mask_options` reads the mask once for all layers
        mask = attention_mask[:, None, None] != 0
    packing = packing_of(mask, len(hidden_states), unpad)
    embedded = hidden_states
    hidden_states = packing.pack(hidden_states)
    mask = mask if packing.cu_seqlens is None else packing.cu_seqlens
    states: tuple[Tensor, ...] | None = (embedded,) if output_hidden_states else None
    for index, layer in enumerate(module.layer):
        hidden_states, _ = layer(hidden_states, mask, **options)
        if index == 0 and getattr(module, "conv", None) is not None:
            hidden_states = packing.pack(module.conv(embedded, packing.unpack(hidden_states), attention_mask))
        states = None if states is None else (*states, packing.unpack(hidden_states))
    output = BaseModelOutput(last_hidden_state=packing.unpack(hidden_states), hidden_states=states)
    return output if return_dict else output.to_tuple()


def unsupported_reason(module: Any) -> str | None:
    """Return why an attention module keeps its own code, or None."""
    if not module.relative_attention:
        return "relative_attention must be True, got False"
    if getattr(module, "talking_head", False):
        return "talking_head must be False, got True"
    if (buckets := getattr(module, "position_buckets", 0)) % 2 and buckets > 0:
        return f"position_buckets must be even, got {buckets}"
    return None


def unsupported_encoder_reason(module: Any) -> str | None:
    """Return why an encoder keeps its own code, or None."""
    return unsupported_reason(module.layer[0].attention.self)


SETTINGS = {
    "vocab_size": 30, "relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 37,
}  # fmt: skip


def family(folder: str, prefix: str, **settings: Any) -> Family:
    """Return the family of a version. Its encoder passes no distances to the layers."""
    module = f"{folder}.modeling_{folder}"
    return Family(
        f"{prefix}ForMaskedLM",
        SMALL | SETTINGS | settings,
        masked_text_inputs,
        (
            ForwardPatch(f"{module}.DisentangledSelfAttention", attention, unsupported_reason),
            ForwardPatch(f"{module}.{prefix}Encoder", encoder, unsupported_encoder_reason),
        ),
        since="5.0",
        unit=f"{module}.{prefix}Encoder",
    )


FAMILIES = (
    family("deberta", "Deberta"),
    family("deberta_v2", "DebertaV2", position_buckets=14, share_att_key=True, norm_rel_ebd="layer_norm"),
)
