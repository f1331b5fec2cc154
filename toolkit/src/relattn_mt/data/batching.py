"""Batches as tensors, and the training text as an endless stream of steps.

`planning.py` decides which sentences are in a step. The stream is a pure function of (seed, epoch, index), so it can
start anywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch

from relattn_mt.data.augmentation import AugmentedPairs
from relattn_mt.data.mixture import Mixture
from relattn_mt.data.storage import EncodedPairs, Sides
from relattn_mt.support.types import Ids
from relattn_mt.tokens.planning import batch_by_size, micro_batches, plan_epoch
from relattn_mt.tokens.tokenizer import SpecialTokens

OURS = SpecialTokens()  # of models that are trained here
Rows = Sequence[Sequence[int] | np.ndarray]  # sentences as piece ids, without special tokens


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as right-padded tensors of ids.

    Attributes:
        src: (sentences, src_len), rows of pieces + [eos], or with other special tokens in imported models.
        src_lengths: (sentences,), special tokens included.
        tgt_in: (sentences, tgt_len), rows of [bos] + pieces, which the decoder reads. Imported models may have further
            tokens after bos; tgt_in is longer than tgt_out by their number.
        tgt_out: (sentences, tgt_len), rows of pieces + [eos], which it must predict.
        tgt_lengths: (sentences,), eos included.
        links: (links, 3), a sentence, a position in tgt_out, and the position in src of what it translates.
    """

    src: torch.Tensor
    src_lengths: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    tgt_lengths: torch.Tensor
    links: torch.Tensor = field(default_factory=lambda: torch.zeros((0, 3), dtype=torch.long))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device. Copies to a GPU overlap with its computations."""
        tensors: Iterable[torch.Tensor] = vars(self).values()
        is_gpu = torch.device(device).type == "cuda"
        if is_gpu:
            tensors = (tensor.pin_memory() for tensor in tensors)
        return Batch(*(tensor.to(device, non_blocking=is_gpu) for tensor in tensors))

    def logits(self, model: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Return a model's logits (sentences, tgt_len, vocab) of the tokens in tgt_out."""
        return self.predicted(model(self.src, self.src_lengths, self.tgt_in))

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the part of a model's outputs (sentences, tokens of tgt_in, …) that predicts tgt_out."""
        return outputs[:, -self.tgt_out.shape[1] :]

    @property
    def target_tokens(self) -> int:
        """Number of tokens of tgt_out, without padding."""
        return int(self.tgt_lengths.sum())


@dataclass(frozen=True)
class Step:
    """Work of one rank in one optimizer step.

    Attributes:
        epoch: Number of epochs before this one.
        index: Number of steps of this epoch before this one.
        stage: Number of stages before that of this step.
        micro_batches: Batches of this rank, at least one; a batch may have no sentences.
        places: Index of each of these batches in the whole step, over all ranks.
        target_tokens: Number of tokens of tgt_out in the whole step, over all ranks.
    """

    epoch: int
    index: int
    stage: int
    micro_batches: list[Batch]
    places: list[int]
    target_tokens: int

    def to(self, device: torch.device | str) -> Step:
        """Return the step on a device."""
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])


@dataclass(frozen=True)
class Stage:
    """Part of a run with its own mixture and augmentation.

    Attributes:
        mixture: Number of pairs of each corpus per epoch.
        augmented: Function that returns `AugmentedPairs` for pairs, an epoch and its rows; None without perturbations.
        end: Number of steps of the run after which it ends; None for the last stage.
    """

    mixture: Mixture
    augmented: Callable[[EncodedPairs, int, np.ndarray | None], AugmentedPairs] | None = None
    end: int | None = None


@dataclass(frozen=True)
class Epoch:
    """Plan of an epoch.

    Attributes:
        pairs: The pairs, with the perturbations of this epoch.
        lengths: (pairs,) tokens of each source and of each target, special tokens included.
        steps: Rows of each step.
    """

    pairs: EncodedPairs | AugmentedPairs
    lengths: Sides
    steps: list[np.ndarray]


