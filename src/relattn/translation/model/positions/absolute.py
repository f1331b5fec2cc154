"""Absolute positions: a vector per position, added to the embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relattn.translation.config import ModelConfig
from relattn.translation.model.positions.base import PositionScheme


def angles(positions: Tensor, dim: int) -> Tensor:
    """Return the angles p / 10,000^(2m / dim) for m = 0, …, dim / 2 − 1.

    Args:
        positions: (length,) positions p, which may be negative.
        dim: Even dimension.

    Returns:
        (length, dim / 2), float32.
    """
    frequency = torch.exp(torch.arange(0, dim, 2, device=positions.device) * (-math.log(10_000.0) / dim))
    return positions.float()[:, None] * frequency


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return the sinusoids of Vaswani et al. (2017), section 3.5.

    PE(p, 2m) = sin(p / 10,000^(2m / dim)) and PE(p, 2m + 1) = cos(p / 10,000^(2m / dim)).

    Args:
        positions: (length,) positions p, which may be negative.
        dim: Even dimension of the result.

    Returns:
        (length, dim), float32.
    """
    angle = angles(positions, dim)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Sinusoidal(PositionScheme):
    """Sinusoids of the position, added to embeddings (Vaswani et al. 2017, section 3.5). Any length is supported."""

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        length, dim = embeddings.shape[1:]
        positions = torch.arange(start, start + length, device=embeddings.device)
        return embeddings + sinusoids(positions, dim).to(embeddings.dtype)


class Learned(PositionScheme):
    """A learned vector per position, added to embeddings (Gehring et al. 2017, section 3.1).

    `weight` is (max_positions, dim). Longer sequences are not supported.
    """

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__(config, is_causal=is_causal)
        assert config.max_positions is not None
        self.max_length = config.max_positions
        self.weight = nn.Parameter(torch.randn(config.max_positions, config.dim).mul_(config.dim**-0.5))

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        end = start + embeddings.shape[1]
        if end > len(self.weight):
            raise ValueError(
                f"a sequence must have at most {len(self.weight)} pieces (max_positions), got {end};"
                " train with a larger max_positions or with another position scheme"
            )
        return embeddings + self.weight[start:end]
