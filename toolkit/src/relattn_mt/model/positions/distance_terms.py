"""Schemes whose scores have an additional term for each distance j − i, without clipping.

All are calls of `relative_attention` with a clipping range that covers the whole sequence. The table of the call has
one row per distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from relattn import relative_attention
from torch import Tensor, nn

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import BucketBias
from relattn_mt.model.linear import Linear
from relattn_mt.model.positions.absolute import sinusoids


class DistanceAttention(nn.Module):
    """Attention with a score term for each distance j − i that occurs in the sequence.

        e_ij = (c_i · k_j + r_i · t_(j−i)) / √head_dim        z_i = Σ_j α_ij v_j

    A subclass defines the content query c, the relative query r and the table t, in `terms`.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the content query, the relative query and the table.

        Args:
            query: (rows, heads, queries, head_dim).
            distances: (labels,) consecutive distances j − i.

        Returns:
            Content query (rows, heads, queries, head_dim), relative query (rows, heads, queries, rel_dim) and table
            (heads, labels, rel_dim), with one row per distance.
        """
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_offset: int = 0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """Return the attention output. Shapes and options are those of `PlainAttention`."""
        left = max(0, query_offset + query.shape[2] - 1)
        right = 0 if is_causal else max(0, key.shape[2] - 1 - query_offset)
        content, relative, rel_key = self.terms(query, torch.arange(-left, right + 1, device=query.device))
        return relative_attention(
            content,
            key,
            value,
            rel_key,
            rel_query=relative,
            clip=(left, right),
            query_offset=query_offset,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            **options,
        )


class TransformerXLAttention(DistanceAttention):
    """Transformer-XL's attention (Dai et al. 2019, section 3.3).

        e_ij = ((q_i + u) · k_j + (q_i + v) · W R_(i−j)) / √head_dim

    R are sinusoids of the distance i − j and W is `distance`, without a bias. u and v, (heads, 1, head_dim), start at
    zero.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.distance = Linear(config.dim, config.heads * config.head_size, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(config.heads, 1, config.head_size)) for _ in range(2))

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        signal = sinusoids(-distances, self.distance.in_features).to(self.distance.weight.dtype)
        rel_key = self.distance(signal).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (heads, labels, head_dim)
        return query + self.u.to(query.dtype), query + self.v.to(query.dtype), rel_key.to(query.dtype)


class BiasAttention(DistanceAttention):
    """Attention with a bias per head and distance: e_ij = q_i · k_j / √head_dim + b(j − i).

    Args:
        config: Configuration of the model.
        bias: Function of (labels,) distances that returns (heads, labels) biases: a module of this layer's own, or the
            bound method of one that all layers share, which keeps its parameters out of the state of each layer, and is
            copied together with the model.
    """

    def __init__(self, config: ModelConfig, bias: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config)
        self.bias = bias

    def terms(self, query: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.bias(distances) * query.shape[3] ** 0.5  # the operator divides this term by √head_dim too
        return query, torch.ones_like(query[..., :1]), bias[..., None].to(query.dtype)


class Buckets(nn.Module):
    """T5's biases, a learned number per head and bucket of distances (Raffel et al. 2020, section 2.1).

    `weight` is (buckets, heads). T5 itself does not divide scores by √head_dim, and compensates for it in its initial
    weights. Distances of 128 and more share a bucket.

    Args:
        heads: Number of heads.
        is_causal: Whether keys never lie to the right of a query. All buckets are then for distances to the left,
            else half of them.
    """

    def __init__(self, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.zeros(BucketBias.buckets, heads))
        self.starts: Tensor
        self.register_buffer("starts", torch.tensor(BucketBias.starts(is_causal)), persistent=False)

    def bucket(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance j − i (labels,), in [0, BucketBias.buckets).

        Returns:
            (labels,), int64.
        """
        far = (-distances).clamp(min=0) if self.is_causal else distances.abs()
        bucket = torch.bucketize(far, self.starts, right=True)
        return bucket if self.is_causal else bucket + (distances > 0) * (1 + len(self.starts))

    def forward(self, distances: Tensor) -> Tensor:
        """Return the biases (heads, labels) of (labels,) distances j − i."""
        return self.weight[self.bucket(distances)].T


class Slopes(nn.Module):
    """ALiBi's biases (Press et al. 2022, section 3): −m |j − i|, where the slope m of head h is 2^(−8h / heads).

    h is 1, …, heads. Nothing is learned. The paper's models are decoders. Here the encoder uses the same slopes in both
    directions.

    Args:
        heads: Number of heads.
        is_causal: Not used.
    """

    def __init__(self, heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, distances: Tensor) -> Tensor:
        """Return the biases (heads, labels) of (labels,) distances j − i."""
        head = torch.arange(1, self.heads + 1, dtype=torch.float32, device=distances.device)
        return -(2.0 ** (-8.0 * head / self.heads))[:, None] * distances.abs()
