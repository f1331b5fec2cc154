"""Attention without a position signal, and attention from the target to the source.

Between sub-layers x is (rows, length, dim). Inside attention, tensors are (rows, heads, length, head_dim).
"""

from __future__ import annotations

import torch.nn.functional as F
from relattn import relative_attention
from relattn.positions import distances, is_valid
from torch import Tensor, nn

from relattn_mt.config import ModelConfig
from relattn_mt.model.linear import Linear


class PlainAttention(nn.Module):
    """Dot-product attention without a position signal (Vaswani et al. 2017, equation 1), with attention dropout.

    In training on a CPU it runs on `relative_attention`: with dropout, PyTorch has no fused kernel, and with a padding
    mask its kernel is several times slower. Elsewhere it runs on PyTorch's `scaled_dot_product_attention`.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_offset: int = 0,
        is_causal: bool = False,
        lengths: Tensor | None = None,
        key_lengths: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output. The options are those that `relattn.nn.SelfAttention` passes.

        Args:
            query: (rows, heads, queries, head_dim).
            key: (rows, heads, keys, head_dim).
            value: (rows, heads, keys, head_dim).
            query_offset: Position of query 0 on the key axis.
            is_causal: Whether a query attends only to keys at its own and earlier positions.
            lengths: (rows,) valid positions of each sequence in self-attention: `key_lengths` and `query_lengths`.
            key_lengths: (rows,) valid keys of each sequence.
            query_lengths: (rows,) valid queries of each sequence. Outputs at the other queries are undefined.

        Returns:
            (rows, heads, queries, head_dim).
        """
        if lengths is not None:
            key_lengths = query_lengths = lengths
        dropout_p = self.dropout if self.training else 0.0
        if self.training and query.is_cpu:
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
        if query_offset == 0 and key_lengths is None:  # PyTorch's `is_causal` starts at 0 and has no key padding
            return F.scaled_dot_product_attention(query, key, value, None, dropout_p, is_causal)
        keys = key.shape[2]
        mask = None if key_lengths is None else is_valid(keys, key_lengths)[:, None, None]
        if is_causal:
            earlier = distances(query.shape[2], keys, query_offset, query.device) <= 0
            mask = earlier if mask is None else mask & earlier
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p)


class CrossAttention(nn.Module):
    """Multi-head attention from the target to the encoded source, without relative positions, as in the papers.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.out = projections(config)
        self.attention = PlainAttention(config)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a source, which stay the same for all decoding steps.

        Args:
            memory: (sources, src_len, dim), the output of the encoder.

        Returns:
            Keys and values, (sources, heads, src_len, head_dim) each.
        """
        return split_heads(self.key(memory), self.heads), split_heads(self.value(memory), self.heads)

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor) -> Tensor:
        """Attend from target positions to their source.

        Args:
            x: (rows, length, dim), where rows is a multiple of sources. Each source has rows / sources consecutive
                rows, for example the hypotheses of a beam. They are computed as additional queries of that source.
            memory: Keys and values, (sources, heads, src_len, head_dim) each, as `project` returns them.
            src_lengths: (sources,) valid source positions.

        Returns:
            (rows, length, dim).
        """
        key, value = memory
        sources = src_lengths.shape[0]
        queries = x.shape[0] * x.shape[1] // max(1, sources)  # per source
        query = split_heads(self.query(x.reshape(sources, queries, x.shape[2])), self.heads)
        attended = self.attention(query, key, value, key_lengths=src_lengths)
        return self.out(attended.transpose(1, 2).flatten(2)).reshape(x.shape)

    def weights(
        self, x: Tensor, memory: tuple[Tensor, Tensor], src_lengths: Tensor, heads: int | None = None
    ) -> Tensor:
        """Return the attention probabilities of the first heads in `forward`, for one row per source.

        Args:
            x: (rows, length, dim).
            memory: Keys and values, (rows, heads, src_len, head_dim) each.
            src_lengths: (rows,) valid source positions.
            heads: Number of heads; all by default.

        Returns:
            (rows, heads, length, src_len), float32.
        """
        heads = self.heads if heads is None else heads
        key = memory[0][:, :heads]
        dim = heads * key.shape[-1]
        query = split_heads(F.linear(x, self.query.weight[:dim], self.query.bias[:dim]), heads)
        scores = (query @ key.mT).float() * key.shape[-1] ** -0.5
        padding = ~is_valid(key.shape[2], src_lengths)[:, None, None]
        return scores.masked_fill(padding, float("-inf")).softmax(-1)


def projections(config: ModelConfig) -> list[Linear]:
    """Return the maps of an attention layer to queries, keys and values of all heads, and from their outputs."""
    joined = config.heads * config.head_size
    return [*(Linear(config.dim, joined) for _ in range(3)), Linear(joined, config.dim)]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split (rows, length, dim) into heads: (rows, heads, length, head_dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
