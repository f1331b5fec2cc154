"""Beam search over a batch of sentences, with prefixes and with phrases that a translation must contain.

A hypothesis y_1 … y_t has the log-probability log p(y_1 … y_t | x) = Σ log p(y_s | y_<s, x). A step extends every live
hypothesis by every token and keeps the 2·beam best candidates per sentence. Candidates that end with the
end-of-sentence token become finished hypotheses, which are ranked by log p / lp(t) (see `length_penalty`). The best
`beam` of the other candidates stay live. Each hypothesis has one candidate that ends, so at least `beam` of the 2·beam
candidates do not: finished hypotheses never leave the beam short.

A sentence is done when no live hypothesis can still enter its n best finished ones. A log-probability only falls and lp
is monotone, so a live hypothesis with log-probability L scores at most max(L / lp(t + 1), L / lp(limit)), where `limit`
is the length limit of the sentence. At the limit only the end-of-sentence token may be generated, at its true
probability. Every hypothesis returned is therefore a complete sequence with its exact score, and does not depend on the
rest of the batch. Sentences that are done leave the batch at once.

With `early_stopping` a sentence is also done once `beam` of its hypotheses have finished, and an end counts only among
the `beam` best candidates of a step. This is how fairseq and CTranslate2 search. It is faster, and may miss better
translations. With "heuristic", a sentence is done once `beam` of its hypotheses have finished and no live hypothesis of
t tokens has a better L / lp(t). This is the default of transformers.

Translations may have to begin with given tokens, and then with a given text (`Spelling`), whose tokens are searched: a
hypothesis is extended by the tokens that agree with the rest of the text. All of them count at their true probability.

They may have to contain phrases, however unlikely these are (Post and Vilar 2018). Each hypothesis knows which phrases
it still needs (`PhraseState`). A step extends it by its likeliest tokens and by all tokens that begin or continue a
phrase that it needs. The beam is divided among hypotheses by the number of phrase tokens that are missing, so that
likelier hypotheses with few of them do not replace those with many. Only a hypothesis that needs no phrase may end. If
the remaining length is just enough for the phrases, only their tokens may follow. A phrase consists of whole words, so
no token that continues a word may follow it. Where a prefix continues the word, the phrase does not count.

Candidates with equal log-probabilities are ranked by beam index, then by token. With a beam of 1, a step keeps a single
candidate, which is greedy decoding: it stops at the first end of sentence. The method is that of Wu et al. 2016
(section 7) and of Tensor2Tensor, which Shaw et al. 2018 used. Log-probabilities are added in float32, as in the
compiled search (`search.h`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from relattn_mt.search.engine import Engine, NextTokens
from relattn_mt.search.phrases import PhraseState
from relattn_mt.search.repetition import restrain
from relattn_mt.search.types import NEVER, Hypotheses, Hypothesis, Request, SearchRules
from relattn_mt.support.types import Ids

BLOCK = 64  # values of a row whose maximum is computed first, which is faster than to partition all


@dataclass(slots=True)
class Partial:
    """A hypothesis without an end of sentence.

    Attributes:
        request: What it translates.
        row: Row of the engine's state; of a hypothesis that is not in the state yet, the row that it extends.
        phrases: Phrases that it needs.
        left: Number of bytes of the request's text that are still to be spelled.
        log_prob: Log-probability of its tokens, in nats.
        tokens: Tokens so far.
    """

    request: Request
    row: int
    phrases: PhraseState
    left: int
    log_prob: float = 0.0
    tokens: Ids = ()

    @property
    def length(self) -> int:
        """Number of tokens, including the next one."""
        return len(self.tokens) + 1

    def append(self, token: int, log_prob: float, phrases: PhraseState) -> Partial:
        """Return this hypothesis with one more token."""
        left = self.left
        spelling = self.request.spelling
        if left and spelling and self.length > len(self.request.prefix):
            left = max(0, left - int(spelling.lengths[token]))
        return Partial(self.request, self.row, phrases, left, log_prob, (*self.tokens, token))


def _restrained(following: NextTokens, live: Sequence[Partial], rules: SearchRules) -> NextTokens:
    """Return the probabilities of the tokens that follow live hypotheses under the rules against repetition."""
    exempt = np.array([each.left > 0 or each.length <= len(each.request.prefix) for each in live])
    tokens = np.array([hypothesis.tokens for hypothesis in live])
    logits = restrain(following.logits(), tokens, rules.config, exempt)
    return likeliest(logits, rules.candidates, rules.banned)


def _extensions(hypothesis: Partial, following: NextTokens, rules: SearchRules) -> Iterator[tuple[int, float]]:
    """Yield the tokens that extend a hypothesis, with the log-probability of the result."""
    request = hypothesis.request
    length = hypothesis.length
    total = np.float32(hypothesis.log_prob)
    row = hypothesis.row
    log_sum = following.log_sums[row]
    forced = request.prefix[length - 1] if length <= len(request.prefix) else rules.eos
    if length <= rules.given:
        yield forced, 0.0
    elif length <= len(request.prefix) or length == request.limit:
        yield forced, float(total + (following.logits()[row, forced] - log_sum))
    elif hypothesis.left or hypothesis.phrases.needed or hypothesis.phrases.completed:
        log_probs = following.logits()[row] - log_sum
        log_probs[list(rules.banned)] = NEVER
        for token in _agreeing(hypothesis, log_probs, rules):
            yield token, float(total + log_probs[token])
    else:
        totals = total + following.values[row]
        for token, log_prob in zip(following.tokens[row].tolist(), totals.tolist(), strict=True):
            if log_prob > NEVER:
                yield token, log_prob


def _agreeing(hypothesis: Partial, log_probs: np.ndarray, rules: SearchRules) -> set[int]:
    """Return the likeliest tokens that text and phrases allow, and those of the phrases."""
    request = hypothesis.request
    phrases = hypothesis.phrases
    allowed = np.isfinite(log_probs)
    phrase_tokens = phrases.tokens()
    if hypothesis.left and request.spelling:
        phrase_length = sum(map(len, (*phrases.needed, phrases.completed)))
        room = request.limit - hypothesis.length - 1 - phrase_length
        agreeing = request.spelling.allowed(hypothesis.left, room)
        phrase_tokens &= set(agreeing.tolist())
        allowed &= np.isin(np.arange(len(allowed)), agreeing)
    elif phrases.completed and rules.continues_word is not None:
        allowed &= ~rules.continues_word
    allowed[rules.eos] &= not phrases.needed
    masked = np.where(allowed, log_probs, np.float32(NEVER))
    values, tokens = largest(masked[None], rules.candidates)
    return phrase_tokens | set(tokens[values > NEVER].tolist())


def likeliest(logits: np.ndarray, k: int, banned: Iterable[int] = ()) -> NextTokens:
    """Return the probabilities of the next tokens for logits (rows, vocab), with the k likeliest that are not banned.

    Of equal log-probabilities, those of the first tokens come first.
    """
    maxima = logits.max(1, keepdims=True)
    with np.errstate(invalid="ignore"):  # the log-sum of NaN is NaN
        log_sums = maxima[:, 0] + np.log(np.exp(logits - maxima).sum(1))
    log_probs = logits - log_sums[:, None]
    log_probs[:, list(banned)] = NEVER
    return NextTokens(*largest(log_probs, k), log_sums, lambda: logits)


def largest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest values of each row of (rows, n), in falling order, and their indices; of ties the first."""
    k = min(k, x.shape[1])
    maxima = np.maximum.reduceat(x, range(0, x.shape[1], BLOCK), axis=1) if k * BLOCK <= x.shape[1] else x
    least = np.partition(maxima, -k, axis=1)[:, -k]  # at most the k-th largest value
    rows = []
    for row, cut in zip(x, least, strict=True):
        candidates = np.flatnonzero(~(row < cut))  # with NaN, all
        order = np.argsort(-row[candidates], kind="stable")
        rows.append(candidates[order[:k]])
    index = np.stack(rows)
    return np.take_along_axis(x, index, 1), index


