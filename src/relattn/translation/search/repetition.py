"""Rules against repetition, as CTranslate2 defines them: they change the logits, before the softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.translation.search.types import NEVER, SearchRules


def restrain(logits: Tensor, tokens: Tensor, rules: SearchRules, exempt: Tensor | None = None) -> Tensor:
    """Return the logits of the next token under the rules against repetition.

    `repetition_penalty` (Keskar et al. 2019) divides positive logits of tokens that a hypothesis has, and multiplies
    negative ones. `no_repeat_ngram` forbids a token that would repeat an n-gram of this size.

    Args:
        logits: (rows, vocab).
        tokens: (rows, length) tokens of each hypothesis.
        rules: Settings of the search.
        exempt: (rows,) True for rows whose next token is given text, which may repeat itself; None if there are none.
    """
    if not rules.restrains or tokens.shape[1] == 0:
        return logits
    given, logits = logits, logits.float().clone()
    penalty, size = rules.repetition_penalty, rules.no_repeat_ngram
    if penalty != 1.0:
        before = logits.gather(1, tokens)
        logits.scatter_(1, tokens, torch.where(before < 0, before * penalty, before / penalty))
    if 0 < size <= tokens.shape[1]:
        ngrams = tokens.unfold(1, size, 1)  # (rows, count, size)
        repeats = (ngrams[:, :, :-1] == tokens[:, None, tokens.shape[1] - size + 1 :]).all(-1)
        row, index = repeats.nonzero(as_tuple=True)
        logits[row, ngrams[row, index, -1]] = NEVER
    return logits if exempt is None else torch.where(exempt[:, None], given, logits)
