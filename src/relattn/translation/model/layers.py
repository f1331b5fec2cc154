"""The sub-layers of a Transformer: self-attention, attention to the source, feed-forward, and the residual around them.

Shapes: x is (rows, length, dim); inside attention, tensors are (rows, heads, length, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from relattn.cache import AttentionCache
from relattn.translation.config import ModelConfig
from relattn.translation.model.positions import NoPositions, length_mask


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map with Glorot-uniform weights and a zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class SelfAttention(nn.Module):
    """Attention of a sequence to itself; how positions enter is the scheme's business."""

    def __init__(self, config: ModelConfig, positions: NoPositions, *, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal, self.dropout = config.heads, is_causal, config.attention_dropout
        self.query, self.key, self.value, self.out = (linear(config.dim, config.dim) for _ in range(4))
        self.attention = positions.attention()

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, seen: AttentionCache | None = None
    ) -> tuple[Tensor, AttentionCache | None]:
        """(rows, length, dim) -> the same; with a cache of what stands before, the positions are added to it."""
        query, key, value = (split_heads(project(x), self.heads) for project in (self.query, self.key, self.value))
        if seen is not None:
            seen = seen.append(key, value)
            key, value = seen.key, seen.value
        attended = self.attention(
            query,
            key,
            value,
            is_causal=self.is_causal,
            key_lengths=lengths,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(join_heads(attended)), seen


class CrossAttention(nn.Module):
    """Attention of the target to the encoded source: no positions here, in the paper or in ours."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.query, self.key, self.value, self.out = (linear(config.dim, config.dim) for _ in range(4))

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, src_len, dim) -> keys and values (rows, heads, src_len, head_dim), made once a sentence."""
        return split_heads(self.key(memory), self.heads), split_heads(self.value(memory), self.heads)

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor) -> Tensor:
        """(rows, length, dim) -> the same. Each source serves as many consecutive rows, as more queries of its own."""
        (key, value), sources = memory, len(src_lengths)
        queries = x.shape[0] * x.shape[1] // max(1, sources)  # of a source
        query = split_heads(self.query(x).reshape(sources, queries, x.shape[2]), self.heads)
        mask = length_mask(src_lengths, key.shape[2])
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.out(join_heads(attended)).reshape(x.shape)


class FeedForward(nn.Sequential):
    """Two linear maps with a ReLU between them, at every position alike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            linear(config.dim, config.feed_forward_dim),
            nn.ReLU(),
            nn.Dropout(config.activation_dropout),
            linear(config.feed_forward_dim, config.dim),
        )


class Residual(nn.Module):
    """x + sublayer(x) with dropout, normalised before the sub-layer ("pre") or after the sum ("post")."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm, self.pre = nn.LayerNorm(config.dim), config.norm == "pre"
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, positions: NoPositions) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, is_causal=False)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = self.residuals[0](x, lambda y: self.self_attention(y, lengths)[0])
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then feed-forward."""

    def __init__(self, config: ModelConfig, positions: NoPositions) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, is_causal=True)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor, seen: AttentionCache | None = None
    ) -> tuple[Tensor, AttentionCache | None]:
        """Target padding needs no mask: it stands to the right, where a causal query never looks."""

        def attend(y: Tensor) -> Tensor:
            nonlocal seen
            attended, seen = self.self_attention(y, seen=seen)
            return attended

        x = self.residuals[0](x, attend)
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, src_lengths))
        return self.residuals[2](x, self.feed_forward), seen


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(rows, length, dim) -> (rows, heads, length, head_dim)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(rows, heads, length, head_dim) -> (rows, length, dim)"""
    return x.transpose(1, 2).flatten(2)
