"""Which sentences make which batch: by their lengths alone, so that what is padded fits a budget of tokens.

A step is a set of sentences of similar length whose padded size, sentences × longest side, stays within
B = max_tokens · accumulate · ranks; an epoch is a shuffled list of steps that holds every sentence exactly once. Steps
depend on B alone, so splitting B otherwise among micro-batches and ranks trains on the same steps. Their micro-batches
depend on max_tokens and accumulate · ranks, and are dealt to the ranks in turn, so several ranks compute what one
would. Here are indices and no tensors: whatever translates without PyTorch batches by this too.

An epoch's plan is 4 bytes a sentence, beside the 8 of its lengths; 32 with them while it is made.
"""

from __future__ import annotations

import itertools

import numpy as np

_JITTER = 2.0  # tokens by which lengths are blurred, so that neighbours change from epoch to epoch
_GROUP = 8  # a step's sentences come in multiples of this, so that they split evenly


def plan_epoch(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    max_tokens: int,
    parts: int,
    seed: int,
    epoch: int,
    chosen: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Which sentences make which step; `micro_batches` cuts a step up.

    A step has sentences × longest <= max_tokens · parts, "longest" being the longest row of either side, unless it is
    one sentence.

    Args:
        src_lengths: (sentences,) tokens a source row holds, eos counted; int32.
        tgt_lengths: (sentences,) the same of the target.
        parts: micro-batches of a step, over all ranks: accumulate · ranks.
        chosen: sentences of the epoch, (any number,) indices, one as often as it stands there; by default each once.

    Returns:
        steps, each an array of sentence indices.
    """
    random = np.random.default_rng([seed, epoch])
    if chosen is None:
        order = _by_blurred_length(src_lengths, tgt_lengths, random)
    else:
        order = chosen[_by_blurred_length(src_lengths[chosen], tgt_lengths[chosen], random)]
    steps = batch_by_size(order, np.maximum(src_lengths, tgt_lengths), max_tokens * parts)
    return [steps[i] for i in random.permutation(len(steps))]


def _by_blurred_length(src_lengths: np.ndarray, tgt_lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Indices sorted by the longer side, then by both, each blurred by up to _JITTER tokens."""
    blur = random.random(len(src_lengths))
    blur *= _JITTER
    blur += np.maximum(src_lengths, tgt_lengths)
    longer = blur.astype(np.int32)
    random.random(out=blur)
    blur *= _JITTER
    blur += src_lengths + tgt_lengths
    return np.lexsort((blur, longer)).astype(np.int32)


def batch_by_size(
    order: np.ndarray, longest: np.ndarray, max_tokens: int, max_sentences: int | None = None
) -> list[np.ndarray]:
    """Sentences in the given order, cut into runs of sentences × longest <= max_tokens (or one sentence).

    Args:
        order: (sentences,) indices, such as those that sort by length.
        longest: (sentences,) padded tokens a sentence needs, by index.
        max_tokens: of a run.
        max_sentences: of a run. Where there are 8 or more, they come in multiples of 8, so that they split evenly.
    """
    cut = []
    start = 0
    while start < len(order):
        most = max(1, max_tokens // int(longest[order[start]]))
        window = order[start : start + min(most, max_sentences or most)]
        sizes = np.maximum.accumulate(longest[window]) * np.arange(1, len(window) + 1)
        count = max(1, int(np.searchsorted(sizes, max_tokens, side="right")))
        if count >= _GROUP:
            count -= count % _GROUP
        cut.append(order[start : start + count])
        start += count
    return cut


def micro_batches(
    step: np.ndarray, src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, max_tokens: int, parts: int
) -> list[np.ndarray]:
    """A step of an epoch in even parts of sentences × longest <= max_tokens, unless it is one sentence.

    They are `parts`, or the first multiple of it that fits, the longest sentences in the last one; where there are
    fewer sentences, the last ones are empty.
    """
    longest = np.maximum(src_lengths[step], tgt_lengths[step])
    order = np.argsort(longest, kind="stable")
    step, longest = step[order], longest[order]
    for count in itertools.count(parts, parts):
        cut, lengths = np.array_split(step, count), np.array_split(longest, count)
        if all(len(part) <= 1 or len(part) * int(part[-1]) <= max_tokens for part in lengths):
            break
    return cut


def places_of(rank: int, ranks: int, micro_batches: list[np.ndarray]) -> list[int]:
    """Which micro-batches of a step a rank computes: every ranks-th, as many as the others, so the last may be empty.

    The larger parts come first, so where the first rank has no sentences left, nobody has.
    """
    return [place for place in range(rank, len(micro_batches), ranks) if len(micro_batches[place - rank])]
