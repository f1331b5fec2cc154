"""An LSTM and a convolution with the interface of self-attention."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from relattn.positions import is_valid
from relattn_mt.model.mixers import MixerState
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from research.baselines import KERNEL_SIZE


class LSTM(nn.Module):
    """`nn.LSTM`, whose documentation has the equations (Hochreiter and Schmidhuber 1997).

    Args:
        dim: Model dimension.
        is_causal: Whether there is one direction with hidden states of size dim, instead of two with dim / 2.
    """

    def __init__(self, dim: int, *, is_causal: bool) -> None:
        super().__init__()
        hidden = dim if is_causal else dim // 2
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=not is_causal)

    def empty_cache(self, batch: int, capacity: int = 0) -> MixerState:
        """Return the state before the first position. `capacity` has no effect: the state does not grow."""
        zeros = cast(Tensor, self.lstm.weight_hh_l0).new_zeros(batch, self.lstm.hidden_size)
        return MixerState((zeros, zeros))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: MixerState | None = None
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Return (rows, length, dim) for x of that shape, and with a cache the new one.

        `lengths` (rows,) are the valid positions: the backward direction begins at the last of them.
        """
        if cache is not None:
            hidden, cell = (tensor[None].to(x.dtype) for tensor in cache.tensors)
            output, (hidden, cell) = self.lstm(x, (hidden, cell))
            return output, MixerState((hidden[0], cell[0]), cache.length + x.shape[1])
        if lengths is None or len(x) == 0:  # an empty batch cannot be packed
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return output


class Convolution(nn.Module):
    """A convolution with a gated linear unit (Gehring et al. 2017, section 3.2).

        [a_i; b_i] = Σ_m W_m x_(i+m−before) + bias        y_i = a_i ⊙ σ(b_i)

    m counts the positions of the kernel, and x is zero outside of the sequence. If the layer is causal, the kernel ends
    at position i; otherwise i is in its middle.

    Args:
        dim: Model dimension.
        is_causal: Whether a position sees only itself and earlier positions.
    """

    def __init__(self, dim: int, *, is_causal: bool) -> None:
        super().__init__()
        reach = KERNEL_SIZE - 1
        before = reach if is_causal else reach // 2
        self.margins = (0, 0, before, reach - before)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * dim, dim, KERNEL_SIZE)))
        self.bias = nn.Parameter(torch.zeros(2 * dim))

    def empty_cache(self, batch: int, capacity: int = 0) -> MixerState:
        """Return the zeros before the first position. `capacity` has no effect: the state does not grow."""
        return MixerState((self.kernel.new_zeros(batch, KERNEL_SIZE - 1, self.kernel.shape[1]),))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: MixerState | None = None
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Return (rows, length, dim) for x of that shape, and with a cache the new one: the last positions.

        `lengths` (rows,) are the valid positions; the others count as zeros.
        """
        if lengths is not None:
            x = x * is_valid(x.shape[1], lengths)[..., None]
        x = F.pad(x, self.margins) if cache is None else torch.cat([cache.tensors[0].to(x.dtype), x], dim=1)
        convolved = F.conv1d(x.transpose(1, 2), self.kernel, self.bias)
        output = F.glu(convolved, dim=1).transpose(1, 2)
        if cache is None:
            return output
        return output, MixerState((x[:, 1 - KERNEL_SIZE :],), cache.length + output.shape[1])
