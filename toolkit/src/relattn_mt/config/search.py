"""Configuration of the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relattn_mt.config.base import Config, number
from relattn_mt.support.errors import require


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Config):
    """Beam search.

    Args:
        beam_size: Number of hypotheses kept per sentence. 1 is greedy search.
        length_penalty: Divisor of a hypothesis's log-probability: "gnmt" ((5 + length) / 6)^alpha, "average"
            length^alpha, or "none".
        alpha: Exponent of the length penalty. Larger values prefer longer translations.
        early_stopping: End the search of a sentence as soon as beam_size hypotheses have finished, as fairseq and
            CTranslate2 do. By default it ends when no better one is possible. "heuristic": also wait until the best
            unfinished one has no better score than these, as transformers does by default.
        no_repeat_ngram: Size of the n-grams that a translation must not repeat. 0: no limit.
        repetition_penalty: Penalty on tokens that are in the translation already: logits are divided by it if positive,
            else multiplied. 1: no penalty.
        max_length_ratio: A translation has at most max_length_ratio × source tokens + max_length_extra tokens.
        max_length_extra: Constant part of the maximum length, in tokens (see max_length_ratio).
    """

    beam_size: int = number(4, "[1, 1000]")
    length_penalty: Literal["gnmt", "average", "none"] = "gnmt"
    alpha: float = number(0.6, "[0, 5]")
    early_stopping: bool | Literal["heuristic"] = False
    no_repeat_ngram: int = number(0, "[0, 1000]")
    repetition_penalty: float = number(1.0, "[1, 100]")
    max_length_ratio: float = number(2.0, "[0, 100]")
    max_length_extra: int = number(50, "[0, 1e5]")

    def __post_init__(self) -> None:
        super().__post_init__()
        shortest = self.max_length_ratio + self.max_length_extra  # limit for a source sentence of one token
        require(shortest >= 1, f"max_length_ratio + max_length_extra must be at least 1, got {shortest}")

    @property
    def restrains(self) -> bool:
        """Whether there are rules against repetition."""
        return self.no_repeat_ngram > 0 or self.repetition_penalty != 1.0
