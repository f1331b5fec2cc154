"""The sub-layers of a Transformer: self-attention, attention to the source, feed-forward, and the residual around them.

Shapes: x is (rows, length, dim); inside attention, tensors are (rows, heads, length, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from relattn import AttentionCache, RelativeSelfAttention
from relattn.nn import linear
from relattn.translation.config import ModelConfig
from relattn.translation.model.schemes import NoPositions, PlainAttention


class SelfAttention(RelativeSelfAttention):
    """Attention of a sequence to itself: the library's layer around the attention that the scheme makes."""

    def __init__(self, config: ModelConfig, positions: NoPositions, *, is_causal: bool) -> None:
        super().__init__(config.dim, config.heads, 0, tables="neither", is_causal=is_causal)
        self.attention = positions.attention()


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
        (key, value), sources = memory, len(src_lengths)
        queries = x.shape[0] * x.shape[1] // max(1, sources)  # of a source
        query = split_heads(self.query(x).reshape(sources, queries, x.shape[2]), self.heads)
        attended = self.attention(query, key, value, key_lengths=src_lengths, query_offset=0)
        return self.out(attended.transpose(1, 2).flatten(2)).reshape(x.shape)


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
        x = self.residuals[0](x, lambda y: self.self_attention(y, lengths))
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
            if seen is None:
                return self.self_attention.forward(y)
            attended, seen = self.self_attention.forward(y, cache=seen)
            return attended

        x = self.residuals[0](x, attend)
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, src_lengths))
        return self.residuals[2](x, self.feed_forward), seen


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(rows, length, dim) -> (rows, heads, length, head_dim)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
