"""Length penalties: what a hypothesis's log-probability is divided by before hypotheses are ranked.

A sum of log-probabilities falls with every token, so the raw sum prefers short translations. A hypothesis of `len`
generated tokens, end of sentence counted, therefore scores

    score = log p(tokens | source) / lp(len)

with one of three strategies for lp:

    gnmt      ((5 + len) / 6) ** alpha    Wu et al. 2016, equation 14: the paper's, with alpha = 0.6
    average   len ** alpha                alpha = 1 ranks by log-probability a token (fairseq, Marian, CTranslate2)
    none      1

The two families do not share a scale: alpha = 0.6 tuned for one means something else in the other.
"""

from collections.abc import Callable
from typing import Any, Literal

PenaltyName = Literal["gnmt", "average", "none"]

LengthPenalty = Callable[[Any], Any]
"""A length in generated tokens, end of sentence counted -> a positive divisor; of a tensor of them, one of float32.

Must be monotone in the length, rising or falling: beam search bounds what a hypothesis can still reach by its ends.
"""


def length_penalty(name: PenaltyName, alpha: float) -> LengthPenalty:
    """The strategy called `name`, with its exponent `alpha` bound. Raises ValueError for any other name."""
    if name == "gnmt":
        return lambda lengths: ((5.0 + lengths) / 6.0) ** alpha
    if name == "average":
        return lambda lengths: (1.0 * lengths) ** alpha
    if name == "none":
        return lambda lengths: 1.0 + 0.0 * lengths
    raise ValueError(f"length_penalty is {name!r}; it must be 'gnmt', 'average' or 'none'")
