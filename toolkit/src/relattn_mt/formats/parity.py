"""Check that an exported or imported model gives the scores of the bundle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relattn_mt.config import SearchConfig
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import InputError, require
from relattn_mt.support.types import IdRows, Sample
from relattn_mt.text.patterns import has_text
from relattn_mt.tokens.tokenizer import SPACE_MARK
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

TOLERANCE = 1e-4  # largest difference of a token's log-probability in float32, in nats
MEAN_TOLERANCE = 0.2  # largest mean difference in other types, in nats, about ten times what int8 has
LONGEST = 64  # pieces of a random line

LogProbs = Callable[[IdRows, IdRows], list[list[float]]]


@dataclass(frozen=True)
class Parity:
    """Agreement of two programs on some lines.

    Attributes:
        lines: Number of lines.
        tokens: Number of tokens whose log-probabilities were compared, ends of sentences included.
        worst: Largest difference of a log-probability, in nats.
        mean: Mean difference, in nats.
        worst_line: Number of the line with the largest difference, counted from 1.
        is_random: Whether the lines are random text.
    """

    lines: int
    tokens: int
    worst: float
    mean: float
    worst_line: int
    is_random: bool = False

    def __str__(self) -> str:
        text = " of random text" if self.is_random else ""
        return (
            f"log-probabilities of {self.tokens:,} tokens in {self.lines:,} lines{text} differ by at most "
            f"{self.worst:.1e} (line {self.worst_line}), on average by {self.mean:.1e}"
        )

    def require_close(self, refusal: str, weights: str = "float32") -> None:
        """Raise an InputError, which begins with `refusal`, if the difference is too large or not a number.

        If the weights are in float32, each difference is limited, and otherwise their mean.
        """
        is_close = self.mean <= self.worst <= TOLERANCE if weights == "float32" else self.mean <= MEAN_TOLERANCE
        if not is_close:
            raise InputError(f"{refusal}: log-probabilities must differ by {limit(weights)}: {self}")


def limit(weights: str) -> str:
    """Return how far log-probabilities may differ with weights of a type."""
    return f"at most {TOLERANCE:.0e}" if weights == "float32" else f"at most {MEAN_TOLERANCE} on average"


@dataclass(frozen=True)
class Report:
    """Result of an export or an import.

    Attributes:
        notes: Paragraphs about the model.
        parities: Agreement with the bundle, by the type of the weights.
    """

    notes: Sequence[str]
    parities: dict[str, Parity]

    def __str__(self) -> str:
        parities = (f"{weights}: {parity}; required: {limit(weights)}" for weights, parity in self.parities.items())
        return "\n\n".join([*self.notes, *parities])

    def write(self, path: Path, card: str) -> None:
        """Write a bundle's card with the report of its export."""
        path.write_text(f"{card.rstrip()}\n\n## Export\n\n{self}\n".lstrip(), encoding="utf-8")


class Reference:
    """Translations of some lines by one program, and their scores, to compare other programs with.

    Args:
        translator: Translator of the reference.
        sample: Lines, or the number of lines to draw, as `check_lines` gets them.
        search: Search for the translations.
    """

    def __init__(self, translator: Translator, sample: Sample, search: SearchConfig) -> None:
        lines = check_lines(translator, sample)
        self.is_random = isinstance(sample, int)
        unit = "" if self.is_random else "line"  # warnings about random lines help nobody
        options = TranslateOptions(search=search, copy=False, keep_literals=False, unit=unit)
        self.src_ids = [translator.tokenizer.encode(line) for line in lines]
        translations = translator.n_best(lines, options, progress=shows_progress())
        self.tgt_ids = [best.tokens for (best,) in translations]
        self.scores = translator.log_probs(self.src_ids, self.tgt_ids)

    def compare(self, log_probs: LogProbs) -> Parity:
        """Compare the scores that another program gives to the same translations."""
        scores = log_probs(self.src_ids, self.tgt_ids)
        gaps = [np.abs(np.subtract(mine, its)) for mine, its in zip(self.scores, scores, strict=True)]
        largest = np.array([gap.max() for gap in gaps])
        flat = np.concatenate(gaps)
        worst_line = int(largest.argmax())
        return Parity(
            lines=len(self.src_ids),
            tokens=len(flat),
            worst=float(largest[worst_line]),
            mean=float(flat.mean()),
            worst_line=worst_line + 1,
            is_random=self.is_random,
        )


def check_lines(translator: Translator, sample: Sample) -> list[str]:
    """Return the lines to check a model with.

    Args:
        translator: Translator of the model.
        sample: Lines, of which blank ones are dropped; or the number of lines to draw. A random line consists of pieces
            with the probabilities that SentencePiece expects. It is not a sentence.

    Raises:
        InputError: All lines are blank.
    """
    if not isinstance(sample, int):
        lines = [line for line in sample if has_text(line)]
        require(lines, "the check requires at least one line that is not blank")
        return lines
    draw = random.Random(1)
    frequencies = translator.tokenizer.frequencies()
    longest = translator.preparation.max_length or 2 * LONGEST
    most = min(LONGEST, max(1, longest // 2))  # encoded again, a line may have more
    lines = []
    for _ in range(sample):
        pieces = draw.choices(list(frequencies), list(frequencies.values()), k=draw.randint(1, most))
        lines.append("".join(pieces).replace(SPACE_MARK, " ").strip())
    return lines