@dataclass(frozen=True)
class TrainingText:
    """Encoded training text.

    Attributes:
        pairs: Memory-mapped sentence pairs, one corpus after the other.
        names: Names of the corpora.
        stages: Parts of the run, at least one.
        special: Ids of the special tokens.
        max_tokens: Maximum padded tokens of the longer side in a micro-batch.
        seed: Random seed of the order.
        links: Positions in the source and in the target of each pair that are linked; None without guided alignment.
    """

    pairs: EncodedPairs
    names: tuple[str, ...]
    stages: tuple[Stage, ...]
    special: SpecialTokens
    max_tokens: int
    seed: int
    links: EncodedPairs | None = None

    def epoch(self, epoch: int, *, stage: int = 0, parts: int = 1) -> Epoch:
        """Return the plan of an epoch, whose steps have `parts` micro-batches."""
        part = self.stages[stage]
        chosen = part.mixture.epoch(self.seed, epoch)
        pairs: EncodedPairs | AugmentedPairs = self.pairs
        if part.augmented is not None:
            pairs = part.augmented(self.pairs, epoch, chosen)
        src_pieces, tgt_pieces = pairs.lengths()
        lengths = src_pieces + np.int32(self.special.per_source), tgt_pieces + np.int32(1)
        steps = plan_epoch(
            *lengths, max_tokens=self.max_tokens, parts=parts, seed=self.seed, epoch=epoch, chosen=chosen
        )
        return Epoch(pairs, lengths, steps)

    def steps(
        self,
        position: tuple[int, int] = (0, 0),
        *,
        done: int = 0,
        accumulate: int = 1,
        ranks: int = 1,
        rank: int = 0,
    ) -> Iterator[Step]:
        """Yield one rank's steps without end. It computes every ranks-th micro-batch; all ranks have the same number.

        Args:
            position: Epoch and index of the first step, unless a stage begins with it.
            done: Number of steps of the run before the first one, which decides on its stage.
            accumulate: Micro-batches per step and rank.
            ranks: Number of processes.
            rank: Number of this process.
        """
        epoch, index = position
        parts = accumulate * ranks
        ends = [stage.end for stage in self.stages if stage.end is not None]
        is_over = done in ends  # a stage begins with a new epoch
        while True:
            if is_over:
                epoch += 1
                index = 0
            stage = bisect_right(ends, done)
            plan = self.epoch(epoch, stage=stage, parts=parts)
            for number, rows in islice(enumerate(plan.steps), index, None):
                split = micro_batches(rows, *plan.lengths, max_tokens=self.max_tokens, parts=parts)
                # Larger batches come first, so a rank's last batch is empty only if the first one has sentences.
                places = [place for place in range(rank, len(split), ranks) if len(split[place - rank])]
                batches = [self._gather(plan.pairs, split[place]) for place in places]
                yield Step(epoch, number, stage, batches, places, int(plan.lengths[1][rows].sum()))
                done += 1
                if done in ends:
                    break
            is_over = True

    def _gather(self, pairs: EncodedPairs | AugmentedPairs, rows: np.ndarray) -> Batch:
        src_ids, tgt_ids = zip(*map(pairs.row, rows.tolist()), strict=True) if len(rows) else ((), ())
        batch = collate(src_ids, tgt_ids, self.special)
        if self.links is None:
            return batch
        begin = len(self.special.src_begin)
        links = [batch.links]
        for index, row in enumerate(rows.tolist()):
            is_changed = isinstance(pairs, AugmentedPairs) and pairs.changes[row]
            if not is_changed:  # changed text has no links
                src, tgt = self.links.row(row)
                of_row = np.stack([np.full_like(src, index, np.int64), tgt, src + begin], axis=1)
                links.append(torch.from_numpy(of_row))
        return replace(batch, links=torch.cat(links))


def collate(src_ids: Rows, tgt_ids: Rows, special: SpecialTokens = OURS) -> Batch:
    """Pad sentences, given as pieces without special tokens, into a batch. No sentences give tensors (0, 1)."""
    src, src_lengths = _padded(src_ids, special.src_begin, special.src_end)
    tgt_in, _ = _padded(tgt_ids, (special.bos, *special.tgt_begin), ())
    tgt_out, tgt_lengths = _padded(tgt_ids, (), (special.eos,))
    return Batch(*(torch.from_numpy(array) for array in (src, src_lengths, tgt_in, tgt_out, tgt_lengths)))


def _row_lengths(ids: Rows, special: int) -> np.ndarray:
    """Return (sentences,) the number of pieces and `special` special tokens of each sentence."""
    return np.array([len(sentence) + special for sentence in ids], dtype=np.int64)


def _padded(ids: Rows, begin: Ids, end: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Return (sentences, longest) rows of begin + pieces + end, then zeros, and (sentences,) their lengths."""
    lengths = _row_lengths(ids, len(begin) + len(end))
    rows = np.zeros((len(ids), lengths.max(initial=1)), dtype=np.int64)
    for row, sentence, length in zip(rows, ids, lengths.tolist(), strict=True):
        row[: len(begin)] = begin
        row[len(begin) : length - len(end)] = sentence
        row[length - len(end) : length] = end
    return rows, lengths


def eval_batches(src_ids: Rows, tgt_ids: Rows, max_tokens: int, special: SpecialTokens = OURS) -> Iterator[Batch]:
    """Yield batches of all sentences, shortest first, with sentences × longest <= max_tokens, or of one sentence."""
    longest = np.maximum(_row_lengths(src_ids, special.per_source), _row_lengths(tgt_ids, special.per_target))
    for batch in batch_by_size(np.argsort(longest, kind="stable"), longest, max_tokens):
        rows = batch.tolist()
        yield collate([src_ids[row] for row in rows], [tgt_ids[row] for row in rows], special)
