"""Rotary positions: queries and keys are rotated by their positions, so that scores depend on distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relattn_mt.config import ModelConfig
from relattn_mt.model.attention import PlainAttention
from relattn_mt.model.positions.absolute import angles


def rotate(x: Tensor, start: int) -> Tensor:
    """Rotate vectors (…, length, head_dim) at positions start, start + 1, …: R_p x of Su et al. (2021), equation 34.

    The pair of dimensions (m, m + head_dim / 2) is rotated by the angle p · 10,000^(−2m / head_dim).

    Returns:
        The same shape and dtype as `x`.
    """
    positions = torch.arange(start, start + x.shape[-2], device=x.device)
    angle = angles(positions, x.shape[-1])  # (length, head_dim / 2)
    cos = angle.cos()
    sin = angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RotaryAttention(nn.Module):
    """Dot-product attention with rotated queries and keys: equation 16 of Su et al. (2021).

    e_ij = (R_i q_i) · (R_j k_j) / √head_dim        z_i = Σ_j α_ij v_j
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = PlainAttention(config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, query_offset: int = 0, **options: Any) -> Tensor:
        """Return the attention output. Shapes and options are those of `PlainAttention`."""
        query = rotate(query, query_offset)
        key = rotate(key, 0)
        return self.attention(query, key, value, query_offset=query_offset, **options)
