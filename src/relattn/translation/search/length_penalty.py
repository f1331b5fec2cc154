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
from typing import Literal

PenaltyName = Literal["gnmt", "average", "none"]

LengthPenalty = Callable[[int], float]
"""Function from a length, end of sentence included, to a positive divisor.

It takes one length, because PyTorch computes powers of a tensor by different functions for whole vectors and for the
rest, so that a power would depend on the other lengths of the tensor.

It must be monotone in the length, rising or falling: beam search relies on it to bound the scores of live hypotheses.
"""


def length_penalty(name: PenaltyName, alpha: float) -> LengthPenalty:
    """Return the penalty called `name` with the exponent `alpha`."""
    penalties: dict[PenaltyName, LengthPenalty] = {
        "gnmt": lambda length: float(((5 + length) / 6) ** alpha),
        "average": lambda length: float(length**alpha),
        "none": lambda length: 1.0,
    }
    return penalties[name]
