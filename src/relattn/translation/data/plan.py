"""Which sentences make which batch: by their lengths alone, so that what is padded fits a budget of tokens.

A step is a set of sentences of similar length whose padded size, sentences × longest side, stays within
B = max_tokens · accumulate · ranks; an epoch is a shuffled list of steps that holds every sentence exactly once. Steps
depend on B alone, so splitting B otherwise among micro-batches and ranks trains on the same steps. Their micro-batches
depend on max_tokens and accumulate · ranks, and are dealt to the ranks in turn, so several ranks compute what one
would. Here are indices and no tensors: whatever translates without PyTorch batches by this too.
"""

from __future__ import annotations

import itertools

import numpy as np

_JITTER = 2.0  # tokens by which lengths are blurred, so that neighbours change from epoch to epoch
_GROUP = 8  # a step's sentences come in multiples of this, so that they split evenly


def plan_epoch(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, max_tokens: int, parts: int, seed: int, epoch: int
) -> list[list[np.ndarray]]:
    """Which sentences make which step, in which micro-batch.

    A step has sentences × longest <= max_tokens · parts and a micro-batch sentences × longest <= max_tokens, "longest"
    being the longest row of either side, unless it is one sentence. A step is cut into `parts` even micro-batches, or
    the first multiple of it that fits; where there are fewer sentences, the last ones are empty.

    Args:
        src_lengths: (sentences,) tokens a source row holds, eos counted.
        tgt_lengths: (sentences,) the same of the target.
        parts: micro-batches of a step, over all ranks: accumulate · ranks.

    Returns:
        steps, each a list of micro-batches, each an array of sentence indices.
    """
    longest = np.maximum(src_lengths, tgt_lengths)
    random = np.random.default_rng([seed, epoch])
    order = _by_blurred_length(src_lengths, tgt_lengths, random)
    steps = runs(order, longest, max_tokens * parts)
    return [_micro_batches(steps[i], longest, max_tokens, parts) for i in random.permutation(len(steps))]


def _by_blurred_length(src_lengths: np.ndarray, tgt_lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Indices sorted by the longer side, then by both, each blurred by up to _JITTER tokens."""
    longer = np.maximum(src_lengths, tgt_lengths) + _JITTER * random.random(len(src_lengths))
    both = src_lengths + tgt_lengths + _JITTER * random.random(len(src_lengths))
    return np.lexsort((both, np.floor(longer)))


def runs(order: np.ndarray, longest: np.ndarray, max_tokens: int, max_sentences: int | None = None) -> list[np.ndarray]:
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


def _micro_batches(step: np.ndarray, longest: np.ndarray, max_tokens: int, parts: int) -> list[np.ndarray]:
    """A step, longest sentences last, in even parts that fit max_tokens: so many, or the first multiple that fits."""
    step = step[np.argsort(longest[step], kind="stable")]
    for count in itertools.count(parts, parts):
        micro_batches = np.array_split(step, count)
        if all(len(part) <= 1 or len(part) * longest[part[-1]] <= max_tokens for part in micro_batches):
            break
    return micro_batches


def places_of(rank: int, ranks: int, micro_batches: list[np.ndarray]) -> list[int]:
    """Which micro-batches of a step a rank computes: every ranks-th, empty ones too, so that all have as many."""
    return list(range(rank, len(micro_batches), ranks))
