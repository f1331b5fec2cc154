"""Measure the quality of translations: sacreBLEU's BLEU and chrF, on detokenized text and with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from relattn_mt.support.errors import InputError


@dataclass(frozen=True)
class Scores:
    """Corpus scores from 0 to 100 with their signatures. `str` gives one score per line."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.2f}  {self.bleu_signature}\nchrF {self.chrf:.2f}  {self.chrf_signature}"


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Compute corpus BLEU and chrF with sacreBLEU's defaults: cased, one reference, exponential smoothing.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
    """
    require_pairs(hypotheses, references)
    bleu = BLEU()
    chrf = CHRF()
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


def require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise an InputError if the numbers of translations and references differ, or are 0."""
    if len(hypotheses) != len(references):
        raise InputError(f"there must be one translation per reference, got {len(hypotheses)} and {len(references)}")
    if not references:
        raise InputError("there must be at least one line to score")
