"""Numbers by label onto pairs labelled one by one, and back: any labels, and any call that is traced."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """Labels of pairs, int64; −1 stands for the zero row after a table's last."""

    label: Tensor  # (batch or 1, heads or 1, queries, keys)

    def add(self, pairs: Tensor, by_label: Tensor) -> None:
        pairs += by_label.gather(-1, self.slots(pairs, by_label.shape[-1]))

    def collect(self, pairs: Tensor, labels: int) -> Tensor:
        return bucket_sum(pairs, self.slots(pairs, labels), labels)

    def slots(self, pairs: Tensor, labels: int) -> Tensor:
        return torch.where(self.label < 0, labels - 1, self.label).expand(pairs.shape)


def cut(x: Tensor | None, *where: slice) -> Any:
    """A part of the first dimensions; one of size 1 is for all parts."""
    if x is None:
        return None
    return x[tuple(here if size != 1 else slice(None) for here, size in zip(where, x.shape, strict=False))]


def bucket_sum(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """Sums of (…, keys) over the keys of each slot: (…, buckets)."""
    if on_pairs.device.type == "cpu":
        return on_pairs.new_zeros(*on_pairs.shape[:-1], buckets).scatter_add(-1, slot, on_pairs)
    return bucket_sum_by_passes(on_pairs, slot, buckets)


def bucket_sum_by_passes(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """A pass over the pairs for each bucket: elsewhere a scatter adds with atomics, in another order every time."""
    return torch.stack([on_pairs.masked_fill(slot != bucket, 0.0).sum(-1) for bucket in range(buckets)], dim=-1)
