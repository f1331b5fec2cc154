"""An LSTM in place of self-attention: recurrence is what knows the order (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from relattn.translation.config import ModelConfig
from relattn.translation.model.linear import has_bf16
from relattn.translation.model.state import State


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
