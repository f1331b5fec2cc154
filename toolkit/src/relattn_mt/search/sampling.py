"""Sampling: translations drawn token by token from the model's probabilities.

A token is drawn from the `top_k` likeliest, with probabilities ∝ p^(1 / temperature). Each draw of a line has its
own random numbers in [0, 1), one per token, so that translations do not depend on the rest of the batch. Scores are
those of the model, before the temperature and `top_k` are applied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn_mt.search.beam import Choices, Partial, largest
from relattn_mt.search.engine import Engine
from relattn_mt.search.types import NEVER, Hypothesis, Request, SamplingOptions, SearchRules


def sample(
    engine: Engine, requests: Sequence[Request], rules: SearchRules, options: SamplingOptions, count: int
) -> list[list[Hypothesis]]:
    """Draw `count` translations of each request, which has no phrases; none if log-probabilities are NaN."""
    state = engine.start([request.src_ids for request in requests], max(request.limit for request in requests))
    live = [Partial.first(request, row) for row, request in enumerate(requests) for _ in range(count)]
    numbers = [
        np.random.default_rng([options.seed, request.number, draw]).random(request.limit)
        for request in requests
        for draw in range(count)
    ]
    drawn: list[Hypothesis | None] = [None] * len(live)
    # places of the live ones among all draws
    places = list(range(len(live)))
    tokens = [rules.bos] * len(live)
    while live:
        following = engine.step(state, tokens, [each.row for each in live], rules, 1)
        choices = Choices(following, rules, live)
        rest = []
        for row, (place, hypothesis) in enumerate(zip(places, live, strict=True)):
            hypothesis.row = row
            if choices.diverged[row]:
                continue
            token, log_prob = _draw(hypothesis, choices, rules, options, numbers[place][len(hypothesis.tokens)])
            if token == rules.eos:
                score = np.float32(log_prob) / np.float32(rules.penalty(hypothesis.length))
                drawn[place] = Hypothesis(list(hypothesis.tokens), float(score))
            else:
                rest.append((place, hypothesis.append(token, log_prob, hypothesis.phrases)))
        places = [place for place, _ in rest]
        live = [hypothesis for _, hypothesis in rest]
        tokens = [hypothesis.tokens[-1] for hypothesis in live]
    groups = (drawn[first : first + count] for first in range(0, len(drawn), count))
    return [[] if None in group else [each for each in group if each] for group in groups]


def _draw(
    hypothesis: Partial, choices: Choices, rules: SearchRules, options: SamplingOptions, number: float
) -> tuple[int, float]:
    """Return the token that a number in [0, 1) chooses, and the log-probability of the longer hypothesis."""
    request = hypothesis.request
    length = hypothesis.length
    if length <= len(request.prefix) or length == request.limit:
        ((token, log_prob),) = choices.extensions(hypothesis)
        return token, log_prob
    log_probs = choices.log_probs(hypothesis.row)
    if hypothesis.left and request.spelling:
        agreeing = request.spelling.allowed(hypothesis.left, request.limit - length - 1)
        log_probs[np.isin(np.arange(len(log_probs)), agreeing, invert=True)] = NEVER
    values = log_probs
    tokens = np.arange(len(log_probs))
    if 0 < options.top_k < len(log_probs):
        ((values,), (tokens,)) = largest(log_probs[None], options.top_k)
    weights = np.exp((values.astype(np.float64) - values.max()) / options.temperature).cumsum()
    chosen = int(np.searchsorted(weights, number * weights[-1], side="right"))
    return int(tokens[chosen]), float(np.float32(hypothesis.log_prob) + values[chosen])
