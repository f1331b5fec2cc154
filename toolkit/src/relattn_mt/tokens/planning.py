"""Plan which sentences form a step and a batch, from their lengths alone.

A step is a set of sentences of similar length whose padded size, sentences × longest side, is at most
B = max_tokens · accumulate · ranks. An epoch is a shuffled list of steps with each sentence once. Steps depend on B
only, so another division of B into micro-batches and ranks trains on the same steps. Micro-batches depend on max_tokens
and accumulate · ranks and are dealt to the ranks in turn, so several ranks compute the same as one.

This module does not import PyTorch, because exported models form their batches with it too. The plan of an epoch takes
4 bytes per sentence, in addition to 8 for the lengths; 32 bytes in total while it is made.
"""

from __future__ import annotations

import itertools

import numpy as np

_JITTER = 2.0  # tokens, random amount added to lengths, so that neighbors differ from epoch to epoch
_MULTIPLE = 8  # sentences per batch are a multiple of this, so that batches can be divided evenly


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
    """Return the steps of an epoch, each as an array of sentence indices.

    A step has sentences × longest side <= max_tokens · parts, or one sentence.

    Args:
        src_lengths: (sentences,) source tokens, special tokens included; int32.
        tgt_lengths: (sentences,) target tokens, special tokens included; int32.
        max_tokens: Maximum padded tokens in a micro-batch.
        parts: Micro-batches per step over all ranks, accumulate · ranks.
        seed: Random seed.
        epoch: Number of the epoch.
        chosen: (any number,) indices of the sentences of the epoch, with repetitions; by default, each once.
    """
    random = np.random.default_rng([seed, epoch])
    if chosen is None:
        order = _by_jittered_length(src_lengths, tgt_lengths, random)
    else:
        order = chosen[_by_jittered_length(src_lengths[chosen], tgt_lengths[chosen], random)]
    steps = batch_by_size(order, np.maximum(src_lengths, tgt_lengths), max_tokens * parts)
    return [steps[i] for i in random.permutation(len(steps))]


def _by_jittered_length(src_lengths: np.ndarray, tgt_lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return indices sorted by the longer side, then by the sum of both, each plus up to _JITTER tokens."""
    jittered = random.random(len(src_lengths))
    jittered *= _JITTER  # in place, to save memory
    jittered += np.maximum(src_lengths, tgt_lengths)
    longer = jittered.astype(np.int32)
    random.random(out=jittered)
    jittered *= _JITTER
    jittered += src_lengths + tgt_lengths
    return np.lexsort((jittered, longer)).astype(np.int32)


def batch_by_size(
    order: np.ndarray, longest: np.ndarray, max_tokens: int, max_sentences: int | None = None
) -> list[np.ndarray]:
    """Cut sentences, in the given order, into batches with sentences × longest <= max_tokens, or of one sentence.

    Args:
        order: (sentences,) indices, for example sorted by length.
        longest: (sentences,) tokens of the longer side, by index.
        max_tokens: Maximum padded tokens in a batch.
        max_sentences: Maximum sentences in a batch. Batches of 8 or more have a multiple of 8 sentences.
    """
    batches = []
    start = 0
    while start < len(order):
        max_count = max(1, max_tokens // int(longest[order[start]]))
        window = order[start : start + min(max_count, max_sentences or max_count)]
        sizes = np.maximum.accumulate(longest[window]) * np.arange(1, len(window) + 1)
        count = max(1, int(np.searchsorted(sizes, max_tokens, side="right")))
        if count >= _MULTIPLE:
            count -= count % _MULTIPLE
        batches.append(order[start : start + count])
        start += count
    return batches


def micro_batches(
    step: np.ndarray, src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, max_tokens: int, parts: int
) -> list[np.ndarray]:
    """Divide a step evenly into micro-batches with sentences × longest <= max_tokens, or of one sentence.

    Their number is the first multiple of `parts` that fits. The longest sentences are in the last one. If there are
    fewer sentences than micro-batches, the last ones are empty.
    """
    longest = np.maximum(src_lengths[step], tgt_lengths[step])
    order = np.argsort(longest, kind="stable")
    step = step[order]
    longest = longest[order]
    for count in itertools.count(parts, parts):
        lengths = np.array_split(longest, count)
        if all(len(batch) <= 1 or len(batch) * int(batch[-1]) <= max_tokens for batch in lengths):
            break
    return np.array_split(step, count)
