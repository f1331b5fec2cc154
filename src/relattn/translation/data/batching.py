"""Token-budget batches as tensors, and the stream of steps of a training: a pure function of (seed, epoch, index).

Which sentences make a step is planned in `plan.py`. Nothing depends on what was drawn before: a stream can start
anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch

from relattn.translation.data.mixture import Mixture
from relattn.translation.data.planning import batch_by_size, micro_batches, places_of, plan_epoch
from relattn.translation.data.storage import IdColumn
from relattn.translation.data.tokenizer import SpecialTokens

OURS = SpecialTokens()  # around the sentences of a model trained here


class Sentences(Protocol):
    """Sentences as pieces, without begin or end: a list of lists, or a column on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Collection[int]: ...

    def __iter__(self) -> Iterator[Collection[int]]: ...


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as right-padded tensors of ids.

    Attributes:
        src: (sentences, src_len), each row pieces + [eos], or with the marks of the model's own.
        src_lengths: (sentences,), marks counted.
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
        """The same batch on device; a GPU copies it while its queue is worked on."""
        tensors = (getattr(self, field.name) for field in fields(self))
        if torch.device(device).type == "cuda":
            return Batch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors))
        return Batch(*(tensor.to(device) for tensor in tensors))

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
        places: the place of each of them in the whole step, over all ranks.
        target_tokens: tokens of tgt_out in the whole step, over all ranks and micro-batches.
    """

    epoch: int
    index: int
    micro_batches: list[Batch]
    places: list[int]
    target_tokens: int

    def to(self, device: torch.device | str) -> Step:
        """The same step on device."""
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])


def collate(src_ids: Sentences, tgt_ids: Sentences, special: SpecialTokens = OURS) -> Batch:
    """Pad sentences, given as pieces without begin or end, into a batch. No sentences give tensors (0, 1)."""
    src, src_lengths = _padded(src_ids, special.src_begin, special.src_end, special.pad)
    tgt_in, _ = _padded(tgt_ids, (special.bos,), (), special.pad)
    tgt_out, tgt_lengths = _padded(tgt_ids, (), (special.eos,), special.pad)
    return Batch(*(torch.from_numpy(array) for array in (src, src_lengths, tgt_in, tgt_out, tgt_lengths)))


def row_lengths(ids: Sentences, marks: int) -> np.ndarray:
    """(sentences,) tokens of each row, with so many marks; int32."""
    if isinstance(ids, IdColumn):
        return ids.lengths() + np.int32(marks)
    return np.fromiter((len(sentence) + marks for sentence in ids), dtype=np.int32, count=len(ids))


def _padded(ids: Sentences, begin: tuple[int, ...], end: tuple[int, ...], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """(sentences, longest) begin + pieces + end, right padded, and their lengths."""
    lengths = row_lengths(ids, len(begin) + len(end)).astype(np.int64)
    rows = np.full((len(ids), lengths.max(initial=1)), pad, dtype=np.int64)
    for row, (sentence, length) in enumerate(zip(ids, lengths.tolist(), strict=True)):
        rows[row, : len(begin)] = begin
        rows[row, len(begin) : length - len(end)] = sentence
        rows[row, length - len(end) : length] = end
    return rows, lengths


def steps(
    src_ids: Sentences,
    tgt_ids: Sentences,
    *,
    max_tokens: int,
    accumulate: int,
    ranks: int = 1,
    rank: int = 0,
    seed: int,
    epoch: int = 0,
    index: int = 0,
    special: SpecialTokens = OURS,
    mixture: Mixture | None = None,
) -> Iterator[Step]:
    """One rank's steps from (epoch, index) on, without end.

    Args:
        src_ids: source sentences as pieces, without begin or end, at least one.
        tgt_ids: target sentences, as many.
        max_tokens: padded tokens (of the longer side) in a micro-batch.
        accumulate: micro-batches of a step on a rank.
        ranks: processes that train together.
        rank: which of them this is.
        seed: seed of the order.
        epoch: where to start: the epoch …
        index: … and the steps of it to skip.
        marks: around sentences.
        mixture: which sentences make an epoch; by default each once.
    """
    if len(src_ids) == 0 or len(src_ids) != len(tgt_ids):
        raise ValueError(f"need as many source as target sentences, at least one: {len(src_ids)}, {len(tgt_ids)}")
    src_lengths, tgt_lengths = row_lengths(src_ids, special.per_source), row_lengths(tgt_ids, 1)
    size = {"max_tokens": max_tokens, "parts": accumulate * ranks}
    while True:
        chosen = None if mixture is None else mixture.epoch(seed, epoch)
        plan = plan_epoch(src_lengths, tgt_lengths, **size, seed=seed, epoch=epoch, chosen=chosen)
        for number in range(index, len(plan)):
            parts = micro_batches(plan[number], src_lengths, tgt_lengths, **size)
            places = places_of(rank, ranks, parts)
            yield Step(
                epoch=epoch,
                index=number,
                micro_batches=[_gather(src_ids, tgt_ids, parts[place], special) for place in places],
                places=places,
                target_tokens=sum(int(tgt_lengths[part].sum()) for part in parts),
            )
        plan, epoch, index = [], epoch + 1, 0


def eval_batches(
    src_ids: Sentences, tgt_ids: Sentences, max_tokens: int, special: SpecialTokens = OURS
) -> Iterator[Batch]:
    """Every sentence once, shortest first, in batches of sentences × longest <= max_tokens (or one sentence)."""
    longest = np.maximum(row_lengths(src_ids, special.per_source), row_lengths(tgt_ids, 1))
    for indices in batch_by_size(np.argsort(longest, kind="stable"), longest, max_tokens):
        yield _gather(src_ids, tgt_ids, indices, special)


def _gather(src_ids: Sentences, tgt_ids: Sentences, indices: np.ndarray, special: SpecialTokens) -> Batch:
    return collate([src_ids[i] for i in indices.tolist()], [tgt_ids[i] for i in indices.tolist()], special)
