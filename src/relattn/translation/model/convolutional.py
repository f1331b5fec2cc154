"""A gated convolution in place of self-attention: its window is what knows the order (Gehring et al. 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn.translation.config import ModelConfig
from relattn.translation.model.state import State


class Convolution(nn.Module):
    """A convolution and a gated linear unit over (rows, length, dim); past either end of a row there are zeros.

    A position sees `kernel_size` of them: itself and those before in a causal layer, else as many on either side.
    """

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        assert config.kernel_size is not None
        self.dim, self.before, self.is_causal = config.dim, config.kernel_size - 1, is_causal
        self.convolution = nn.Conv1d(config.dim, 2 * config.dim, config.kernel_size)
        nn.init.xavier_uniform_(self.convolution.weight)
        assert self.convolution.bias is not None
        nn.init.zeros_(self.convolution.bias)

    def empty_cache(self, batch: int, capacity: int = 0) -> State:
        """The zeros before the first position; `capacity` is for sub-layers whose memory grows."""
        return State((self.convolution.weight.new_zeros(batch, self.before, self.dim),))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: State | None = None
    ) -> Tensor | tuple[Tensor, State]:
        """(rows, length, dim) -> the same; with a cache, of the positions that follow, and the new cache.

        `lengths` (rows,) says how much of each row is no padding, which counts as zeros.
        """
        if lengths is not None:
            x = x * (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        if cache is not None:
            x = torch.cat([cache.tensors[0].to(x.dtype), x], dim=1)
        elif self.is_causal:
            x = F.pad(x, (0, 0, self.before, 0))
        else:
            x = F.pad(x, (0, 0, self.before // 2, self.before // 2))
        output = F.glu(self.convolution(x.transpose(1, 2)), dim=1).transpose(1, 2)
        if cache is None:
            return output
        return output, State((x[:, x.shape[1] - self.before :],), cache.length + output.shape[1])
