"""Beam search for translations that hold given phrases, whatever the model thinks of them (Post and Vilar 2018).

A hypothesis knows which phrases it still lacks and how far into one of them it is. Beside its likeliest tokens it is
always extended by those that begin or continue a phrase that it lacks. The beam is shared out among hypotheses by how
many tokens of phrases they hold, so one that holds many is not crowded out by likelier ones that hold few; the end of
the sentence is open to those alone that lack none. Where room runs out, only tokens of phrases may follow. So every
translation returned holds every phrase, and its score is that of all its tokens.

A phrase is whole words: no token that goes on within its last word may follow it.

Sentences are searched together, but their hypotheses are kept in Python, one by one: a search with phrases is slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relattn.translation.errors import Diverged
from relattn.translation.search.types import DIVERGED, NEVER, C, Hypothesis, Request, SearchRules

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class PartialHypothesis:
    """One that is not ended."""

    row: int  # of the cache it comes from
    lacking: tuple[Phrase, ...]
    tokens: Phrase = ()
    log_prob: float = 0.0
    begun: Phrase = ()  # the beginning of a phrase that its last tokens are
    after_phrase: bool = False  # whether its last token ended one

    @property
    def missing(self) -> int:
        """Tokens of phrases that it has not."""
        return sum(map(len, self.lacking)) - len(self.begun)

    def wanted(self) -> set[int]:
        """The tokens that begin a phrase that it lacks, or go on with one."""
        return {phrase[len(begun)] for begun in ((), self.begun) for phrase in self.lacking if _begins(phrase, begun)}

    def extended(self, token: int, log_prob: float) -> PartialHypothesis:
        """This one and a token more, whose log-probability is given."""
        ends = ((*self.begun[start:], token) for start in range(len(self.begun) + 1))
        begun = next((end for end in ends if any(_begins(phrase, end) for phrase in self.lacking)), ())
        lacking, whole = list(self.lacking), begun in self.lacking
        if whole:
            lacking.remove(begun)
        after = (*self.tokens, token), self.log_prob + log_prob
        return PartialHypothesis(self.row, tuple(lacking), *after, () if whole else begun, whole)


def _begins(phrase: Phrase, beginning: Phrase) -> bool:
    return phrase[: len(beginning)] == beginning


def search(
    step: Callable[[Tensor, C], tuple[Tensor, C]],
    cache: C,
    asked: Sequence[Request],
    rules: SearchRules,
    within: np.ndarray,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Search a batch to its end: for each sentence its best `rules.n_best` translations, best first.

    Args:
        step: (rows,) tokens and a cache -> (rows, vocab) logits, and the cache after them.
        cache: of a row for each sentence.
        asked: of each sentence.
        rules: of the search.
        within: (vocab,) bool, the tokens that go on within a word.
        device: where the model computes.

    Raises:
        Diverged: the model's log-probabilities are not numbers.
        ValueError: a sentence's limit has no room for its prefix, its phrases and the end.
    """
    if any(len(each.prefix) + sum(map(len, each.phrases)) >= each.limit for each in asked):
        raise ValueError("a sentence's limit has no room for what is to be in it")
    results: list[list[Hypothesis]] = [[] for _ in asked]
    live = {i: [PartialHypothesis(i, each.phrases)] for i, each in enumerate(asked)}
    while live:
        hypotheses = [one for of_sentence in live.values() for one in of_sentence]
        tokens = [one.tokens[-1] if one.tokens else rules.bos for one in hypotheses]
        logits, cache = step(torch.tensor(tokens, device=device), cache)
        log_probs = torch.log_softmax(logits.float(), dim=-1).cpu().numpy()
        at = 0
        for i, before in list(live.items()):
            ended, live[i] = _advance(before, log_probs[at : at + len(before)], asked[i], rules, within, at)
            at += len(before)
            results[i] = sorted(results[i] + ended, key=lambda found: -found.score)[: rules.beam_size]
            if _over(results[i], live[i], asked[i].limit, rules):
                del live[i]
            elif not live[i]:
                raise Diverged(DIVERGED)
        rows = [one.row for of_sentence in live.values() for one in of_sentence]
        cache = cache.select(torch.tensor(rows, dtype=torch.long, device=device))
    return [found[: rules.n_best] for found in results]


def _advance(
    before: list[PartialHypothesis],
    log_probs: np.ndarray,
    asked: Request,
    rules: SearchRules,
    within: np.ndarray,
    row: int,
) -> tuple[list[Hypothesis], list[PartialHypothesis]]:
    """One step of one sentence: what ends in it, and what lives on. `row` is that of the first of `before`."""
    most = rules.candidates
    length = len(before[0].tokens) + 1
    banks: dict[int, list[tuple[float, int, int, PartialHypothesis]]] = defaultdict(list)
    for place, one in enumerate(before):
        for token in _followers(one, log_probs[place], asked, rules, within, most):
            after = replace(one, row=row + place).extended(token, float(log_probs[place, token]))
            if token == rules.eos or after.missing < asked.limit - length:
                banks[after.missing].append((-after.log_prob, place, token, after))
    ended, kept = [], []
    for missing in sorted(banks):
        bank = sorted(banks[missing], key=lambda candidate: candidate[:3])[:most]
        counted = bank[: rules.beam_size] if rules.early_stopping else bank
        ended += [after for _, _, token, after in counted if token == rules.eos]
        kept.append([after for _, _, token, after in bank if token != rules.eos])
    turns = (bank[turn] for turn in range(most) for bank in kept if turn < len(bank))
    chosen = [one for one, _ in zip(turns, range(rules.beam_size), strict=False)]
    penalty = float(rules.penalty(torch.tensor(length)))
    return [Hypothesis(list(one.tokens[:-1]), one.log_prob / penalty) for one in ended], chosen


def _followers(
    one: PartialHypothesis, log_probs: np.ndarray, asked: Request, rules: SearchRules, within: np.ndarray, most: int
) -> set[int]:
    """The tokens that a hypothesis is extended by: its likeliest that may follow, and those of phrases."""
    length = len(one.tokens) + 1
    if length <= len(asked.prefix):
        return {asked.prefix[length - 1]}
    if length == asked.limit:
        return {rules.eos}
    wanted = one.wanted()
    allowed = np.isfinite(log_probs)
    allowed[list(rules.banned)] = False
    if one.after_phrase:
        allowed &= ~within
    allowed[rules.eos] &= not one.lacking
    likely = np.flatnonzero(allowed)
    if len(likely) > most:
        values = log_probs[likely]
        likely = likely[values >= np.partition(values, -most)[-most]]  # and those that tie with the last
        likely = likely[np.argsort(-log_probs[likely], kind="stable")[:most]]
    return wanted | set(likely.tolist())


def _over(found: list[Hypothesis], live: list[PartialHypothesis], limit: int, rules: SearchRules) -> bool:
    """Whether nothing that lives can still enter the n best, or is waited for; as `beam.over`."""
    if len(found) < rules.n_best:
        return not live and bool(found)
    if rules.early_stopping and len(found) == rules.beam_size:
        return True
    best = max((one.log_prob for one in live), default=NEVER)
    lengths = torch.tensor([len(live[0].tokens) + 1 if live else limit, limit])
    return found[rules.n_best - 1].score >= max(best / penalty for penalty in rules.penalty(lengths).tolist())
