"""Several models of one vocabulary that predict together: the probability of a piece is the mean of theirs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from relattn.translation.model.transformer import Cache, Transformer


@dataclass(frozen=True)
class Caches:
    """What each of the models has seen, one row per hypothesis."""

    of: tuple[Cache, ...]

    def select(self, rows: Tensor) -> Caches:
        """The caches of the given rows, as `Cache.select`."""
        return Caches(tuple(cache.select(rows) for cache in self.of))

    def move(self, rows: Tensor, to: Tensor, keep: int) -> Caches:
        """As `Cache.move`."""
        return Caches(tuple(cache.move(rows, to, keep) for cache in self.of))


class Ensemble(nn.Module):
    """Models that read the same pieces and write the same pieces, called as one `Transformer` is.

    What stands for logits are log-probabilities, which a softmax leaves as they are.

    Args:
        models: at least one.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    @property
    def members(self) -> list[Transformer]:
        return list(cast("Iterable[Transformer]", self.models))

    @property
    def max_length(self) -> int | None:
        """Longest sequence, in pieces, end included, that all of them can hold; None where there is no limit."""
        return min((model.max_length for model in self.members if model.max_length is not None), default=None)

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, ...]:
        """(rows, src_len) pieces, right-padded, and their (rows,) lengths -> a memory (rows, src_len, dim) of each"""
        return tuple(model.encode(src, src_lengths) for model in self.members)

    def start(self, memory: tuple[Tensor, ...], src_lengths: Tensor, capacity: int = 0) -> Caches:
        """Caches that have seen no target yet, with room for `capacity` pieces."""
        return Caches(
            tuple(model.start(own, src_lengths, capacity) for model, own in zip(self.members, memory, strict=True))
        )

    def step(self, tokens: Tensor, cache: Caches) -> tuple[Tensor, Caches]:
        """(rows, new) target pieces after those seen -> log-probabilities (rows, new, vocab), and new caches."""
        found = [model.step(tokens, own) for model, own in zip(self.members, cache.of, strict=True)]
        return mean([logits for logits, _ in found]), Caches(tuple(after for _, after in found))

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: log-probabilities (rows, tgt_len, vocab) of what follows each of (rows, tgt_len) pieces."""
        return mean([model(src, src_lengths, tgt_in) for model in self.members])


def mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of some models' probabilities, float32, from their logits (…, vocab)."""
    each = torch.stack([of_one.float().log_softmax(-1) for of_one in logits])
    return each.logsumexp(0) - math.log(len(logits))
