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

from relattn_mt.config import SearchConfig


def length_penalty(search: SearchConfig, length: int) -> float:
    """Return the positive divisor of a hypothesis of some tokens, end of sentence included.

    It is monotone in the length, rising or falling: beam search relies on it to bound the scores of live hypotheses.
    """
    match search.length_penalty:
        case "gnmt":
            return float(((5 + length) / 6) ** search.alpha)
        case "average":
            return float(length**search.alpha)
        case "none":
            return 1.0
