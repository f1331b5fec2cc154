"""Position schemes: everything in the model that knows where a piece stands.

A scheme has two duties: what it adds to embeddings (`embed`), and how a layer's self-attention attends
(`attention` makes that part, with whatever tables the layer learns). The rest of the model is the same for all,
so adding a scheme touches this file and the list of names in `config.py`.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn import RelativeAttention, relative_attention
from relattn.backends import unsupported_reason
from relattn.call import Call
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
        key_lengths: Tensor | None = None,
        query_lengths: Tensor | None = None,  # what padding queries get makes no difference
    ) -> Tensor:  # (rows, heads, queries, head_dim)
        dropout_p = self.dropout if self.training else 0.0
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


class NoPositions(nn.Module):
    """No position signal at all: the model sees a bag of pieces. A baseline, and a mistake anywhere else."""

    max_length: int | None = None  # longest sequence, in pieces; None where there is no limit

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        """Add what the scheme adds to (rows, length, dim) embeddings of the positions from `start` on."""
        return embeddings

    def attention(self) -> nn.Module:
        """The attention of one layer's self-attention, called as `PlainAttention`."""
        return PlainAttention(self.config)


class Sinusoidal(NoPositions):
    """Vaswani et al. (2017): sin and cos of the absolute position at geometric frequencies, for any length."""

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        length, dim = embeddings.shape[1:]
        position = torch.arange(start, start + length, device=embeddings.device, dtype=torch.float32)
        frequency = torch.exp(torch.arange(0, dim, 2, device=embeddings.device) * (-math.log(10_000.0) / dim))
        angle = position[:, None] * frequency  # (length, dim / 2)
        signal = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # sin at even dims, cos at odd ones
        return embeddings + signal.to(embeddings.dtype)


class Learned(NoPositions):
    """A learned vector a position, added to embeddings: nothing is known past `max_positions`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.max_length = config.max_positions
        self.weight = nn.Parameter(torch.randn(config.max_positions, config.dim) * config.dim**-0.5)

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        end = start + embeddings.shape[1]
        if end > self.config.max_positions:
            raise ValueError(f"learned positions end at {self.config.max_positions}, but the sequence needs {end}")
        return embeddings + self.weight[start:end]


class Relative(NoPositions):
    """Clipped relative positions inside every self-attention; nothing is added to embeddings (Shaw et al. 2018)."""

    def attention(self) -> nn.Module:
        config = self.config
        return RelativeAttention(
            config.dim // config.heads,
            config.window,
            config.heads if config.tables_per_head else None,
            tables=config.relative_tables,
            dropout=config.attention_dropout,
        )


class RelativeAndSinusoidal(Relative, Sinusoidal):
    """Both signals, which the paper found to give no gain over relative positions alone."""


SCHEMES = {
    "none": NoPositions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "relative+sinusoidal": RelativeAndSinusoidal,
}


def warn_if_blind(config: ModelConfig) -> None:
    """Say it loudly when a model has no way to tell word order: such a one learns badly and says nothing."""
    if config.positions == "none":
        warnings.warn(
            "positions: none — this model has NO position signal and cannot tell word order; use it as a baseline only",
            stacklevel=2,
        )
    elif config.positions == "relative" and config.window == (0, 0):
        warnings.warn(
            "clip: 0 — one label for every pair says nothing of positions: this model cannot tell word order",
            stacklevel=2,
        )
