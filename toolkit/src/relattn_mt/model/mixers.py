"""Token mixers other than self-attention: an LSTM, an SSRU and a convolution.

A token mixer is the sub-layer of a layer in which positions see each other. All token mixers map (rows, length, dim) to
the same shape and have the interface of `relattn.nn.SelfAttention`: `forward(x, lengths, cache)` and `empty_cache`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from relattn import AttentionCache, SelfAttention
from relattn.positions import is_valid
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from relattn_mt.model.linear import Linear


def has_bf16() -> bool:
    """Return whether oneDNN computes in bfloat16 on this processor."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@dataclass(frozen=True, eq=False)
class MixerState:
    """State of a causal token mixer, whose size does not depend on the length; the counterpart of `AttentionCache`.

    Attributes:
        tensors: The state, (rows, …) each.
        length: Number of positions that the state covers.
    """

    tensors: tuple[Tensor, ...]
    length: int = 0

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.tensors[0].shape[0]

    def select(self, rows: Tensor) -> MixerState:
        """Return the state of the given rows: (new_rows,) indices, which may repeat."""
        return MixerState(tuple(tensor.index_select(0, rows) for tensor in self.tensors), self.length)


class LSTMMixer(nn.Module):
    """PyTorch's `nn.LSTM` as a token mixer (Hochreiter and Schmidhuber 1997).

    Causal: one LSTM with a hidden state of size dim, from left to right. Otherwise: one LSTM per direction with a
    hidden state of size dim / 2, whose outputs are concatenated. The documentation of `nn.LSTM` has the equations.

    Args:
        dim: Model dimension.
        is_causal: Whether a position sees only itself and earlier positions.
    """

    def __init__(self, dim: int, *, is_causal: bool) -> None:
        super().__init__()
        hidden_dim = dim if is_causal else dim // 2
        self.lstm = nn.LSTM(dim, hidden_dim, batch_first=True, bidirectional=not is_causal)

    def empty_cache(self, batch: int, capacity: int = 0) -> MixerState:
        """Return the state before the first position. `capacity` has no effect: the state does not grow."""
        zeros = next(self.lstm.parameters()).new_zeros(batch, self.lstm.hidden_size)
        return MixerState((zeros, zeros))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: MixerState | None = None
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Run the LSTM over sequences.

        Args:
            x: (rows, length, dim). With a cache: the positions that follow those in the cache.
            lengths: (rows,) valid positions. The backward direction starts at the last valid one. Ignored with a
                cache.
            cache: State after the earlier positions; for causal layers only.

        Returns:
            (rows, length, dim). With a cache, a pair of that and the new state.
        """
        # PyTorch's LSTM raises an error under bfloat16 autocast on processors without bfloat16 arithmetic.
        if x.is_cpu and torch.is_autocast_enabled("cpu") and not has_bf16():
            with torch.autocast("cpu", enabled=False):
                return self(x.to(next(self.lstm.parameters()).dtype), lengths, cache)
        if cache is not None:
            hidden, cell = (tensor[None].to(x.dtype) for tensor in cache.tensors)
            output, (hidden, cell) = self.lstm(x, (hidden, cell))
            return output, MixerState((hidden[0], cell[0]), cache.length + x.shape[1])
        if lengths is None or len(x) == 0:  # an empty batch cannot be packed
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return output


class SSRUMixer(nn.Module):
    """The simpler simple recurrent unit, a causal token mixer (Kim et al. 2019, section 3.1).

        f_t = σ(W_f x_t + b_f)      c_t = f_t ⊙ c_(t−1) + (1 − f_t) ⊙ W x_t      y_t = ReLU(c_t)

    Args:
        dim: Model dimension.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.forget, self.value = Linear(dim, dim), Linear(dim, dim, bias=False)

    def empty_cache(self, batch: int, capacity: int = 0) -> MixerState:
        """Return the state before the first position. `capacity` has no effect: the state does not grow."""
        return MixerState((self.value.weight.new_zeros(batch, self.value.in_features),))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: MixerState | None = None
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Run the unit over sequences.

        Args:
            x: (rows, length, dim). With a cache: the positions that follow those in the cache.
            lengths: Not used, because padding is on the right.
            cache: State after the earlier positions.

        Returns:
            (rows, length, dim). With a cache, a pair of that and the new state.
        """
        forget = self.forget(x).sigmoid()
        added = (1 - forget) * self.value(x)
        state, states = torch.zeros_like(x[:, 0]) if cache is None else cache.tensors[0].to(x.dtype), []
        for f, a in zip(forget.unbind(1), added.unbind(1), strict=True):
            state = f * state + a
            states.append(state)
        output = torch.stack(states, dim=1).relu()
        return output if cache is None else (output, MixerState((state,), cache.length + x.shape[1]))


class ConvolutionMixer(nn.Module):
    """A convolution with a gated linear unit as a token mixer (Gehring et al. 2017, section 3.2).

        [a_i; b_i] = Σ_k W_k x_(i+k−before) + bias        y_i = a_i ⊙ σ(b_i)

    k runs over the `kernel_size` positions of the kernel, and x is zero outside the sequence. In a causal layer
    `before` is kernel_size − 1, so that the kernel ends at position i. Otherwise it is (kernel_size − 1) / 2.

    Args:
        dim: Model dimension.
        kernel_size: Number of positions that the kernel covers.
        is_causal: Whether a position sees only itself and earlier positions.
    """

    def __init__(self, dim: int, kernel_size: int, *, is_causal: bool) -> None:
        super().__init__()
        self.reach = kernel_size - 1
        self.before = self.reach if is_causal else self.reach // 2
        self.convolution = nn.Conv1d(dim, 2 * dim, kernel_size)
        nn.init.xavier_uniform_(self.convolution.weight)
        assert self.convolution.bias is not None
        nn.init.zeros_(self.convolution.bias)

    def empty_cache(self, batch: int, capacity: int = 0) -> MixerState:
        """Return the zeros before the first position. `capacity` has no effect: the state does not grow."""
        return MixerState((self.convolution.weight.new_zeros(batch, self.reach, self.convolution.in_channels),))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: MixerState | None = None
    ) -> Tensor | tuple[Tensor, MixerState]:
        """Convolve sequences.

        Args:
            x: (rows, length, dim). With a cache: the positions that follow those in the cache.
            lengths: (rows,) valid positions. The others count as zeros.
            cache: The last kernel_size − 1 positions before `x`; for causal layers only.

        Returns:
            (rows, length, dim). With a cache, a pair of that and the new state.
        """
        if lengths is not None:
            x = x * is_valid(x.shape[1], lengths)[..., None]
        if cache is not None:
            x = torch.cat([cache.tensors[0].to(x.dtype), x], dim=1)
        else:
            x = F.pad(x, (0, 0, self.before, self.reach - self.before))
        output = F.glu(self.convolution(x.transpose(1, 2)), dim=1).transpose(1, 2)
        if cache is None:
            return output
        return output, MixerState((x[:, x.shape[1] - self.reach :],), cache.length + output.shape[1])


TokenMixer = SelfAttention | LSTMMixer | SSRUMixer | ConvolutionMixer
MixerCache = AttentionCache | MixerState
