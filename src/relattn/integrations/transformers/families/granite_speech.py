"""Granite Speech's encoder: blocks of `context_size` positions that attend to themselves.

a_ij = softmax_j (q_i · (k_j + w_(i−j)) · s), of a table of keys by i − j, wide enough for every pair of a block: the
rows of the pairs that there are, the other way round, and no clipping. The last block may be shorter than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relattn import relative_attention
from relattn.integrations.transformers.calls import heads, joined
from relattn.integrations.transformers.patching import ForwardPatch


def attention(own: Callable[..., Any], module: Any, hidden_states: Tensor, attention_dists: Tensor) -> Tensor:
    """Self-attention of a layer, (batch, length, dim) to the same."""
    states = module.pre_norm(hidden_states)
    batch, length, _ = states.shape
    size, middle = module.context_size, module.max_pos_emb
    blocks = -(-length // size)
    states = F.pad(states, (0, 0, 0, blocks * size - length)).unflatten(1, (blocks, size)).flatten(0, 1)
    query = heads(module.to_q(states), module.dim_head)  # (batch · blocks, heads, size, dim_head)
    key, value = (heads(half, module.dim_head) for half in module.to_kv(states).chunk(2, dim=-1))
    lengths = torch.full((batch, blocks), size, device=states.device)
    lengths[:, -1] = length - (blocks - 1) * size
    table = module.rel_pos_emb.weight[middle - size + 1 : middle + size].flip(0).to(query.dtype)
    attended = relative_attention(query, key, value, table, scale=module.scale, key_lengths=lengths.flatten())
    states = joined(attended).unflatten(0, (batch, blocks)).flatten(1, 2)[:, :length]
    return module.dropout(module.to_out(states))


PATCHES = (ForwardPatch("granite_speech.modeling_granite_speech.GraniteSpeechConformerAttention", attention),)
