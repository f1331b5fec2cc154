"""The training text of a run, as pieces on disk: its epochs, its steps, and where each pair of them comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relattn.translation.config import DataConfig
from relattn.translation.data.batching import Step, row_lengths, steps
from relattn.translation.data.mixture import Mixture
from relattn.translation.data.planning import plan_epoch
from relattn.translation.data.storage import Pairs
from relattn.translation.data.tokenizer import SpecialTokens


@dataclass(frozen=True)
class TrainingText:
    """The training text of a run, as pieces.

    Attributes:
        pairs: encoded, memory-mapped, corpus after corpus.
        names: of the corpora.
        mixture: how many pairs of each an epoch has.
        marks: around sentences.
        config: how text is batched.
        seed: of the order of batches.
    """

    pairs: Pairs
    names: tuple[str, ...]
    mixture: Mixture
    special: SpecialTokens
    config: DataConfig
    seed: int

    def steps(
        self, position: tuple[int, int] = (0, 0), *, accumulate: int = 1, ranks: int = 1, rank: int = 0
    ) -> Iterator[Step]:
        """Return one rank's endless steps, starting at (epoch, index)."""
        return steps(
            self.pairs.src,
            self.pairs.tgt,
            max_tokens=self.config.max_tokens,
            accumulate=accumulate,
            ranks=ranks,
            rank=rank,
            seed=self.seed,
            epoch=position[0],
            index=position[1],
            special=self.special,
            mixture=self.mixture,
        )

    def epoch(self, epoch: int, *, parts: int = 1) -> list[np.ndarray]:
        """Return the steps of an epoch, each as an array of pair indices. A step has `parts` micro-batches."""
        lengths = row_lengths(self.pairs.src, self.special.per_source), row_lengths(self.pairs.tgt, 1)
        return plan_epoch(
            *lengths,
            max_tokens=self.config.max_tokens,
            parts=parts,
            seed=self.seed,
            epoch=epoch,
            chosen=self.mixture.epoch(self.seed, epoch),
        )

    def origin(self, position: tuple[int, int], *, parts: int = 1) -> list[tuple[str, int]]:
        """Where the pairs of the step at (epoch, index) stood: corpus and line, counted from 1."""
        pairs = sorted(self.epoch(position[0], parts=parts)[position[1]].tolist())
        return [(self.names[self.mixture.corpus(pair)], self.pairs.line[pair].as_py()) for pair in pairs]
