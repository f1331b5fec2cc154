"""Word alignment of encoded sentence pairs, by which guided alignment trains a head of the attention.

A target piece t_j comes from one of the source pieces s, at a position i that is probably as far into its sentence
(IBM model 2 with the prior of Dyer et al. 2013):

    p(i | j) ∝ exp(−DIAGONAL · |i / I − j / J|) · p(t_j | s_i)

A share UNLINKED of the pieces comes from no position; these are drawn by their frequency. Expectation maximization
starts with Dice coefficients. The same is done with both sides exchanged, and two pieces are linked if the geometric
mean of the two probabilities is at least SURE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from relattn_mt.support.types import VocabSizes
from relattn_mt.text.lexicon import associations

UNLINKED = 0.1
DIAGONAL = 4.0
SURE = 0.3
_PASSES = 4  # over the text
_LEAST = 2  # sentence pairs that two pieces must share to be linked
_CELLS = 1 << 19  # source pieces × target pieces that are computed at once

Sentences = Sequence[np.ndarray]  # ids of each sentence


class _Group(NamedTuple):
    """Sentence pairs of the same lengths."""

    rows: np.ndarray  # (pairs,)
    src: np.ndarray  # (pairs, I, 1) pieces
    tgt: np.ndarray  # (pairs, 1, J) pieces
    entries: np.ndarray  # (pairs, I, J) index of two pieces in `Aligner.keys`


class Aligner:
    """Word alignment, learned from sentence pairs.

    Args:
        sources: Pieces of each source.
        targets: Pieces of its translation.
        vocab_sizes: Number of pieces in the vocabulary of each side.
    """

    def __init__(self, sources: Sentences, targets: Sentences, vocab_sizes: VocabSizes) -> None:
        src_distinct, tgt_distinct = ([np.unique(ids).astype(np.int64) for ids in side] for side in (sources, targets))
        conditions, dice = associations(src_distinct, tgt_distinct, _LEAST)
        src_ids, tgt_ids = conditions
        self.keys = np.append(src_ids << 32 | tgt_ids, np.iinfo(np.int64).max)  # the last one is for all others
        self.tables = np.tile(np.append(dice, 0.0), (2, 1))  # p(target | source) and p(source | target) of each key
        self.src_shares, self.tgt_shares = map(_shares, (sources, targets), vocab_sizes)
        groups = list(self._groups(sources, targets))
        for _ in range(_PASSES):
            counts = np.zeros_like(self.tables)
            for group in groups:
                for expected, probabilities in zip(counts, self._probabilities(group), strict=True):
                    np.add.at(expected, group.entries, probabilities)
            for table, expected, condition in zip(self.tables, counts, conditions, strict=True):
                totals = np.bincount(condition, expected[:-1])
                table[:-1] = expected[:-1] / np.maximum(totals, 1e-9)[condition]

    def links(self, sources: Sentences, targets: Sentences) -> list[tuple[np.ndarray, ...]]:
        """Return the source positions and the target positions of the links of each sentence pair."""
        links: list[tuple[np.ndarray, ...]] = [()] * len(sources)
        for group in self._groups(sources, targets):
            forward, backward = self._probabilities(group)
            for row, are_linked in zip(group.rows, forward * backward >= SURE**2, strict=True):
                links[row] = np.nonzero(are_linked)
        return links

    def _probabilities(self, group: _Group) -> list[np.ndarray]:
        """Return (pairs, I, J) how probably a target piece comes from a source piece, and the reverse."""
        src_length, tgt_length = group.entries.shape[1:]
        src_places = (np.arange(src_length)[:, None] + 0.5) / src_length
        tgt_places = (np.arange(tgt_length) + 0.5) / tgt_length
        prior = np.exp(-DIAGONAL * np.abs(src_places - tgt_places))
        probabilities = []
        for axis, shares in enumerate((self.tgt_shares[group.tgt], self.src_shares[group.src])):
            linked = (1 - UNLINKED) * prior / prior.sum(axis, keepdims=True) * self.tables[axis][group.entries]
            probabilities.append(linked / (linked.sum(axis + 1, keepdims=True) + UNLINKED * shares))
        return probabilities

    def _groups(self, sources: Sentences, targets: Sentences) -> Iterator[_Group]:
        """Yield all sentence pairs."""
        lengths = np.array([[len(src), len(tgt)] for src, tgt in zip(sources, targets, strict=True)])
        order = np.lexsort(lengths.T)
        changes = np.diff(lengths[order], axis=0).any(1)
        for same in np.split(order, 1 + np.flatnonzero(changes)):
            size = 1 + _CELLS // int(lengths[same[0]].prod())
            for start in range(0, len(same), size):
                rows = same[start : start + size]
                src = np.stack([sources[row] for row in rows]).astype(np.int64)[:, :, None]
                tgt = np.stack([targets[row] for row in rows]).astype(np.int64)[:, None]
                keys = src << 32 | tgt
                entries = np.searchsorted(self.keys, keys)
                entries[self.keys[entries] != keys] = len(self.keys) - 1
                yield _Group(rows, src, tgt, entries.astype(np.int32))


def _shares(sentences: Sentences, vocab_size: int) -> np.ndarray:
    """Return the share of each piece in a text, which is above 0."""
    counts = 1 + np.bincount(np.concatenate(sentences), minlength=vocab_size)
    return counts / counts.sum()
