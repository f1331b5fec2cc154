"""Linear layers, y = x Wᵀ + b."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """`nn.Linear` with Glorot-uniform weights and a zero bias."""

    def reset_parameters(self) -> None:
        super().reset_parameters()  # so that a seed gives the same weights as with `relattn.nn.linear`
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