def search(engine: Engine, requests: Sequence[Request], rules: SearchRules) -> Hypotheses:
    """Search a batch, and return the `rules.n_best` best hypotheses of each request, best first.

    A request with fewer complete sequences within its limit has fewer hypotheses, and one for which log-probabilities
    are NaN has none.
    """
    results: Hypotheses = [[] for _ in requests]
    state = engine.start([request.src_ids for request in requests], max(request.limit for request in requests))
    live = []  # by row
    for row, request in enumerate(requests):
        left = request.spelling.size if request.spelling else 0
        live.append(Partial(request, row, PhraseState(request.phrases), left))
    beams = [[hypothesis] for hypothesis in live]
    active = list(range(len(requests)))  # indices of sentences, in the order of their rows
    tokens = [rules.bos] * len(live)
    parents = active
    while active:
        following = engine.step(state, tokens, parents, rules, rules.candidates)
        if rules.config.restrains and live[0].tokens:
            following = _restrained(following, live, rules)
        for i in active:
            if any(np.isnan(following.log_sums[hypothesis.row]) for hypothesis in beams[i]):
                results[i] = []
                beams[i] = []
                continue
            finished, beams[i] = _advance(beams[i], following, rules)
            results[i] = sorted(results[i] + finished, key=lambda hypothesis: -hypothesis.score)[: rules.beam_size]
        active = _compacted(active, [_is_final(results[i], beams[i], requests[i].limit, rules) for i in active])
        live = []
        for i in active:
            live += _by_row(beams[i], len(live))
        parents = [hypothesis.row for hypothesis in live]
        tokens = [hypothesis.tokens[-1] for hypothesis in live]
        for row, hypothesis in enumerate(live):
            hypothesis.row = row
    return [finished[: rules.n_best] for finished in results]


