"""Dropout whose masks are cheap to draw on a CPU."""

from __future__ import annotations

import torch
from torch import nn

_STEPS = 1 << 16  # a mask compares 16 random bits per element with the probability


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` that draws 16 random bits per element on a CPU, where PyTorch draws a number in [0, 1).

    One draw of 64 bits serves four elements. The probability of zero is p rounded to a multiple of 2^-16, and the other
    elements are scaled by the rounded probability. On other devices this is `torch.nn.Dropout`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return input with random elements set to zero and the others scaled. In evaluation, return it as it is."""
        dropped = round(self.p * _STEPS)
        if not self.training or dropped in (0, _STEPS) or input.device.type != "cpu":
            return super().forward(input)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64, device=input.device).random_(-(1 << 63), None)
        bits = draws.view(torch.int16)[: input.numel()].view(input.shape)
        scale = _STEPS / (_STEPS - dropped)
        return input * ((bits >= dropped - _STEPS // 2).to(input.dtype) * scale)
