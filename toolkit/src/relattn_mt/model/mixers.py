"""The token mixer other than self-attention, an SSRU.

A token mixer is the sub-layer of a layer in which positions see each other. All token mixers map (rows, length, dim) to
the same shape and have the interface of `relattn.nn.SelfAttention`: `forward(x, lengths, cache)` and `empty_cache`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from relattn import AttentionCache, SelfAttention
from torch import Tensor, nn

from relattn_mt.model.linear import Linear


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


class SSRUMixer(nn.Module):
    """The simpler simple recurrent unit, a causal token mixer (Kim et al. 2019, section 3.1).

        f_t = σ(W_f x_t + b_f)      c_t = f_t ⊙ c_(t−1) + (1 − f_t) ⊙ W x_t      y_t = ReLU(c_t)

    Args:
        dim: Model dimension.
        is_causal: Not used.
    """

    def __init__(self, dim: int, *, is_causal: bool) -> None:
        super().__init__()
        self.forget = Linear(dim, dim)
        self.value = Linear(dim, dim, bias=False)

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
        state = torch.zeros_like(x[:, 0]) if cache is None else cache.tensors[0].to(x.dtype)
        states = []
        for f, a in zip(forget.unbind(1), added.unbind(1), strict=True):
            state = f * state + a
            states.append(state)
        output = torch.stack(states, dim=1).relu()
        return output if cache is None else (output, MixerState((state,), cache.length + x.shape[1]))


TokenMixer = SelfAttention | SSRUMixer
MixerCache = AttentionCache | MixerState
