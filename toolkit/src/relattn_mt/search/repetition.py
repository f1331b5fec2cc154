"""Rules against repetition, as CTranslate2 defines them: they change the logits, before the softmax."""

from __future__ import annotations

import numpy as np

from relattn_mt.config import SearchConfig
from relattn_mt.search.types import NEVER


def restrain(logits: np.ndarray, tokens: np.ndarray, search: SearchConfig, exempt: np.ndarray) -> np.ndarray:
    """Return the logits of the next token under the rules against repetition.

    `repetition_penalty` (Keskar et al. 2019) divides positive logits of tokens that a hypothesis has, and multiplies
    negative ones. `no_repeat_ngram` forbids a token that would repeat an n-gram of this size.

    Args:
        logits: (rows, vocab).
        tokens: (rows, length) tokens of each hypothesis.
        search: Settings of the search.
        exempt: (rows,) True for rows whose next token is given text, which may repeat itself.
    """
    original = logits
    logits = logits.copy()
    penalty = np.float32(search.repetition_penalty)
    size = search.no_repeat_ngram
    before = np.take_along_axis(logits, tokens, 1)
    np.put_along_axis(logits, tokens, np.where(before < 0, before * penalty, before / penalty), 1)
    if 0 < size <= tokens.shape[1]:
        ngrams = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1)  # (rows, count, size)
        repeats = (ngrams[:, :, :-1] == tokens[:, None, tokens.shape[1] - size + 1 :]).all(-1)
        row, index = np.nonzero(repeats)
        logits[row, ngrams[row, index, -1]] = NEVER
    return np.where(exempt[:, None], original, logits)
