"""Token-budget batches as a pure function of (seed, epoch, index, rank).

A step is a set of sentences of similar length whose padded size, sentences × longest side, stays within
B = max_tokens · accumulate · ranks; an epoch is a shuffled list of steps that holds every sentence exactly once. Steps
depend on B alone, so splitting B otherwise among micro-batches and ranks trains on the same steps; and nothing depends
on what was drawn before, so a stream can start anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import IterableDataset

from relattn.translation.data.tokenizer import Tokenizer

_JITTER = 2.0  # tokens by which lengths are blurred, so that neighbours change from epoch to epoch
_GROUP = 8  # a step's sentences come in multiples of this, so that they split evenly


class Sentences(Protocol):
    """Sentences as pieces, without begin or end: a list of lists, or a column on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Collection[int]: ...

    def __iter__(self) -> Iterator[Collection[int]]: ...


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as right-padded tensors of ids.

    Attributes:
        src: (sentences, src_len), each row pieces + [eos].
        src_lengths: (sentences,), eos counted.
        tgt_in: (sentences, tgt_len), each row [bos] + pieces: what the decoder reads.
        tgt_out: (sentences, tgt_len), each row pieces + [eos]: what it should say.
        tgt_lengths: (sentences,), eos counted.
    """

    src: torch.Tensor
    src_lengths: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    tgt_lengths: torch.Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on device."""
        return Batch(
            src=self.src.to(device),
            src_lengths=self.src_lengths.to(device),
            tgt_in=self.tgt_in.to(device),
            tgt_out=self.tgt_out.to(device),
            tgt_lengths=self.tgt_lengths.to(device),
        )

    @property
    def target_tokens(self) -> int:
        """Tokens of tgt_out, eos counted, padding not."""
        return int(self.tgt_lengths.sum())


@dataclass(frozen=True)
class Step:
    """One optimiser step's work for one rank.

    Attributes:
        epoch: passes over the data before this one.
        index: steps of this epoch before this one.
        micro_batches: this rank's batches, at least one; a batch may hold zero sentences.
        target_tokens: tokens of tgt_out in the whole step, over all ranks and micro-batches.
    """

    epoch: int
    index: int
    micro_batches: list[Batch]
    target_tokens: int

    def to(self, device: torch.device | str) -> Step:
        """The same step on device."""
        return Step(self.epoch, self.index, [batch.to(device) for batch in self.micro_batches], self.target_tokens)


def collate(src_ids: Sentences, tgt_ids: Sentences) -> Batch:
    """Pad sentences, given as pieces without begin or end, into a batch. No sentences give tensors (0, 1)."""
    src_lengths, tgt_lengths = _row_lengths(src_ids), _row_lengths(tgt_ids)
    src = _padded(src_ids, src_lengths)
    tgt_out = _padded(tgt_ids, tgt_lengths)
    tgt_in = np.full_like(tgt_out, Tokenizer.pad_id)
    tgt_in[:, 0] = Tokenizer.bos_id
    for row, ids in enumerate(tgt_ids):
        tgt_in[row, 1 : 1 + len(ids)] = ids
    return Batch(*(torch.from_numpy(array) for array in (src, src_lengths, tgt_in, tgt_out, tgt_lengths)))


def _row_lengths(ids: Sentences) -> np.ndarray:
    """(sentences,) tokens of each row, eos counted."""
    return np.fromiter((len(sentence) + 1 for sentence in ids), dtype=np.int64, count=len(ids))


def _padded(ids: Sentences, lengths: np.ndarray) -> np.ndarray:
    """(sentences, longest) pieces + [eos], right padded."""
    rows = np.full((len(ids), lengths.max(initial=1)), Tokenizer.pad_id, dtype=np.int64)
    for row, sentence in enumerate(ids):
        rows[row, : len(sentence)] = sentence
        rows[row, len(sentence)] = Tokenizer.eos_id
    return rows


def plan_epoch(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    max_tokens: int,
    accumulate: int,
    ranks: int,
    seed: int,
    epoch: int,
) -> list[list[list[np.ndarray]]]:
    """Which sentences make which step, on which rank, in which micro-batch.

    A step has sentences × longest <= max_tokens · accumulate · ranks and a micro-batch sentences × longest <=
    max_tokens, "longest" being the longest row of either side, unless it is one sentence. A rank's share is cut into
    the fewest even micro-batches that fit: usually accumulate of them. A rank left without sentences has one empty
    micro-batch.

    Args:
        src_lengths: (sentences,) tokens a source row holds, eos counted.
        tgt_lengths: (sentences,) the same of the target.

    Returns:
        steps, each a list of ranks, each a list of micro-batches, each an array of sentence indices.
    """
    longest = np.maximum(src_lengths, tgt_lengths)
    random = np.random.default_rng([seed, epoch])
    order = _by_blurred_length(src_lengths, tgt_lengths, random)
    steps = _cut(order, longest, max_tokens * accumulate * ranks)
    shuffled = [steps[i] for i in random.permutation(len(steps))]
    return [[_micro_batches(step[rank::ranks], longest, max_tokens) for rank in range(ranks)] for step in shuffled]


