"""Position schemes: everything in the model that knows where a piece stands.

A scheme has two duties: what it adds to embeddings (`embed`), and how the positions of a sequence see each other. For
that `self_attention` makes a layer's first sub-layer, and most schemes only say what attention stands inside it
(`attention`). The rest of the model is the same for all, so adding a scheme touches this file, and in `config.py` the
list of names and the scheme's options.

Each scheme names its paper; docs/family.md has those that are calls of the operator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from relattn import RelativeAttention, relative_attention
from relattn.nn import linear
from relattn.translation.config import ModelConfig
from relattn.translation.model.attention import PlainAttention, SelfAttention
from relattn.translation.model.mixers import Convolution, Recurrence


class NoPositions(nn.Module):
    """No position signal at all: the model sees a bag of pieces. A baseline, and a mistake anywhere else.

    Args:
        config: of the model.
        is_causal: whether it is for the decoder, where a position sees only itself and earlier ones.
    """

    max_length: int | None = None  # longest sequence, in pieces; None where there is no limit

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.config, self.is_causal = config, is_causal

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        """Add what the scheme adds to (rows, length, dim) embeddings of the positions from `start` on."""
        return embeddings

    def attention(self) -> nn.Module:
        """The attention inside one layer's self-attention, called as `PlainAttention`."""
        return PlainAttention(self.config)

    def self_attention(self) -> nn.Module:
        """The sub-layer of one layer in which positions see each other, called as `SelfAttention`."""
        return SelfAttention(self.config, self.attention, is_causal=self.is_causal)


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Vaswani et al. (2017), 3.5: (length,) positions -> (length, dim), sin at even dims and cos at odd ones."""
    frequency = torch.exp(torch.arange(0, dim, 2, device=positions.device) * (-math.log(10_000.0) / dim))
    angle = positions.float()[:, None] * frequency  # (length, dim / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Sinusoidal(NoPositions):
    """Vaswani et al. (2017): sin and cos of the absolute position at geometric frequencies, for any length."""

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        length, dim = embeddings.shape[1:]
        positions = torch.arange(start, start + length, device=embeddings.device)
        return embeddings + sinusoids(positions, dim).to(embeddings.dtype)


class Learned(NoPositions):
    """A learned vector a position, added to embeddings: nothing is known past `max_positions`."""

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__(config, is_causal=is_causal)
        assert config.max_positions is not None
        self.max_length = config.max_positions
        self.weight = nn.Parameter(torch.randn(config.max_positions, config.dim) * config.dim**-0.5)

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        end = start + embeddings.shape[1]
        if end > len(self.weight):
            raise ValueError(f"learned positions end at {len(self.weight)}, but the sequence needs {end}")
        return embeddings + self.weight[start:end]


class Relative(NoPositions):
    """Clipped relative positions inside every self-attention; nothing is added to embeddings (Shaw et al. 2018)."""

    def attention(self) -> nn.Module:
        config = self.config
        return RelativeAttention(
            config.dim // config.heads,
            config.window,
            config.heads if config.tables_per_head else None,
            tables=config.relative_tables or "both",
            beyond=config.beyond or "clip",
            dropout=config.attention_dropout,
        )


class RelativeAndSinusoidal(Relative, Sinusoidal):
    """Both signals, which the paper found to give no gain over relative positions alone."""


class DistanceAttention(nn.Module):
    """Attention whose scores have a term for each distance j − i, as far as the sequence reaches: no clipping.

    A subclass says what that term is made of, in `terms`. Options are those of `PlainAttention`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query of the content term and that of the relative term, and the table of (labels,) distances j − i."""
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False, **where: Any) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        offset = keys - queries if where.get("query_offset") is None else where["query_offset"]
        left, right = max(0, offset + queries - 1), 0 if is_causal else max(0, keys - 1 - offset)
        distances = torch.arange(-left, right + 1, device=query.device)
        content, relative, rel_key = self.terms(query, distances)
        where |= {"is_causal": is_causal, "clip": (left, right), "rel_query": relative}
        return relative_attention(
            content, key, value, rel_key, dropout_p=self.dropout if self.training else 0.0, **where
        )


class TransformerXLAttention(DistanceAttention):
    """((q_i + u) · k_j + (q_i + v) · R_(i−j)) / √d, with R a projection of sinusoids of i − j."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.distance = linear(config.dim, config.dim, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(config.heads, 1, config.dim // config.heads)) for _ in range(2))

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        signal = sinusoids(-distances, self.distance.in_features).to(self.distance.weight.dtype)
        rel_key = self.distance(signal).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (heads, labels, head_dim)
        return query + self.u.to(query.dtype), query + self.v.to(query.dtype), rel_key.to(query.dtype)


class TransformerXL(NoPositions):
    """Sinusoids of distances, and two learned biases, in every score (Dai et al. 2019), for any length."""

    def attention(self) -> nn.Module:
        return TransformerXLAttention(self.config)


class BiasAttention(DistanceAttention):
    """q_i · k_j / √d + b(j − i), where `bias` of a stack gives the b of (labels,) distances, a head a row."""

    def __init__(self, config: ModelConfig, bias: nn.Module) -> None:
        super().__init__(config)
        self.shared = (bias,)  # in a tuple, for it is not this layer's to keep: all layers of a stack have the same

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.shared[0](distances) * query.shape[3] ** 0.5  # which the operator scales too
        return query, torch.ones_like(query[..., :1]), bias[..., None].to(query.dtype)


