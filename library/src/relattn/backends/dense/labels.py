"""Terms by label onto pairs with explicit labels, and back: any labels, and any call that is traced."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """Labels of pairs, int64; −1 stands for the zero row after a table's last."""

    label: Tensor  # (batch or 1, heads or 1, queries, keys)

    def transposed(self, like: Tensor) -> "Labels":
        """Return the labels of the pairs (key, query)."""
        return Labels(self.label.mT)

    def add(self, pairs: Tensor, by_label: Tensor) -> None:
        """Add terms by label, (…, queries, labels), to the pairs (…, queries, keys) in place."""
        pairs += by_label.gather(-1, self.index(pairs, by_label.shape[-1]))

    def collect(self, pairs: Tensor, labels: int) -> Tensor:
        """Return the sums of the pairs over the keys of each label: (…, queries, labels)."""
        return sum_by_label(pairs, self.index(pairs, labels), labels)

    def index(self, pairs: Tensor, labels: int) -> Tensor:
        return torch.where(self.label < 0, labels - 1, self.label).expand(pairs.shape)


def cut(x: Tensor | None, *slices: slice) -> Any:
    """Return a slice of the leading dimensions; a dimension of size 1 is broadcast and kept."""
    if x is None:
        return None
    return x[tuple(dim_slice if size != 1 else slice(None) for dim_slice, size in zip(slices, x.shape, strict=False))]


def sum_by_label(pairs: Tensor, label: Tensor, labels: int) -> Tensor:
    """Return the sums of (…, keys) over the keys of each label: (…, labels)."""
    if pairs.device.type == "cpu":
        return pairs.new_zeros(*pairs.shape[:-1], labels).scatter_add(-1, label, pairs)
    return sum_by_label_in_passes(pairs, label, labels)


def sum_by_label_in_passes(pairs: Tensor, label: Tensor, labels: int) -> Tensor:
    """Sum in one pass per label: on other devices a scatter uses atomics, whose order changes from run to run."""
    return torch.stack([pairs.masked_fill(label != number, 0.0).sum(-1) for number in range(labels)], dim=-1)
