"""Rotary positions: queries and keys are rotated by their positions, so that scores depend on distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relattn.translation.config import ModelConfig
from relattn.translation.model.attention import PlainAttention
from relattn.translation.model.positions.absolute import angles


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate vectors by their positions: R_p x of Su et al. (2021), equation 34.

    The pair of dimensions (m, m + head_dim / 2) is rotated by the angle p · 10,000^(−2m / head_dim).

    Args:
        x: (…, length, head_dim), where head_dim is even.
        positions: (length,) positions p. A negative position rotates back.

    Returns:
        The same shape and dtype as `x`.
    """
    angle = angles(positions, x.shape[-1])  # (length, head_dim / 2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RotaryAttention(nn.Module):
    """Dot-product attention with rotated queries and keys, and optionally rotated values.

        e_ij = (R_i q_i) · (R_j k_j) / √head_dim        z_i = Σ_j α_ij v_j

    This is equation 16 of Su et al. (2021). With `values`, z_i = R_i⁻¹ Σ_j α_ij R_j v_j (arXiv 2606.11275).

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
        if self.values:
            value = rotate(value, key_positions)
        output = self.attention(query, key, value, query_offset=query_offset, **options)
        return rotate(output, -query_positions) if self.values else output
