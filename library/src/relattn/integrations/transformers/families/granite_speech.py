"""Granite Speech: the encoder attends within blocks of `context_size` positions. The last block may be shorter.

    e_ij = q_i · (k_j + w_(i−j)) · scale        z_i = Σ_j softmax_j(e_ij) v_j

Arguments of `relative_attention`: each block is one sequence of the batch, and `lengths` marks the padding of the last
block. The operator indexes its tables by j − i, so `rel_key` is w in reverse order. `rel_key` has one row for each
distance within a block, so nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relattn import relative_attention
from relattn.integrations.transformers.adapters import join_heads, project, rows_of, split_heads
from relattn.integrations.transformers.family import Family
from relattn.integrations.transformers.forward_patch import ForwardPatch


def attention(
    own: Callable[..., Any],
    module: Any,
    hidden_states: Tensor,  # (batch, length, dim)
    attention_dists: Tensor,  # not needed, the operator computes the distances
) -> Tensor:
    """Compute the self-attention of one layer: (batch, length, dim)."""
    states = module.pre_norm(hidden_states)
    batch, length, _ = states.shape
    size, center = module.context_size, module.max_pos_emb  # row `center` of the table is distance 0
    blocks = -(-length // size)
    # (batch · blocks, size, dim)
    states = F.pad(states, (0, 0, 0, blocks * size - length)).unflatten(1, (blocks, size)).flatten(0, 1)
    (query,) = project(states, module.dim_head, module.to_q)  # (batch · blocks, heads, size, dim_head)
    key, value = (split_heads(half, module.dim_head) for half in module.to_kv(states).chunk(2, dim=-1))
    lengths = torch.full((batch, blocks), size, device=states.device)
    lengths[:, -1] = length - (blocks - 1) * size
    table = rows_of(module.rel_pos_emb, center + size - 1, center - size + 1, query)
    attended = relative_attention(query, key, value, table, scale=module.scale, lengths=lengths.flatten())
    states = join_heads(attended).unflatten(0, (batch, blocks)).flatten(1, 2)[:, :length]
    return module.dropout(module.to_out(states))


MODULE = "granite_speech.modeling_granite_speech"
FAMILIES = (
    Family(
        f"{MODULE}.GraniteSpeechCTCEncoder",
        {"hidden_dim": 16, "num_layers": 2, "num_heads": 2, "dim_head": 8, "context_size": 23, "max_pos_emb": 29}
        | {"input_dim": 10, "output_dim": 7},
        lambda: {"hidden_states": torch.randn(2, 67, 10)},
        (ForwardPatch(f"{MODULE}.GraniteSpeechConformerAttention", attention),),
        since="5.0",
        config="GraniteSpeechEncoderConfig",
    ),
)
