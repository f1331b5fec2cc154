"""Types of a search: the request, the rules and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relattn_mt.config import SearchConfig
from relattn_mt.search.length_penalty import length_penalty
from relattn_mt.support.types import Ids

NEVER = float("-inf")
MOST_POSITIONS = 8192  # of a search: its memory per step and hypothesis grows with the limit
DIVERGED = "the model's log-probabilities are NaN: training diverged or the weights are damaged"


@dataclass(frozen=True)
class Spelling:
    """The ways to spell a text with tokens. The last token may continue after the end of the text.

    Attributes:
        tokens: Tokens that may follow, by the number of bytes that are left.
        needed: By number of bytes, the minimum number of tokens that spell them; infinite if they cannot be spelled.
        lengths: (vocab,) number of bytes of each token.
    """

    tokens: Sequence[np.ndarray]
    needed: np.ndarray
    lengths: np.ndarray

    @property
    def size(self) -> int:
        """Number of bytes of the text."""
        return len(self.tokens) - 1

    def allowed(self, left: int, room: float) -> np.ndarray:
        """Return the tokens that may follow if `left` bytes are left, and at most `room` tokens spell the others."""
        tokens = self.tokens[left]
        return tokens[self.needed[np.maximum(left - self.lengths[tokens], 0)] <= room]


@dataclass(frozen=True)
class Request:
    """One source sentence to translate.

    Attributes:
        number: Line number, counted from 1.
        src_ids: Source tokens, with special tokens.
        limit: Maximum number of tokens of a translation, prefix and end of sentence included. It must leave room for
            the prefix, the tokens that spell the text, the phrases and the end.
        prefix: Tokens that every translation begins with.
        phrases: Token sequences that every translation contains; a phrase listed twice must occur twice.
        spelling: Text that follows the prefix in every translation; None if any may follow.
    """

    number: int
    src_ids: list[int]
    limit: int
    prefix: list[int] = field(default_factory=list)
    phrases: tuple[Ids, ...] = ()
    spelling: Spelling | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One complete translation.

    Attributes:
        tokens: Tokens of the prefix and generated ones, without the end of sentence.
        score: Log-probability of the tokens and the end of sentence, in nats, divided by the length penalty.
    """

    tokens: list[int]
    score: float


Hypotheses = list[list[Hypothesis]]  # of each request, best first


@dataclass(frozen=True, kw_only=True)
class SearchRules:
    """Settings of one search.

    Attributes:
        config: Beam size, length penalty, early stopping and rules against repetition.
        bos: Token that the decoder starts with.
        eos: End of sentence.
        banned: Tokens that are never generated, such as padding.
        n_best: Number of finished hypotheses that must be final before a sentence is done.
        given: Number of first tokens of each prefix that belong to the model. They have probability 1.
        continues_word: (vocab,) bool, True for tokens that continue a word, which no phrase may be followed by.
    """

    config: SearchConfig
    bos: int
    eos: int
    banned: Sequence[int]
    n_best: int = 1
    given: int = 0
    continues_word: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best must be between 1 and the beam size {self.beam_size}, got {self.n_best}")

    @property
    def beam_size(self) -> int:
        """Number of live hypotheses per sentence."""
        return self.config.beam_size

    @property
    def candidates(self) -> int:
        """Number of candidates per sentence and step."""
        return 1 if self.beam_size == 1 else 2 * self.beam_size

    def penalty(self, length: int) -> float:
        """Return the length penalty of a number of tokens."""
        return length_penalty(self.config, length)

    def continues(self, token: int) -> bool:
        """Return whether a token continues a word."""
        return self.continues_word is not None and bool(self.continues_word[token])
