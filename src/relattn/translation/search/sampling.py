"""Sampling: translations drawn token by token from the model's probabilities.

A token is drawn from the `top_k` likeliest, with probabilities ∝ p^(1 / temperature). The random numbers in [0, 1) are
an argument, one per token of each row, so the translations of a line do not depend on the rest of the batch. Scores are
those of the model, before the temperature and `top_k` are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relattn.translation.errors import Diverged
from relattn.translation.search.beam import allowed_tokens, best_tokens, read_prefixes, sizes
from relattn.translation.search.repetition import restrain
from relattn.translation.search.types import DIVERGED, Hypothesis, SamplingOptions, SearchRules, Spelling, Step


def sample(
    step: Step,
    cache: Any,
    limits: Tensor,
    rules: SearchRules,
    prefixes: Tensor,
    options: SamplingOptions,
    numbers: Tensor,
    spellings: Sequence[Spelling | None] = (),
) -> list[Hypothesis]:
    """Draw a translation for each row.

    Args:
        step: Model.
        cache: Cache with one row per translation.
        limits: (rows,) maximum number of generated tokens, prefix and end of sentence included.
        rules: Settings; those of the beam have no effect.
        prefixes: (rows, length) tokens that the translations begin with.
        options: How to draw.
        numbers: (rows, at least the largest limit) random numbers in [0, 1), float64.
        spellings: Text of each row that follows its prefix; empty if no row has one. Its tokens are drawn from those
            that agree with the rest of the text.

    Raises:
        Diverged: The model's log-probabilities are NaN, as after training diverged.
    """
    logits, log_prob, cache = read_prefixes(step, cache, prefixes, rules)
    tokens, totals = prefixes.tolist(), log_prob.double()
    rows = torch.arange(len(limits), device=limits.device)  # rows without an end of sentence
    left = torch.tensor(sizes(spellings) or [0] * len(limits), device=limits.device)  # bytes to spell, of all rows
    for length in range(prefixes.shape[1] + 1, int(limits.max()) + 1):
        k = min(options.top_k or logits.shape[1], logits.shape[1])
        spelled = [spellings[row] for row in rows.tolist()] if spellings else []
        allowed = allowed_tokens(spelled, left[rows], limits[rows] - length, logits.shape[1])
        if rules.restrains:
            before = torch.tensor([tokens[row] for row in rows.tolist()], device=limits.device)
            logits = restrain(logits, before, rules, None if allowed is None else left[rows] > 0)
        log_probs, candidates = best_tokens(logits, k, limits[rows] == length, rules, allowed)
        if not bool(log_probs[:, 0].isfinite().all()):
            raise Diverged(DIVERGED)
        cumulative = (log_probs.double() / options.temperature).softmax(-1).cumsum(-1)
        index = torch.searchsorted(cumulative / cumulative[:, -1:], numbers[rows, length - 1, None], right=True)
        drawn = candidates.gather(1, index)[:, 0]
        totals[rows] += log_probs.gather(1, index)[:, 0]
        for row, token in zip(rows.tolist(), drawn.tolist(), strict=True):
            tokens[row].append(token)
        if allowed is not None:
            lengths = next(torch.from_numpy(spelling.lengths) for spelling in spelled if spelling is not None)
            left[rows] = (left[rows] - lengths.to(left.device)[drawn]).clamp(min=0)
        is_active = drawn != rules.eos
        if not bool(is_active.any()):
            break
        if not bool(is_active.all()):
            rows, drawn = rows[is_active], drawn[is_active]
            cache = cache.select(is_active.nonzero()[:, 0])
        logits, cache = step(drawn[:, None], cache)
        logits = logits[:, -1]
    return [
        Hypothesis(row[:-1], total / rules.penalty(len(row)))
        for row, total in zip(tokens, totals.tolist(), strict=True)
    ]