def _by_blurred_length(src_lengths: np.ndarray, tgt_lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Indices sorted by the longer side, then by both, each blurred by up to _JITTER tokens."""
    longer = np.maximum(src_lengths, tgt_lengths) + _JITTER * random.random(len(src_lengths))
    both = src_lengths + tgt_lengths + _JITTER * random.random(len(src_lengths))
    return np.lexsort((both, np.floor(longer)))


def _cut(order: np.ndarray, longest: np.ndarray, budget: int) -> list[np.ndarray]:
    """order cut into runs of sentences × longest <= budget, in multiples of _GROUP where there are so many."""
    runs = []
    start = 0
    while start < len(order):
        window = order[start : start + max(1, budget // int(longest[order[start]]) + 1)]
        sizes = np.maximum.accumulate(longest[window]) * np.arange(1, len(window) + 1)
        count = max(1, int(np.searchsorted(sizes, budget, side="right")))
        if count >= _GROUP:
            count -= count % _GROUP
        runs.append(order[start : start + count])
        start += count
    return runs


def _micro_batches(share: np.ndarray, longest: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """A rank's share, longest sentences last, in the fewest even parts that fit max_tokens."""
    if len(share) == 0:
        return [share]
    share = share[np.argsort(longest[share], kind="stable")]
    for parts in range(1, len(share) + 1):
        micro_batches = np.array_split(share, parts)
        if all(len(part) * longest[part[-1]] <= max_tokens for part in micro_batches):
            break
    return micro_batches


class StepStream(IterableDataset):
    """An endless stream of one rank's steps, from (epoch, index) on.

    Args:
        src_ids: source sentences as pieces, without begin or end.
        tgt_ids: target sentences, likewise.
        max_tokens: padded tokens (of the longer side) in a micro-batch.
        accumulate: micro-batches of a step on a rank.
        ranks: processes that train together.
        rank: which of them this is.
        seed: seed of the order.
        epoch: where to start: the epoch …
        index: … and the steps of it to skip.
    """

    def __init__(
        self,
        src_ids: Sentences,
        tgt_ids: Sentences,
        *,
        max_tokens: int,
        accumulate: int,
        ranks: int,
        rank: int,
        seed: int,
        epoch: int = 0,
        index: int = 0,
    ) -> None:
        super().__init__()
        if len(src_ids) == 0 or len(src_ids) != len(tgt_ids):
            raise ValueError(f"need as many source as target sentences, at least one: {len(src_ids)}, {len(tgt_ids)}")
        self.src_ids, self.tgt_ids = src_ids, tgt_ids
        self.max_tokens, self.accumulate, self.ranks, self.rank, self.seed = max_tokens, accumulate, ranks, rank, seed
        self.epoch, self.index = epoch, index
        self._src_lengths, self._tgt_lengths = _row_lengths(src_ids), _row_lengths(tgt_ids)

    def __iter__(self) -> Iterator[Step]:
        epoch, first = self.epoch, self.index
        while True:
            plan = plan_epoch(
                self._src_lengths,
                self._tgt_lengths,
                max_tokens=self.max_tokens,
                accumulate=self.accumulate,
                ranks=self.ranks,
                seed=self.seed,
                epoch=epoch,
            )
            for index in range(first, len(plan)):
                yield self._step(epoch, index, plan[index])
            epoch, first = epoch + 1, 0

    def _step(self, epoch: int, index: int, ranks: list[list[np.ndarray]]) -> Step:
        tokens = sum(int(self._tgt_lengths[part].sum()) for parts in ranks for part in parts)
        batches = [_gather(self.src_ids, self.tgt_ids, part) for part in ranks[self.rank]]
        return Step(epoch=epoch, index=index, micro_batches=batches, target_tokens=tokens)


def eval_batches(src_ids: Sentences, tgt_ids: Sentences, max_tokens: int) -> Iterator[Batch]:
    """Every sentence once, shortest first, in batches of sentences × longest <= max_tokens (or one sentence)."""
    longest = np.maximum(_row_lengths(src_ids), _row_lengths(tgt_ids))
    for indices in _cut(np.argsort(longest, kind="stable"), longest, max_tokens):
        yield _gather(src_ids, tgt_ids, indices)


def _gather(src_ids: Sentences, tgt_ids: Sentences, indices: np.ndarray) -> Batch:
    return collate([src_ids[i] for i in indices.tolist()], [tgt_ids[i] for i in indices.tolist()])
