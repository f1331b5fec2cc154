"""Several models with one vocabulary that predict together: their probabilities of each piece are averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from relattn.translation.model.transformer import Cache, Transformer


@dataclass(frozen=True)
class EnsembleCache:
    """State of decoding with an ensemble: the `Cache` of each member, with the same rows."""

    members: tuple[Cache, ...]

    def select(self, rows: Tensor) -> EnsembleCache:
        """Return the caches of the given rows, as `Cache.select` does."""
        return EnsembleCache(tuple(cache.select(rows) for cache in self.members))

    def move(self, rows: Tensor, to: Tensor, keep: int) -> EnsembleCache:
        """Copy `rows` over the rows `to` and keep the first `keep` rows, in place, as `Cache.move` does."""
        return EnsembleCache(tuple(cache.move(rows, to, keep) for cache in self.members))


class Ensemble(nn.Module):
    """Models with the same source and target vocabularies, with the interface of one `Transformer`.

    Instead of logits it returns log-probabilities. A softmax leaves their probabilities unchanged.

    Args:
        models: The members, at least one.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    @property
    def members(self) -> list[Transformer]:
        """The models, in the order in which they were given."""
        return list(cast("Iterable[Transformer]", self.models))

    @property
    def max_length(self) -> int | None:
        """Longest sequence in pieces, including the end, that all members support. None: no limit."""
        return min((model.max_length for model in self.members if model.max_length is not None), default=None)

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, ...]:
        """Return the memory (rows, src_len, dim) of each member, as `Transformer.encode` does."""
        return tuple(model.encode(src, src_lengths) for model in self.members)

    def start(self, memory: tuple[Tensor, ...], src_lengths: Tensor, capacity: int = 0) -> EnsembleCache:
        """Return caches without target positions, as `Transformer.start` does, for the memories from `encode`."""
        pairs = zip(self.members, memory, strict=True)
        return EnsembleCache(tuple(model.start(own, src_lengths, capacity) for model, own in pairs))

    def step(self, tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, EnsembleCache]:
        """Return log-probabilities (rows, new, vocab) of the piece after each of `tokens`, and the new caches.

        Args:
            tokens: (rows, new) target pieces that follow those in the caches.
            cache: State after the earlier pieces.
        """
        results = [model.step(tokens, own) for model, own in zip(self.members, cache.members, strict=True)]
        return log_mean_probability([logits for logits, _ in results]), EnsembleCache(tuple(own for _, own in results))

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Return log-probabilities (rows, tgt_len, vocab), with the arguments of `Transformer.forward`."""
        return log_mean_probability([model(src, src_lengths, tgt_in) for model in self.members])


def log_mean_probability(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability of several models, float32, from their logits (…, vocab)."""
    log_probs = torch.stack([each.float().log_softmax(-1) for each in logits])  # (models, …, vocab)
    return log_probs.logsumexp(0) - math.log(len(logits))
