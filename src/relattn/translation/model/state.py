"""What a causal sub-layer that does not attend has seen: a state of one size, however much that was."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
