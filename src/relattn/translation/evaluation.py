"""Measures of translations: sacreBLEU with its signatures, and the items of lines.

BLEU and chrF are sacreBLEU's, on detokenised text as it is, and never printed without the signature that says how
they were computed. Where a line is a list of items, items are counted by the longest common subsequence of the two
lists, so one item left out does not fail all that follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from relattn.translation.errors import InputError

_SAMPLES = 1000  # of a bootstrap


@dataclass(frozen=True)
class Scores:
    """Corpus scores, from 0 to 100, and how they were computed. `str` gives both, one per line."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.2f}  {self.bleu_signature}\nchrF {self.chrf:.2f}  {self.chrf_signature}"


class ItemAccuracy(NamedTuple):
    """Shares from 0 to 1."""

    items: float  # items of the references that were found, in order
    lines: float  # lines that equal their reference


class LengthBucket(NamedTuple):
    """BLEU of the sentences of some lengths."""

    label: str
    sentences: int
    bleu: float


def score(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> Scores:
    """Corpus BLEU and chrF (sacreBLEU's defaults: cased, one reference, exponential smoothing).

    Args:
        hypotheses: translations, detokenised.
        references: one each.
        tokenize: the tokenizer BLEU counts words with; "13a" suits languages written with spaces.

    Raises:
        InputError: different numbers of each, or none.
    """
    from sacrebleu.metrics import BLEU, CHRF

    require_pairs(hypotheses, references)
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each sentence, from 0 to 100. Raises InputError as `score`."""
    from sacrebleu.metrics import CHRF

    require_pairs(hypotheses, references)
    chrf = CHRF()
    return [chrf.sentence_score(one, [other]).score for one, other in zip(hypotheses, references, strict=True)]


def by_length(
    hypotheses: Sequence[str], references: Sequence[str], lengths: Sequence[int], edges: Sequence[int]
) -> list[LengthBucket]:
    """BLEU of each length bucket, computed as `score` does, with its signature. Buckets without sentences are left out.

    Args:
        hypotheses: translations.
        references: one each.
        lengths: of each sentence, in any unit, at least 1 (commonly: words of the source).
        edges: the last length of each bucket but the open one at the end: [10, 20] makes 1–10, 11–20 and 21+.

    Raises:
        InputError: different numbers of each, none, lengths below 1, or edges that do not rise from at least 1.
    """
    require_pairs(hypotheses, references)
    if len(lengths) != len(references):
        raise InputError(f"there are {len(lengths)} lengths for {len(references)} references")
    if min(lengths) < 1:
        raise InputError(f"lengths start at 1, but there is one of {min(lengths)}")
    bounds = [0, *edges]
    if any(low >= high for low, high in pairwise(bounds)):
        raise InputError(f"length edges must rise, from at least 1, got {list(edges)}")
    buckets = []
    for low, high in pairwise([*bounds, max(*lengths, bounds[-1]) + 1]):
        chosen = [i for i, length in enumerate(lengths) if low < length <= high]
        if chosen:
            label = f"{low + 1}+" if low == bounds[-1] else f"{low + 1}–{high}"
            bleu = score([hypotheses[i] for i in chosen], [references[i] for i in chosen]).bleu
            buckets.append(LengthBucket(label, len(chosen), bleu))
    return buckets


def paired_bootstrap(hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str]) -> float:
    """How often a difference in BLEU as large would come of chance: sacreBLEU's paired bootstrap, 1,000 samples.

    Args:
        hypotheses: one system's translations.
        others: the other system's.
        references: one each.

    Raises:
        InputError: different numbers of each, or none.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest, Result

    for lines in (hypotheses, others):
        require_pairs(lines, references)
    if list(hypotheses) == list(others):
        return 1.0  # where no sample differs, sacreBLEU says 1 / 1,001
    systems: list[tuple[str, Sequence[str]]] = [("", hypotheses), ("other", others)]
    test = PairedTest(systems, {"BLEU": BLEU(references=[list(references)])}, None, "bs", _SAMPLES)
    found = test()[1]["BLEU"][1]
    assert isinstance(found, Result)
    assert found.p_value is not None
    return found.p_value


def item_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> ItemAccuracy:
    """Items found and lines matched, of lines whose items are joined as the embedded corpus joins them.

    Raises:
        InputError: different numbers of each, or none.
    """
    from relattn.translation.data.embedded import ITEM_SEPARATOR

    require_pairs(hypotheses, references)
    found = wanted = exact = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        items = reference.split(ITEM_SEPARATOR)
        found += common_subsequence(hypothesis.split(ITEM_SEPARATOR), items)
        wanted += len(items)
        exact += hypothesis == reference
    return ItemAccuracy(found / wanted, exact / len(references))


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence of two lists."""
    row = [0] * (len(b) + 1)  # row[j]: of what was read of a and the first j of b
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            row[j], diagonal = diagonal + 1 if x == y else max(row[j], row[j - 1]), row[j]
    return row[-1]


def require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse different numbers of each, or none, by an InputError."""
    if len(hypotheses) != len(references):
        raise InputError(f"there are {len(hypotheses)} translations for {len(references)} references")
    if not references:
        raise InputError("there is nothing to score: no lines")
