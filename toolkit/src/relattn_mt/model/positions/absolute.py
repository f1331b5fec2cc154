"""Absolute positions: a vector per position, added to the embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relattn_mt.config.positions import require_length
from relattn_mt.engine.terms import fairseq_sinusoids


def angles(positions: Tensor, dim: int) -> Tensor:
    """Return the angles p / 10,000^(2m / dim), (length, dim / 2), of positions p (length,), which may be negative.

    Returns:
        (length, dim / 2), float32.
    """
    component = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device)
    frequency = torch.exp(component * (-math.log(10_000.0) / dim))
    return positions.float()[:, None] * frequency


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return the sinusoids of Vaswani et al. (2017), section 3.5, (length, dim), of positions (length,).

    PE(p, 2m) = sin(p / 10,000^(2m / dim)) and PE(p, 2m + 1) = cos(p / 10,000^(2m / dim)).

    Returns:
        (length, dim), float32.
    """
    angle = angles(positions, dim)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class SinusoidalSignal(nn.Module):
    """Sinusoids of the position (Vaswani et al. 2017, section 3.5). Any length is supported."""

    def forward(self, embeddings: Tensor, start: int) -> Tensor:
        """Return what is added to (rows, length, dim) embeddings at positions start, start + 1, …: (length, dim)."""
        length, dim = embeddings.shape[1:]
        positions = torch.arange(start, start + length, device=embeddings.device)
        return sinusoids(positions, dim).to(embeddings.dtype)


class LearnedSignal(nn.Module):
    """A learned vector per position (Gehring et al. 2017, section 3.1).

    Args:
        max_positions: Number of positions. Longer sequences are not supported.
        dim: Dimension of embeddings. `weight` is (max_positions, dim).
        is_fixed: Whether the vectors are Marian's sinusoids, sin(p / 10,000^(2m / (dim − 2))) and then the cosines, and
            are not trained.
    """

    def __init__(self, max_positions: int, dim: int, is_fixed: bool = False) -> None:
        super().__init__()
        if is_fixed:
            self.weight = nn.Parameter(torch.from_numpy(fairseq_sinusoids(max_positions, dim)), requires_grad=False)
        else:
            self.weight = nn.Parameter(torch.randn(max_positions, dim).mul_(dim**-0.5))

    def forward(self, embeddings: Tensor, start: int) -> Tensor:
        """Return what is added, as `SinusoidalSignal` does."""
        end = start + embeddings.shape[1]
        require_length(len(self.weight), end)
        return self.weight[start:end]
