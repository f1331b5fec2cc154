"""Whether an exported model says what the bundle says: scores of the same translations, and translations themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from relattn.translation.config import SearchConfig
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translation, Translator

FARTHEST = 1e-4  # nats by which a token's log-probability may differ in float32
TIE = 1e-3  # nats a score by which two translations are told apart


@dataclass(frozen=True)
class Parity:
    """How far two programs agree on some lines.

    Attributes:
        lines: compared.
        tokens: of the translations whose scores were compared, ends counted.
        worst: the largest difference of a token's log-probability, in nats.
        mean: the mean difference.
        at: the line with the largest, counted from 1.
        same: lines whose translations are the same text.
        others: the reasons of the other lines, and how many have each.
    """

    lines: int
    tokens: int
    worst: float
    mean: float
    at: int
    same: int
    others: dict[str, int]

    def __str__(self) -> str:
        told = (
            f"log-probabilities of {self.tokens:,} tokens of our translations of {self.lines:,} lines: at most "
            f"{self.worst:.1e} apart (line {self.at}), {self.mean:.1e} in the mean; the same text from both in "
            f"{self.same:,} of {self.lines:,} lines"
        )
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.others.items())
        return f"{told}; of the others {reasons}" if reasons else told


@dataclass(frozen=True)
class Reference:
    """A bundle's own translations of some lines, which its exports are held against.

    Attributes:
        model: translator of the bundle.
        search: search that the exports support too.
        lines: none of them blank.
        src_ids: their pieces.
        best: their translations.
        scores: of each translation, the log-probability of each piece and of the end.
    """

    model: Translator
    search: SearchConfig
    lines: list[str]
    src_ids: list[list[int]]
    best: list[Translation]
    scores: list[list[float]]

    @classmethod
    def of(cls, model: Translator, lines: Sequence[str], search: SearchConfig) -> Reference:
        """Translate lines, of which blank ones are left out."""
        lines = [line for line in lines if line.strip()]
        src_ids = [model.tokenizer.encode(line) for line in lines]
        best = [best for (best,) in model.n_best(lines, TranslateOptions(search=search))]
        return cls(model, search, lines, src_ids, best, model.log_probs(src_ids, [found.tokens for found in best]))

    def compare(self, theirs: Translator) -> Parity:
        """How far an exported model agrees."""
        scores = theirs.log_probs(self.src_ids, [found.tokens for found in self.best])
        gaps = [
            [abs(a - b) for a, b in zip(mine, its, strict=True)] for mine, its in zip(self.scores, scores, strict=True)
        ]
        others: Counter[str] = Counter()
        for ids, mine, (its,) in zip(
            self.src_ids, self.best, theirs.n_best(self.lines, TranslateOptions(search=self.search)), strict=True
        ):
            if mine.text != its.text:
                others[_reason(self.model, self.search, ids, mine.tokens, its.tokens)] += 1
        largest = [max(of_line) for of_line in gaps]
        worst = max(largest)
        tokens = sum(map(len, gaps))
        return Parity(
            lines=len(self.lines),
            tokens=tokens,
            worst=worst,
            mean=sum(map(sum, gaps)) / tokens,
            at=largest.index(worst) + 1,
            same=len(self.lines) - others.total(),
            others=dict(others.most_common()),
        )


def _reason(model: Translator, search: SearchConfig, src: list[int], mine: list[int], its: list[int]) -> str:
    """Why two translations of a sentence differ, by what the model itself makes of both."""
    if max(len(mine), len(its)) + 1 >= model.limit(len(src), search):
        return "closed at the limit of length"
    penalty = length_penalty(search.length_penalty, search.alpha)
    totals = [sum(scores) for scores in model.log_probs([src, src], [mine, its])]
    better, other = (torch.tensor(totals) / penalty(torch.tensor([len(mine) + 1, len(its) + 1]))).tolist()
    if abs(better - other) < TIE:
        return "near-ties"
    return "where its search kept a less likely one" if better > other else "where its search found a likelier one"
