"""Encoder and decoder layers: sub-layers, each inside a residual connection. Throughout, x is (rows, length, dim)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from relattn_mt.config import ModelConfig
from relattn_mt.model.attention import CrossAttention
from relattn_mt.model.dropout import Dropout
from relattn_mt.model.linear import Linear
from relattn_mt.model.mixers import MixerCache, TokenMixer


class GELUSigmoid(nn.Module):
    """Approximation of GELU, x·sigmoid(1.702x) (Hendrycks and Gimpel 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "gelu_sigmoid": GELUSigmoid,
    "swish": nn.SiLU,
}


def norm(config: ModelConfig) -> nn.Module:
    """Return a normalization of vectors of the model's dimension."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.dim, eps=config.norm_epsilon)


class FeedForward(nn.Sequential):
    """Two linear layers with an activation f between them, W₃ f(W₀ x), which apply to each position separately.

    With a gate, they are W₃ (f(W₀ x) ⊙ V x) (Shazeer 2020).

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            Linear(config.dim, config.feed_forward_dim),
            ACTIVATIONS[config.activation](),
            Dropout(config.activation_dropout),
            Linear(config.feed_forward_dim, config.dim),
        )
        self.gate = Linear(config.dim, config.feed_forward_dim) if config.feed_forward == "gated" else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, length, dim) for x of that shape."""
        hidden = self[1](self[0](x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        output: Tensor = self[3](self[2](hidden))
        return output


class Residual(nn.Module):
    """Residual connection x + dropout(sublayer(x)), with normalization of the input or, with norm "post", of the sum.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm(config)
        self.pre = config.norm != "post"
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sub-layer, a function from (rows, length, dim) to the same shape."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """A token mixer, then the feed-forward sub-layer.

    Args:
        config: Configuration of the model.
        self_attention: The token mixer, which is not causal.
    """

    def __init__(self, config: ModelConfig, self_attention: TokenMixer) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (rows, length, dim) for x of that shape with (rows,) valid positions."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, lengths))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """A causal token mixer, attention to the source, then the feed-forward sub-layer.

    Args:
        config: Configuration of the model.
        self_attention: The token mixer, which is causal.
    """

    def __init__(self, config: ModelConfig, self_attention: TokenMixer) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | tuple[Tensor, Tensor],
        src_lengths: Tensor,
        cache: MixerCache | None = None,
        heads: int = 0,
    ) -> tuple[Tensor, MixerCache | None, Tensor | None]:
        """Apply the layer. Target padding needs no mask: it is on the right, where causal layers do not look.

        Args:
            x: (rows, length, dim). With a cache: the positions that follow those in the cache.
            memory: (sources, src_len, dim), or its keys and values from `cross_attention.project`.
            src_lengths: (sources,) valid source positions.
            cache: Cache of the token mixer.
            heads: Number of heads whose attention to the source is returned too.

        Returns:
            (rows, length, dim); the new cache if one was given, else None; and the mean attention probabilities of the
            first heads, (rows, length, src_len), or None without heads.
        """
        projected = self.cross_attention.project(memory) if isinstance(memory, Tensor) else memory
        weights = None

        def mix(y: Tensor) -> Tensor:
            nonlocal cache
            if cache is None:
                return self.self_attention(y)
            mixed, cache = self.self_attention(y, cache=cache)
            return mixed

        def attend(y: Tensor) -> Tensor:
            nonlocal weights
            if heads:
                weights = self.cross_attention.weights(y, projected, src_lengths, heads).mean(1)
            return self.cross_attention(y, projected, src_lengths)

        x = self.residuals[0](x, mix)
        x = self.residuals[1](x, attend)
        return self.residuals[2](x, self.feed_forward), cache, weights
