"""Sampling: translations drawn token by token, each as often as the model finds it likely.

A token is drawn from the `top_k` likeliest with probabilities ∝ p^(1 / temperature). What is drawn depends on numbers
in [0, 1) that are given, one for each token of each row, so a line's translations do not depend on what else is
translated with it. Scores are those of the model itself, neither tempered nor cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relattn.translation.errors import Diverged
from relattn.translation.search.beam import best_tokens, permitted
from relattn.translation.search.types import DIVERGED, C, Hypothesis, SamplingOptions, SearchRules


@dataclass
class _Row:
    tokens: list[int]
    log_prob: float = 0.0


def sample(
    step: Callable[[Tensor, C], tuple[Tensor, C]],
    cache: C,
    limits: Tensor,
    rules: SearchRules,
    prefixes: Tensor,
    how: SamplingOptions,
    numbers: Tensor,
) -> list[Hypothesis]:
    """Draw a translation for each row.

    Args:
        step: (rows,) tokens and a cache -> (rows, vocab) logits, and the cache after them.
        cache: of a row for each translation.
        limits: (rows,) most tokens of each, end counted.
        rules: of the tokens; those of the beam do not matter.
        prefixes: (rows, longest) tokens that it begins with, FREE after them.
        how: what to draw from.
        numbers: (rows, at least the longest limit) in [0, 1), float64.

    Raises:
        Diverged: the model's log-probabilities are not numbers.
    """
    drawn = [_Row([]) for _ in limits]
    rows = torch.arange(len(limits), device=limits.device)  # those that have not ended
    last = torch.full_like(limits, rules.bos)
    for length in range(1, int(limits.max()) + 1 if len(limits) else 1):
        logits, cache = step(last, cache)
        only = permitted(length, limits[rows], prefixes[rows], rules)
        kept, tokens = best_tokens(logits, min(how.top_k or logits.shape[1], logits.shape[1]), only, rules.banned)
        if not bool(kept[:, 0].isfinite().all()):
            raise Diverged(DIVERGED)
        share = (kept.double() / how.temperature).softmax(-1).cumsum(-1)
        place = torch.searchsorted(share / share[:, -1:], numbers[rows, length - 1, None], right=True)
        last = tokens.gather(1, place)[:, 0]
        found = kept.gather(1, place)[:, 0]
        for row, token, log_prob in zip(rows.tolist(), last.tolist(), found.tolist(), strict=True):
            drawn[row].tokens.append(token)
            drawn[row].log_prob += log_prob
        going = last != rules.eos
        if not bool(going.any()):
            break
        if not bool(going.all()):
            rows, last = rows[going], last[going]
            cache = cache.select(going.nonzero()[:, 0])
    lengths = torch.tensor([len(row.tokens) for row in drawn])
    return [
        Hypothesis(row.tokens[:-1], row.log_prob / penalty)
        for row, penalty in zip(drawn, rules.penalty(lengths).tolist(), strict=True)
    ]