def _advance(beam: list[Partial], following: NextTokens, rules: SearchRules) -> tuple[list[Hypothesis], list[Partial]]:
    """Return the new finished hypotheses of a sentence and the new live ones, best first."""
    length = beam[0].length
    limit = beam[0].request.limit
    banks: dict[int, list[tuple[float, int, int, PhraseState]]] = defaultdict(list)  # by missing tokens
    for index, hypothesis in enumerate(beam):
        for token, log_prob in _extensions(hypothesis, following, rules):
            phrases = hypothesis.phrases.append(token, continues=rules.continues(token))
            if token == rules.eos or phrases.missing < limit - length:
                banks[phrases.missing].append((-log_prob, index, token, phrases))
    penalty = np.float32(rules.penalty(length))
    ends = rules.beam_size if rules.config.early_stopping else rules.candidates  # places of candidates that may end
    finished = []
    unfinished = []
    for _, bank in sorted(banks.items()):
        rest = []
        for place, (negative, index, token, phrases) in enumerate(sorted(bank)[: rules.candidates]):
            if token != rules.eos:
                rest.append(beam[index].append(token, -negative, phrases))
            elif place < ends:
                finished.append(Hypothesis(list(beam[index].tokens), float(np.float32(-negative) / penalty)))
        unfinished.append(rest)
    round_robin = [each for turn in zip_longest(*unfinished) for each in turn if each is not None]
    return finished, round_robin[: rules.beam_size]


def _is_final(finished: list[Hypothesis], unfinished: list[Partial], limit: int, rules: SearchRules) -> bool:
    """Return whether the n best hypotheses of a sentence are final."""
    if not unfinished:
        return True
    if len(finished) < rules.n_best:
        return False
    best = max(hypothesis.log_prob for hypothesis in unfinished)
    is_full = len(finished) == rules.beam_size
    early_stopping = rules.config.early_stopping
    if early_stopping == "heuristic":
        return is_full and finished[-1].score >= best / rules.penalty(len(unfinished[0].tokens))
    if early_stopping and is_full:
        return True
    reachable = max(best / rules.penalty(length) for length in (unfinished[0].length, limit))
    return finished[rules.n_best - 1].score >= reachable


def _compacted(active: list[int], is_done: list[bool]) -> list[int]:
    """Return the sentences that are not done, the last ones in the places of those that are."""
    pairs = list(zip(active, is_done, strict=True))
    count = is_done.count(False)
    last = [i for i, done in pairs[count:] if not done]
    return [last.pop() if done else i for i, done in pairs[:count]]


def _by_row(beam: list[Partial], first: int) -> list[Partial]:
    """Return the hypotheses of a sentence by row, from row `first` on; the first that extends a row keeps it."""
    rows = range(first, first + len(beam))
    kept: dict[int, Partial] = {}
    others = []
    for hypothesis in beam:
        if hypothesis.row in rows and hypothesis.row not in kept:
            kept[hypothesis.row] = hypothesis
        else:
            others.append(hypothesis)
    others.reverse()
    return [kept[row] if row in kept else others.pop() for row in rows]
