"""The layers of a Transformer: sub-layers, and the residual around each. Throughout, x is (rows, length, dim)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relattn import AttentionCache
from relattn.nn import linear
from relattn.translation.config import ModelConfig
from relattn.translation.model.attention import CrossAttention
from relattn.translation.model.mixers import State
from relattn.translation.model.positions import NoPositions

if TYPE_CHECKING:
    from relattn.translation.model.transformer import Transformer

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "swish": nn.SiLU,
}


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    """Layer normalisation of (…, dim)."""
    return nn.LayerNorm(config.dim, eps=config.norm_epsilon)


class FeedForward(nn.Sequential):
    """Two linear maps with an activation between them, at every position alike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            linear(config.dim, config.feed_forward_dim),
            ACTIVATIONS[config.activation](),
            nn.Dropout(config.activation_dropout),
            linear(config.feed_forward_dim, config.dim),
        )


class Residual(nn.Module):
    """x + sublayer(x) with dropout, normalised before the sub-layer ("pre") or after the sum ("post")."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm, self.pre = layer_norm(config), config.norm == "pre"
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, positions: NoPositions) -> None:
        super().__init__()
        self.self_attention = positions.self_attention()
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = self.residuals[0](x, lambda y: self.self_attention(y, lengths))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then feed-forward."""

    def __init__(self, config: ModelConfig, positions: NoPositions) -> None:
        super().__init__()
        self.self_attention = positions.self_attention()
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def empty_cache(self, rows: int, capacity: int) -> AttentionCache | State:
        """What self-attention has seen before the first piece, with room for `capacity` pieces."""
        return cast(Any, self.self_attention).empty_cache(rows, capacity)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | tuple[Tensor, Tensor],
        src_lengths: Tensor,
        seen: AttentionCache | State | None = None,
    ) -> tuple[Tensor, AttentionCache | State | None]:
        """Memory is (rows, src_len, dim), or what `cross_attention.project` made of it.

        Target padding needs no mask: it stands to the right, where a causal query never looks.
        """
        projected = self.cross_attention.project(memory) if isinstance(memory, Tensor) else memory

        def attend(y: Tensor) -> Tensor:
            nonlocal seen
            if seen is None:
                return self.self_attention(y)
            attended, seen = self.self_attention(y, cache=seen)
            return attended

        x = self.residuals[0](x, attend)
        x = self.residuals[1](x, lambda y: self.cross_attention(y, projected, src_lengths))
        return self.residuals[2](x, self.feed_forward), seen


def recompute(model: Transformer) -> None:
    """Have a model's layers keep their inputs alone for the backward pass, and compute all else again in it.

    What they drop is drawn again from the same state of the generators, so nothing else changes.
    """
    for layer in (*model.encoder, *model.decoder):
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def forward_again(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args)
        return checkpoint(forward, *args, use_reentrant=False)

    return forward_again
