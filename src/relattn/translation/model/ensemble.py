"""Several models with one vocabulary that predict together: their probabilities of each piece are averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from relattn.translation.model.transformer import Cache, Transformer


class EnsembleCache(tuple[Cache, ...]):
    """State of decoding with an ensemble: the `Cache` of each member, with the same rows."""

    def select(self, rows: Tensor) -> EnsembleCache:
        """Return the caches of the given rows, as `Cache.select` does."""
        return EnsembleCache(cache.select(rows) for cache in self)

    def move(self, rows: Tensor, to: Tensor, keep: int) -> EnsembleCache:
        """Copy `rows` over the rows `to` and keep the first `keep` rows, in place, as `Cache.move` does."""
        return EnsembleCache(cache.move(rows, to, keep) for cache in self)


class Ensemble(nn.Module):
    """Models with the same source and target vocabularies, with the interface of one `Transformer`.

    Instead of logits it returns log-probabilities. A softmax leaves their probabilities unchanged.

    Args:
        models: The members, at least one.

    Attributes:
        members: The models.
        max_length: Longest sequence in pieces, including the end, that all members support. None: no limit.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models, self.members = nn.ModuleList(models), tuple(models)  # the second has the type of its elements
        self.max_length = min((model.max_length for model in models if model.max_length is not None), default=None)

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, ...]:
        """Return the memory (rows, src_len, dim) of each member, as `Transformer.encode` does."""
        return tuple(model.encode(src, src_lengths) for model in self.members)

    def start(self, memory: tuple[Tensor, ...], src_lengths: Tensor, capacity: int = 0) -> EnsembleCache:
        """Return caches without target positions, as `Transformer.start` does, for the memories from `encode`."""
        pairs = zip(self.members, memory, strict=True)
        return EnsembleCache(model.start(own, src_lengths, capacity) for model, own in pairs)

    def step(self, tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, EnsembleCache]:
        """Return log-probabilities (rows, new, vocab) of the piece after each of `tokens`, and the new caches.

        Args:
            tokens: (rows, new) target pieces that follow those in the caches.
            cache: State after the earlier pieces.
        """
        steps = (model.step(tokens, own) for model, own in zip(self.members, cache, strict=True))
        logits, caches = zip(*steps, strict=True)
        return log_mean_probability(logits), EnsembleCache(caches)

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Return log-probabilities (rows, tgt_len, vocab), with the arguments of `Transformer.forward`."""
        return log_mean_probability([model(src, src_lengths, tgt_in) for model in self.members])


def log_mean_probability(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability of several models, float32, from their logits (…, vocab)."""
    log_probs = torch.stack([each.float().log_softmax(-1) for each in logits])  # (models, …, vocab)
    return log_probs.logsumexp(0) - math.log(len(logits))
