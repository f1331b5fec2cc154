"""Measure the quality of translations: sacreBLEU's BLEU and chrF, on detokenized text and with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relattn_mt.support.errors import InputError

_SAMPLES = 1000  # bootstrap samples


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

    Args:
        hypotheses: Detokenized translations.
        references: One per translation.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
    """
    from sacrebleu.metrics import BLEU, CHRF

    require_pairs(hypotheses, references)
    bleu, chrf = BLEU(), CHRF()
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


def paired_bootstrap(hypotheses: Sequence[str], other_hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the p-value of a difference in BLEU: sacreBLEU's paired bootstrap with 1,000 samples.

    Args:
        hypotheses: Translations of one system.
        other_hypotheses: Translations of the other system.
        references: One per translation.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest, Result

    for lines in (hypotheses, other_hypotheses):
        require_pairs(lines, references)
    if list(hypotheses) == list(other_hypotheses):
        return 1.0  # sacreBLEU would return 1 / 1,001
    systems: list[tuple[str, Sequence[str]]] = [("", hypotheses), ("other", other_hypotheses)]
    test = PairedTest(systems, {"BLEU": BLEU(references=[list(references)])}, None, "bs", _SAMPLES)
    result = test()[1]["BLEU"][1]
    assert isinstance(result, Result)
    assert result.p_value is not None
    return result.p_value


def require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise an InputError if the numbers of translations and references differ, or are 0."""
    if len(hypotheses) != len(references):
        raise InputError(f"there must be one translation per reference, got {len(hypotheses)} and {len(references)}")
    if not references:
        raise InputError("there must be at least one line to score")
