"""Batches as tensors, and the training text as an endless stream of steps.

`planning.py` decides which sentences are in a step. The stream is a pure function of (seed, epoch, index), so it can
start anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice

import numpy as np
import torch

from relattn.translation.data.mixture import Mixture
from relattn.translation.data.planning import batch_by_size, micro_batches, plan_epoch
from relattn.translation.data.storage import IdColumn, Pairs
from relattn.translation.data.tokenizer import SpecialTokens

OURS = SpecialTokens()  # of models that are trained here
Rows = Sequence[Sequence[int] | np.ndarray]  # sentences as piece ids, without special tokens


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as right-padded tensors of ids.

    Attributes:
        src: (sentences, src_len), rows of pieces + [eos], or with other special tokens in imported models.
        src_lengths: (sentences,), special tokens included.
        tgt_in: (sentences, tgt_len), rows of [bos] + pieces, which the decoder reads.
        tgt_out: (sentences, tgt_len), rows of pieces + [eos], which it must predict.
        tgt_lengths: (sentences,), eos included.
    """

    src: torch.Tensor
    src_lengths: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    tgt_lengths: torch.Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device. Copies to a GPU overlap with its computations."""
        tensors = (getattr(self, field.name) for field in fields(self))
        if torch.device(device).type == "cuda":
            return Batch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors))
        return Batch(*(tensor.to(device) for tensor in tensors))

    @property
    def target_tokens(self) -> int:
        """Number of tokens of tgt_out, without padding."""
        return int(self.tgt_lengths.sum())


@dataclass(frozen=True)
class Step:
    """Work of one rank in one optimizer step.

    Attributes:
        epoch: number of epochs before this one.
        index: number of steps of this epoch before this one.
        micro_batches: batches of this rank, at least one; a batch may have no sentences.
        places: index of each of these batches in the whole step, over all ranks.
        target_tokens: number of tokens of tgt_out in the whole step, over all ranks.
    """

    epoch: int
    index: int
    micro_batches: list[Batch]
    places: list[int]
    target_tokens: int

    def to(self, device: torch.device | str) -> Step:
        """Return the step on a device."""
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])


@dataclass(frozen=True)
class TrainingText:
    """Encoded training text.

    Attributes:
        pairs: memory-mapped sentence pairs, one corpus after the other.
        names: names of the corpora.
        mixture: number of pairs of each corpus per epoch.
        special: ids of the special tokens.
        max_tokens: maximum padded tokens of the longer side in a micro-batch.
        seed: random seed of the order.
    """

    pairs: Pairs
    names: tuple[str, ...]
    mixture: Mixture
    special: SpecialTokens
    max_tokens: int
    seed: int

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(pairs,) tokens of each source and of each target, special tokens included."""
        return row_lengths(self.pairs.src, self.special.per_source), row_lengths(self.pairs.tgt, 1)

    def epoch(self, epoch: int, *, parts: int = 1) -> list[np.ndarray]:
        """Return the steps of an epoch, each as an array of pair indices. A step has `parts` micro-batches."""
        chosen = self.mixture.epoch(self.seed, epoch)
        return plan_epoch(
            *self.lengths, max_tokens=self.max_tokens, parts=parts, seed=self.seed, epoch=epoch, chosen=chosen
        )

    def steps(
        self, position: tuple[int, int] = (0, 0), *, accumulate: int = 1, ranks: int = 1, rank: int = 0
    ) -> Iterator[Step]:
        """Yield one rank's steps without end. It computes every ranks-th micro-batch; all ranks have the same number.

        Args:
            position: epoch and index of the first step.
            accumulate: micro-batches per step and rank.
            ranks: number of processes.
            rank: number of this process.
        """
        epoch, index = position
        while True:
            plan = enumerate(self.epoch(epoch, parts=accumulate * ranks))
            for number, pairs in islice(plan, index, None):
                parts = micro_batches(pairs, *self.lengths, max_tokens=self.max_tokens, parts=accumulate * ranks)
                # Larger batches come first, so a rank's last batch is empty only if the first rank still has sentences.
                places = [place for place in range(rank, len(parts), ranks) if len(parts[place - rank])]
                batches = [_gather(self.pairs.src, self.pairs.tgt, parts[place], self.special) for place in places]
                yield Step(epoch, number, batches, places, target_tokens=int(self.lengths[1][pairs].sum()))
            epoch, index = epoch + 1, 0

    def origin(self, position: tuple[int, int], *, parts: int = 1) -> list[tuple[str, int]]:
        """Return the corpus and the line, counted from 1, of each pair of the step at (epoch, index)."""
        pairs = sorted(self.epoch(position[0], parts=parts)[position[1]].tolist())
        return [(self.names[self.mixture.corpus(pair)], self.pairs.line[pair].as_py()) for pair in pairs]


def collate(src_ids: Rows, tgt_ids: Rows, special: SpecialTokens = OURS) -> Batch:
    """Pad sentences, given as pieces without special tokens, into a batch. No sentences give tensors (0, 1)."""
    src, src_lengths = _padded(src_ids, special.src_begin, special.src_end, special.pad)
    tgt_in, _ = _padded(tgt_ids, (special.bos,), (), special.pad)
    tgt_out, tgt_lengths = _padded(tgt_ids, (), (special.eos,), special.pad)
    return Batch(*(torch.from_numpy(array) for array in (src, src_lengths, tgt_in, tgt_out, tgt_lengths)))


def row_lengths(ids: Rows | IdColumn, special: int) -> np.ndarray:
    """Return (sentences,) the number of pieces and `special` special tokens of each sentence, int32."""
    if isinstance(ids, IdColumn):
        return ids.lengths() + np.int32(special)
    return np.fromiter((len(sentence) + special for sentence in ids), dtype=np.int32, count=len(ids))


def _padded(ids: Rows, begin: tuple[int, ...], end: tuple[int, ...], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (sentences, longest) rows of begin + pieces + end, right-padded, and (sentences,) their lengths."""
    lengths = row_lengths(ids, len(begin) + len(end)).astype(np.int64)
    rows = np.full((len(ids), lengths.max(initial=1)), pad, dtype=np.int64)
    for row, sentence, length in zip(rows, ids, lengths.tolist(), strict=True):
        row[: len(begin)] = begin
        row[len(begin) : length - len(end)] = sentence
        row[length - len(end) : length] = end
    return rows, lengths


def eval_batches(src_ids: Rows, tgt_ids: Rows, max_tokens: int, special: SpecialTokens = OURS) -> Iterator[Batch]:
    """Yield batches of all sentences, shortest first, with sentences × longest <= max_tokens, or of one sentence."""
    longest = np.maximum(row_lengths(src_ids, special.per_source), row_lengths(tgt_ids, 1))
    for indices in batch_by_size(np.argsort(longest, kind="stable"), longest, max_tokens):
        yield _gather(src_ids, tgt_ids, indices, special)


def _gather(src_ids: Rows | IdColumn, tgt_ids: Rows | IdColumn, indices: np.ndarray, special: SpecialTokens) -> Batch:
    return collate([src_ids[i] for i in indices.tolist()], [tgt_ids[i] for i in indices.tolist()], special)
