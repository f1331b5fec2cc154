"""Attention as the Transformer's layers use it: without a position signal, of a sequence to itself, and to the source.

Shapes: x is (rows, length, dim); inside attention, tensors are (rows, heads, length, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn import RelativeSelfAttention, relative_attention
from relattn.backends import unsupported_reason
from relattn.call import Call
from relattn.nn import linear
from relattn.positions import visible
from relattn.translation.config import ModelConfig


class PlainAttention(nn.Module):
    """Dot-product attention with no position signal of its own, dropping probabilities while training.

    PyTorch does it, but where probabilities are dropped on a CPU: it has no fast kernel for that, and the library has.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_dropout

    def forward(
        self,
        query: Tensor,  # (rows, heads, queries, head_dim)
        key: Tensor,  # (rows, heads, keys, head_dim)
        value: Tensor,  # (rows, heads, keys, head_dim)
        *,
        query_offset: int | None = None,  # position of query 0; by default the queries are the last of the keys
        is_causal: bool = False,
        lengths: Tensor | None = None,  # key_lengths and query_lengths in one
        key_lengths: Tensor | None = None,
        query_lengths: Tensor | None = None,  # what padding queries get makes no difference
    ) -> Tensor:  # (rows, heads, queries, head_dim)
        dropout_p = self.dropout if self.training else 0.0
        key_lengths = key_lengths if lengths is None else lengths
        if dropout_p > 0.0 and unsupported_reason("native", Call(query, key, value)) is None:
            return relative_attention(
                query,
                key,
                value,
                query_offset=query_offset,
                is_causal=is_causal,
                key_lengths=key_lengths,
                query_lengths=query_lengths,
                dropout_p=dropout_p,
            )
        queries, keys = query.shape[2], key.shape[2]
        offset = keys - queries if query_offset is None else query_offset
        mask = None
        if offset != 0 or key_lengths is not None:  # what PyTorch has no other word for
            call = Call(query, key, value, query_offset=offset, is_causal=is_causal, key_lengths=key_lengths)
            mask, is_causal = visible(call), False
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal)


class SelfAttention(RelativeSelfAttention):
    """Attention of a sequence to itself: the library's layer around the attention that `make` makes."""

    def __init__(self, config: ModelConfig, make: Callable[[], nn.Module], *, is_causal: bool) -> None:
        super().__init__(config.dim, config.heads, 0, tables="neither", is_causal=is_causal)
        self.attention = make()


class CrossAttention(nn.Module):
    """Attention of the target to the encoded source: no positions here, in the paper or in ours."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.out = (linear(config.dim, config.dim) for _ in range(4))
        self.attention = PlainAttention(config)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, src_len, dim) -> keys and values (rows, heads, src_len, head_dim), made once a sentence."""
        return split_heads(self.key(memory), self.heads), split_heads(self.value(memory), self.heads)

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor) -> Tensor:
        """(rows, length, dim) -> the same. Each source serves as many consecutive rows, as more queries of its own."""
        (key, value), sources = memory, src_lengths.shape[0]
        queries = x.shape[0] * x.shape[1] // max(1, sources)  # of a source
        query = split_heads(self.query(x).reshape(sources, queries, x.shape[2]), self.heads)
        attended = self.attention(query, key, value, key_lengths=src_lengths, query_offset=0)
        return self.out(attended.transpose(1, 2).flatten(2)).reshape(x.shape)

    def weights(self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor) -> Tensor:
        """(rows, length, dim), one row a source -> how each attends to it, (rows, heads, length, src_len), float32"""
        key, _ = memory
        query = split_heads(self.query(x), self.heads)
        scores = (query @ key.mT).float() * key.shape[-1] ** -0.5
        padding = torch.arange(key.shape[2], device=x.device) >= src_lengths[:, None]
        return scores.masked_fill(padding[:, None, None], float("-inf")).softmax(-1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(rows, length, dim) -> (rows, heads, length, head_dim)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