class Buckets(nn.Module):
    """T5's biases: a learned number for each bucket of distances and each head."""

    BUCKETS, FARTHEST = 32, 128  # of both directions; distances from there on share one

    def __init__(self, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.zeros(heads, self.BUCKETS))

    def bucket(self, distances: Tensor) -> Tensor:
        """(labels,) j − i -> (labels,) in [0, BUCKETS): one for each short distance, then wider and wider ones."""
        buckets = self.BUCKETS if self.is_causal else self.BUCKETS // 2  # of one direction
        exact = buckets // 2
        far = (-distances).clamp(min=0) if self.is_causal else distances.abs()
        share = torch.log(far.clamp(min=1).float() / exact) / math.log(self.FARTHEST / exact)
        wide = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        later = 0 if self.is_causal else (distances > 0).long() * buckets
        return later + torch.where(far < exact, far, wide)

    def forward(self, distances: Tensor) -> Tensor:
        """(labels,) distances j − i -> (heads, labels)"""
        return self.weight[:, self.bucket(distances)]


class T5(NoPositions):
    """A learned bias for each bucket of distances and each head, the same in all layers (Raffel et al. 2020).

    Distances from 128 on share a bucket, so there is no limit of length. T5 itself leaves scores unscaled, which its
    first weights make up for; here they are scaled as everywhere.
    """

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__(config, is_causal=is_causal)
        self.buckets = Buckets(config.heads, is_causal=is_causal)

    def attention(self) -> nn.Module:
        return BiasAttention(self.config, self.buckets)


class Slopes(nn.Module):
    """ALiBi's biases: −m |j − i|, with slopes m from 2^(−8 / heads) down to 2^−8 over the heads. Nothing is learned."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, distances: Tensor) -> Tensor:
        """(labels,) distances j − i -> (heads, labels)"""
        head = torch.arange(1, self.heads + 1, device=distances.device)
        return -(2.0 ** (-8.0 * head / self.heads))[:, None] * distances.abs()


class ALiBi(NoPositions):
    """Scores fall in a line with distance (Press et al. 2022), in the encoder on both sides alike; for any length."""

    def attention(self) -> nn.Module:
        return BiasAttention(self.config, Slopes(self.config.heads))


class RotaryAttention(nn.Module):
    """Attention of queries and keys rotated by their positions, and of values too where `values` says so.

    A query's output is then rotated back by its own position: z_i = R_i⁻¹ Σ_j α_ij R_j v_j.
    """

    def __init__(self, config: ModelConfig, *, values: bool) -> None:
        super().__init__()
        self.values = values
        self.attention = PlainAttention(config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **where: Any) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        offset = keys - queries if where.get("query_offset") is None else where["query_offset"]
        of_query = torch.arange(offset, offset + queries, device=query.device)
        of_key = torch.arange(keys, device=query.device)
        query, key = rotated(query, of_query), rotated(key, of_key)
        if not self.values:
            return self.attention(query, key, value, **where)
        return rotated(self.attention(query, key, rotated(value, of_key), **where), -of_query)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """(…, length, dim) with the pair (x_m, x_(m + dim/2)) turned by the angle position · 10,000^(−2m / dim)."""
    half = x.shape[-1] // 2
    frequency = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000.0) / half))
    angle = positions.float()[:, None] * frequency  # (length, dim / 2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RoPE(NoPositions):
    """Queries and keys rotated by their positions: scores know the distance (Su et al. 2021); for any length."""

    def attention(self) -> nn.Module:
        return RotaryAttention(self.config, values=False)


class RoVE(NoPositions):
    """RoPE with values rotated too, so that outputs know the distance (arXiv 2606.11275, 2026); for any length."""

    def attention(self) -> nn.Module:
        return RotaryAttention(self.config, values=True)


class LSTM(NoPositions):
    """Recurrence in place of self-attention, both ways in the encoder; for any length."""

    def self_attention(self) -> nn.Module:
        return Recurrence(self.config, is_causal=self.is_causal)


class CNN(NoPositions):
    """A gated convolution in place of self-attention (Gehring et al. 2017); for any length."""

    def self_attention(self) -> nn.Module:
        return Convolution(self.config, is_causal=self.is_causal)


SCHEMES = {
    "none": NoPositions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "relative+sinusoidal": RelativeAndSinusoidal,
    "xl": TransformerXL,
    "t5": T5,
    "alibi": ALiBi,
    "rope": RoPE,
    "rove": RoVE,
    "lstm": LSTM,
    "cnn": CNN,
}


def blindness(config: ModelConfig) -> str | None:
    """Why a model has no way to tell word order, or None: such a one learns badly and says nothing."""
    if config.positions == "none":
        return (
            "positions: none — this model has NO position signal and cannot tell word order; use it as a baseline only"
        )
    if config.positions == "relative" and config.window == (0, 0):
        return "clip: 0 — one label for every pair says nothing of positions: this model cannot tell word order"
    if config.positions == "cnn" and config.kernel_size == 1:
        return "kernel_size: 1 — no position sees another: this model cannot tell word order"
    return None
