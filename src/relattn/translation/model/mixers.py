"""Token mixers that take the place of self-attention: an LSTM and a convolution, and the state that they keep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from relattn.translation.config import ModelConfig
from relattn.translation.model.linear import has_bf16


@dataclass(frozen=True, eq=False)
class State:
    """A state after `length` positions, one row a sequence; the counterpart of the library's `AttentionCache`."""

    tensors: tuple[Tensor, ...]  # (batch, …) each
    length: int = 0  # positions seen

    @property
    def batch(self) -> int:
        return self.tensors[0].shape[0]

    def select(self, rows: Tensor) -> State:
        """The state of the sequences `rows`, repeats allowed."""
        return State(tuple(tensor.index_select(0, rows) for tensor in self.tensors), self.length)

    def move(self, rows: Tensor, to: Tensor, keep: int) -> State:
        """As `AttentionCache.move`, but not in place: a state is small."""
        return State(tuple(tensor.index_copy(0, to, tensor[rows])[:keep] for tensor in self.tensors), self.length)


class Recurrence(nn.Module):
    """PyTorch's LSTM over (rows, length, dim): forward in a causal layer, else half of the dims each way."""

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.dim, self.is_causal = config.dim, is_causal
        each = config.dim if is_causal else config.dim // 2
        self.lstm = nn.LSTM(config.dim, each, batch_first=True, bidirectional=not is_causal)

    def empty_cache(self, batch: int, capacity: int = 0) -> State:
        """The state before the first position; `capacity` is for sub-layers whose memory grows."""
        hidden, cell = (next(self.lstm.parameters()).new_zeros(batch, self.dim) for _ in range(2))
        return State((hidden, cell))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: State | None = None
    ) -> Tensor | tuple[Tensor, State]:
        """(rows, length, dim) -> the same; with a cache, of the positions that follow, and the new cache.

        `lengths` (rows,) says how much of each row is no padding, which the way back must not begin in.
        """
        if x.is_cpu and torch.is_autocast_enabled("cpu") and not has_bf16():  # PyTorch's LSTM then fails in bfloat16
            with torch.autocast("cpu", enabled=False):
                return self(x.to(next(self.lstm.parameters()).dtype), lengths, cache)
        if cache is not None:
            hidden, cell = (tensor[None].to(x.dtype) for tensor in cache.tensors)
            output, (hidden, cell) = self.lstm(x, (hidden, cell))
            return output, State((hidden[0], cell[0]), cache.length + x.shape[1])
        if lengths is None or len(x) == 0:  # no rows cannot be packed
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return output


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
