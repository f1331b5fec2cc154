"""Beam search for translations that contain given phrases, however unlikely they are (Post and Vilar 2018).

Each hypothesis knows which phrases it still needs, and how much of one of them its last tokens are. A step extends it
by its likeliest tokens and by all tokens that begin or continue a phrase that it needs. The beam is divided among
hypotheses by the number of phrase tokens that they contain, so that likelier hypotheses with few of them do not replace
those with many. Only a hypothesis that needs no phrase may end. If the remaining length is just enough for the phrases,
only their tokens may follow. Every translation returned therefore contains all phrases, and its score is that of all
its tokens.

A phrase consists of whole words, so no token that continues a word may follow it. Where a prefix continues the word,
the phrase does not count.

Sentences are searched together, but their hypotheses are Python objects: this search is slower than `beam.search`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn.translation.errors import Diverged
from relattn.translation.search.beam import read_prefixes
from relattn.translation.search.types import DIVERGED, NEVER, Hypothesis, Request, SearchRules, Step

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class PartialHypothesis:
    """A hypothesis without an end of sentence.

    Attributes:
        row: Row of the cache that its last token extends.
        needed: Phrases that it does not contain yet.
        log_prob: Log-probability of its tokens, in nats.
        tokens: Tokens so far.
        begun: The longest beginning of a needed phrase that its last tokens are.
        completed: The phrase that its last token completed, if any.
        left: Number of bytes of the request's text that are still to be spelled.
    """

    row: int
    needed: tuple[Phrase, ...]
    log_prob: float
    tokens: Phrase = ()
    begun: Phrase = ()
    completed: Phrase = ()
    left: int = 0

    @property
    def missing(self) -> int:
        """Number of tokens of needed phrases that are still to come."""
        return sum(map(len, self.needed)) - len(self.begun)

    def phrase_tokens(self) -> set[int]:
        """Return the tokens that begin or continue a needed phrase."""
        return {phrase[len(begun)] for begun in ((), self.begun) for phrase in self.needed if _begins(phrase, begun)}

    def append(self, token: int, log_prob: float = 0.0, *, continues: bool) -> PartialHypothesis:
        """Return this hypothesis with one more token, which has the given log-probability.

        If the token continues the last word, as a prefix may require, a phrase that this word completed does not count.
        """
        ends = ((*self.begun[start:], token) for start in range(len(self.begun) + 1))
        begun = next((end for end in ends if any(_begins(phrase, end) for phrase in self.needed)), ())
        needed, complete = list(self.needed), begun in self.needed
        if continues and self.completed:
            needed.append(self.completed)
        if complete:
            needed.remove(begun)
        total, tokens = self.log_prob + log_prob, (*self.tokens, token)
        begun, completed = ((), begun) if complete else (begun, ())
        return PartialHypothesis(self.row, tuple(needed), total, tokens, begun, completed, self.left)


def _begins(phrase: Phrase, beginning: Phrase) -> bool:
    return phrase[: len(beginning)] == beginning


def search(
    step: Step,
    cache: Any,
    requests: Sequence[Request],
    rules: SearchRules,
    prefixes: Tensor,
    continues_word: np.ndarray,
) -> list[list[Hypothesis]]:
    """Search a batch, and return the `rules.n_best` best translations of each sentence, best first.

    Args:
        step: Model.
        cache: Cache with one row per sentence.
        requests: Sentences, whose prefixes have the same length. Their limits must leave room for prefix, phrases
            and end of sentence.
        rules: Settings of the search.
        prefixes: (sentences, length) prefixes of the requests.
        continues_word: (vocab,) bool, True for tokens that continue a word.

    Raises:
        Diverged: The model's log-probabilities are NaN, as after training diverged.
    """
    device = prefixes.device
    logits, start, cache = read_prefixes(step, cache, prefixes, rules)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    active = {}
    for i, (request, log_prob) in enumerate(zip(requests, start.tolist(), strict=True)):
        hypothesis = PartialHypothesis(i, request.phrases, log_prob)
        for token in request.prefix:
            hypothesis = hypothesis.append(token, continues=bool(continues_word[token]))
        active[i] = [replace(hypothesis, left=request.spelling.size if request.spelling else 0)]
    while True:
        log_probs = torch.log_softmax(logits.float(), dim=-1).cpu().numpy()
        row = 0
        for i, hypotheses in list(active.items()):
            finished, active[i] = _advance(hypotheses, log_probs, row, requests[i], rules, continues_word)
            row += len(hypotheses)
            results[i] = sorted(results[i] + finished, key=lambda hypothesis: -hypothesis.score)[: rules.beam_size]
            if _is_final(results[i], active[i], requests[i].limit, rules):
                del active[i]
            elif not active[i]:
                raise Diverged(DIVERGED)
        if not active:
            return [finished[: rules.n_best] for finished in results]
        rows, last_tokens = zip(
            *((hypothesis.row, hypothesis.tokens[-1:]) for hypotheses in active.values() for hypothesis in hypotheses),
            strict=True,
        )
        logits, cache = step(torch.tensor(last_tokens, device=device), cache.select(torch.tensor(rows, device=device)))
        logits = logits[:, -1]


def _advance(
    hypotheses: list[PartialHypothesis],
    log_probs: np.ndarray,
    first_row: int,
    request: Request,
    rules: SearchRules,
    continues_word: np.ndarray,
) -> tuple[list[Hypothesis], list[PartialHypothesis]]:
    """Run one step for a sentence, whose hypotheses have consecutive rows; return new finished and live hypotheses."""
    length = len(hypotheses[0].tokens) + 1
    banks: dict[int, list[tuple[float, int, int, PartialHypothesis]]] = defaultdict(list)  # by missing tokens
    for index, hypothesis in enumerate(hypotheses):
        row = first_row + index
        for token in _next_tokens(hypothesis, log_probs[row], request, rules, continues_word):
            log_prob, continues = float(log_probs[row, token]), bool(continues_word[token])
            extended = replace(hypothesis, row=row).append(token, log_prob, continues=continues)
            if hypothesis.left and request.spelling:
                left = max(0, hypothesis.left - int(request.spelling.lengths[token]))
                extended = replace(extended, left=left)
            if token == rules.eos or extended.missing < request.limit - length:
                banks[extended.missing].append((-extended.log_prob, index, token, extended))
    penalty = rules.penalty(length)
    finished, unfinished = [], []
    for _, bank in sorted(banks.items()):
        best = sorted(bank, key=lambda candidate: candidate[:3])[: rules.candidates]
        may_end = best[: rules.beam_size] if rules.early_stopping else best
        ended = (hypothesis for *_, token, hypothesis in may_end if token == rules.eos)
        finished += [Hypothesis(list(hypothesis.tokens[:-1]), hypothesis.log_prob / penalty) for hypothesis in ended]
        unfinished.append([hypothesis for *_, token, hypothesis in best if token != rules.eos])
    round_robin = [bank[turn] for turn in range(rules.candidates) for bank in unfinished if turn < len(bank)]
    return finished, round_robin[: rules.beam_size]


def _next_tokens(
    hypothesis: PartialHypothesis,
    log_probs: np.ndarray,
    request: Request,
    rules: SearchRules,
    continues_word: np.ndarray,
) -> set[int]:
    """Return the tokens that extend a hypothesis: the likeliest that may follow, and those of phrases it needs."""
    if len(hypothesis.tokens) + 1 == request.limit:
        return {rules.eos}
    allowed = np.isfinite(log_probs)
    allowed[list(rules.banned)] = False
    phrase_tokens = hypothesis.phrase_tokens()
    if hypothesis.left and request.spelling:
        phrase_length = sum(map(len, (*hypothesis.needed, hypothesis.completed)))
        room = request.limit - len(hypothesis.tokens) - 2 - phrase_length
        agreeing = request.spelling.allowed(hypothesis.left, room)
        phrase_tokens &= set(agreeing.tolist())
        allowed &= np.isin(np.arange(len(allowed)), agreeing)
    elif hypothesis.completed:
        allowed &= ~continues_word
    allowed[rules.eos] &= not hypothesis.needed
    likely = np.flatnonzero(allowed)
    max_candidates = rules.candidates
    if len(likely) > max_candidates:
        values = log_probs[likely]
        least = np.partition(values, -max_candidates)[-max_candidates]
        likely = likely[values >= least]  # includes all ties
        likely = likely[np.argsort(-log_probs[likely], kind="stable")[:max_candidates]]
    return phrase_tokens | set(likely.tolist())


def _is_final(finished: list[Hypothesis], unfinished: list[PartialHypothesis], limit: int, rules: SearchRules) -> bool:
    """Return whether the n best hypotheses of a sentence are final, as `beam.is_final` does."""
    if len(finished) < rules.n_best:
        return not unfinished and bool(finished)
    best = max((hypothesis.log_prob for hypothesis in unfinished), default=NEVER)
    if rules.early_stopping == "heuristic" and unfinished:
        reached = best / rules.penalty(len(unfinished[0].tokens))
        return len(finished) == rules.beam_size and finished[-1].score >= reached
    if rules.early_stopping and len(finished) == rules.beam_size:
        return True
    lengths = (len(unfinished[0].tokens) + 1 if unfinished else limit, limit)
    return finished[rules.n_best - 1].score >= max(best / rules.penalty(length) for length in lengths)
