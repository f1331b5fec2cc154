"""Length penalties: divisors of log-probabilities, by which hypotheses are ranked.

A sum of log-probabilities falls with every token, so the sum alone prefers short translations. A hypothesis with `len`
generated tokens, end of sentence included, therefore has the score

    score = log p(tokens | source) / lp(len)

with one of three penalties lp:

    gnmt      ((5 + len) / 6) ** alpha    Wu et al. 2016, equation 14; Shaw et al. 2018 use alpha = 0.6
    average   len ** alpha                alpha = 1: mean log-probability per token (fairseq, Marian, CTranslate2)
    none      1

The scales of alpha differ: 0.6 tuned for one penalty means something else for another.
"""

from collections.abc import Callable
from typing import Any, Literal

PenaltyName = Literal["gnmt", "average", "none"]

LengthPenalty = Callable[[Any], Any]
"""Function from lengths, end of sentence included, to positive divisors; float32 for a tensor.

It must be monotone in the length, rising or falling: beam search relies on it to bound the scores of live hypotheses.
"""


def length_penalty(name: PenaltyName, alpha: float) -> LengthPenalty:
    """Return the penalty called `name` with the exponent `alpha`."""
    penalties: dict[PenaltyName, LengthPenalty] = {
        "gnmt": lambda lengths: ((5.0 + lengths) / 6.0) ** alpha,
        "average": lambda lengths: (1.0 * lengths) ** alpha,
        "none": lambda lengths: 1.0 + 0.0 * lengths,
    }
    return penalties[name]
