"""Rotary positions: queries and keys are rotated by their positions, so that scores depend on the distance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from relattn.translation.config import ModelConfig
from relattn.translation.model.attention import PlainAttention
from relattn.translation.model.positions.base import PositionScheme


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate vectors by their positions: R_p x of Su et al. (2021), equation 34.

    The pair of dimensions (m, m + head_dim / 2) is rotated by the angle p · 10,000^(−2m / head_dim).

    Args:
        x: (…, length, head_dim), where head_dim is even.
        positions: (length,) positions p. A negative position rotates back.

    Returns:
        The same shape and dtype as `x`.
    """
    half = x.shape[-1] // 2
    frequency = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000.0) / half))
    angle = positions.float()[:, None] * frequency  # (length, head_dim / 2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RotaryAttention(nn.Module):
    """Dot-product attention with rotated queries and keys, and optionally rotated values.

        e_ij = (R_i q_i) · (R_j k_j) / √head_dim        z_i = Σ_j α_ij v_j

    With `values`, z_i = R_i⁻¹ Σ_j α_ij R_j v_j.

    Args:
        config: Configuration of the model.
        values: Whether values are rotated too.
    """

    def __init__(self, config: ModelConfig, *, values: bool) -> None:
        super().__init__()
        self.values = values
        self.attention = PlainAttention(config)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, query_offset: int | None = None, **options: Any
    ) -> Tensor:
        """Return the attention output. Shapes and options are those of `PlainAttention`."""
        queries, keys = query.shape[2], key.shape[2]
        offset = keys - queries if query_offset is None else query_offset
        query_positions = torch.arange(offset, offset + queries, device=query.device)
        key_positions = torch.arange(keys, device=query.device)
        query, key = rotate(query, query_positions), rotate(key, key_positions)
        options["query_offset"] = query_offset
        if not self.values:
            return self.attention(query, key, value, **options)
        return rotate(self.attention(query, key, rotate(value, key_positions), **options), -query_positions)


class RoPE(PositionScheme):
    """Queries and keys rotated by their positions (Su et al. 2021, equation 16); for any length."""

    def attention(self) -> RotaryAttention:
        """Build `RotaryAttention` that rotates queries and keys."""
        return RotaryAttention(self.config, values=False)


class RoVE(PositionScheme):
    """RoPE with rotated values, so that outputs depend on the distance too (arXiv 2606.11275, 2026); for any length."""

    def attention(self) -> RotaryAttention:
        """Build `RotaryAttention` that rotates queries, keys and values."""
        return RotaryAttention(self.config, values=True)
