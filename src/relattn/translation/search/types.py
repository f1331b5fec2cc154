"""Types of a search: the request, the rules, the state of a beam between two steps, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from relattn.translation.errors import require
from relattn.translation.search.length_penalty import LengthPenalty

if TYPE_CHECKING:
    from torch import Tensor

EarlyStopping = bool | Literal["heuristic"]
NEVER = float("-inf")
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
        number: Line number, counted from 1. Sampling draws different random numbers for each line.
        src_ids: Source pieces, without begin and end marks.
        limit: Maximum number of generated tokens, end of sentence included.
        prefix: Tokens that every translation begins with.
        phrases: Token sequences that every translation contains; a phrase listed twice must occur twice.
        spelling: Text that follows the prefix in every translation; None if any may follow.
    """

    number: int
    src_ids: list[int]
    limit: int
    prefix: list[int] = field(default_factory=list)
    phrases: tuple[tuple[int, ...], ...] = ()
    spelling: Spelling | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One complete translation.

    Attributes:
        tokens: Generated tokens, without the end of sentence.
        score: Log-probability of the tokens and the end of sentence, in nats, divided by the length penalty.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of sampling, which draws translations at random.

    Attributes:
        top_k: Number of most likely tokens to draw from; 0 draws from all.
        temperature: Divisor of the log-probabilities; below 1, likely tokens are drawn more often.
        seed: Random seed. Equal lines of one input are still drawn independently.
    """

    top_k: int = 0
    temperature: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.top_k <= 10**9, f"top_k must be at least 0 and at most 1,000,000,000, got {self.top_k}")
        require(
            1e-3 <= self.temperature <= 1e3,
            f"temperature must be at least 0.001 and at most 1,000, got {self.temperature}",
        )
        require(0 <= self.seed < 2**63, f"seed must be at least 0 and less than 2^63, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class SearchRules:
    """Settings that are constant during one search.

    Attributes:
        beam_size: Number of live hypotheses per sentence.
        bos: Token that the decoder starts with.
        eos: End of sentence.
        banned: Tokens that are never generated, such as padding.
        penalty: Length penalty.
        n_best: Number of finished hypotheses that must be final before a sentence is done.
        early_stopping: Whether a sentence is done as soon as `beam_size` hypotheses have finished; "heuristic": as soon
            as the best live one is also no better than these at its present length.
        given: Number of first tokens of each prefix that belong to the model. They have probability 1.
        no_repeat_ngram, repetition_penalty: Rules against repetition, as in `SearchConfig`.
    """

    beam_size: int
    bos: int
    eos: int
    banned: Sequence[int]
    penalty: LengthPenalty
    n_best: int = 1
    early_stopping: EarlyStopping = False
    given: int = 0
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best must be between 1 and the beam size {self.beam_size}, got {self.n_best}")

    @property
    def restrains(self) -> bool:
        """Whether there are rules against repetition."""
        return self.no_repeat_ngram > 0 or self.repetition_penalty != 1.0

    @property
    def candidates(self) -> int:
        """Number of candidates per sentence and step."""
        return 1 if self.beam_size == 1 else 2 * self.beam_size


@dataclass(frozen=True)
class SearchState:
    """Hypotheses of the sentences still searched. `width` is 1 at the start, and at most the beam size later."""

    sentences: Tensor  # (live,) index of each sentence in the batch
    limits: Tensor  # (live,) maximum number of generated tokens, end of sentence included
    limit_penalties: Tensor  # (live,) length penalties of these
    tokens: Tensor  # (live, width, length) tokens of the live hypotheses
    log_prob: Tensor  # (live, width) log-probabilities, best first; -inf: no hypothesis in this place
    slots: Tensor  # (live, width) cache row of each live hypothesis, counted within its sentence
    left: Tensor  # (live, width) bytes that are still to be spelled
    finished_tokens: Tensor  # (live, beam, length) with the end of sentence; what follows is padding
    finished_scores: Tensor  # (live, beam) log-probability / penalty, best first; -inf: no hypothesis in this place

    def select(self, which: Tensor) -> SearchState:
        """Return the state of some sentences, given a boolean mask or indices over (live,)."""
        return SearchState(*(getattr(self, each.name)[which] for each in fields(self)))


Step = Callable[["Tensor", Any], tuple["Tensor", Any]]
"""A model: (rows, new) tokens and the cache before them -> (rows, new, vocab) logits of the next tokens, new cache.

A cache is the state of the decoder, with one entry per row, and has two methods:

    select(rows)          return the cache of `rows` (M,), in that order; a row may occur several times or not at all
    move(rows, to, keep)  copy `rows` to the places `to`, both (moved,), and return the cache of the first `keep` rows

`move` changes the cache in place, which must not be used afterwards. No row may be both copied and overwritten.
"""
