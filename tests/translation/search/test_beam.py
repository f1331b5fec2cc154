"""Beam search, search with phrases and sampling, on models with a table of logits per prefix, against brute force."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from relattn.translation.errors import Diverged, InputError
from relattn.translation.search import beam, constrained
from relattn.translation.search.beam import best_tokens, search
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import Hypothesis, Request, SamplingOptions, SearchRules, Spelling
from relattn.translation.translate.prefixes import Prefixes

PAD, BOS, EOS, VOCAB = 0, 1, 2, 6
WORDS = range(3, VOCAB)
DEPTH = 5  # longest sequence, end of sentence included
SENTENCES = 7
LIMITS = [5, 4, 3, 5, 1, 2, 5]
FULL_BEAM = len(WORDS) ** (DEPTH - 1)  # no hypothesis is ever pruned
PENALTIES = [("gnmt", 0.6), ("gnmt", 2.0), ("average", 1.0), ("none", 0.0)]
NO_WORD_CONTINUES = np.zeros(VOCAB, dtype=bool)
Phrases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Node:
    """Cache of a table model: the place of each row in the tree of prefixes."""

    sentence: Tensor  # (rows,)
    place: Tensor  # (rows,) -1 before the first token

    def select(self, rows: Tensor) -> Node:
        return Node(self.sentence[rows], self.place[rows])

    def move(self, rows: Tensor, to: Tensor, keep: int) -> Node:
        self.sentence[to], self.place[to] = self.sentence[rows], self.place[rows]
        return Node(self.sentence[:keep], self.place[:keep])


class TableModel:
    """Model of several sentences with random logits for every prefix of up to DEPTH - 1 tokens."""

    def __init__(self, seed: int, *, spread: float = 2.0, round_to: float | None = None) -> None:
        places = sum(VOCAB**depth for depth in range(DEPTH))
        noise = torch.randn(SENTENCES, places, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread
        self.logits = noise if round_to is None else (noise / round_to).round() * round_to
        self.rows_per_step: list[int] = []

    def cache(self, sentences: Sequence[int]) -> Node:
        return Node(torch.tensor(sentences), torch.full((len(sentences),), -1))

    def step(self, tokens: Tensor, cache: Node) -> tuple[Tensor, Node]:
        self.rows_per_step.append(len(tokens))
        place, logits = cache.place, []
        for token in tokens.T:
            place = torch.where(place < 0, 0, place * VOCAB + token + 1)
            logits.append(self.logits[cache.sentence, place])
        return torch.stack(logits, 1), Node(cache.sentence, place)

    def log_probs(self, sentence: int, prefix: Sequence[int]) -> np.ndarray:
        place = 0
        for token in prefix:
            place = place * VOCAB + token + 1
        return self.logits[sentence, place].log_softmax(-1).numpy()

    def total(self, sentence: int, tokens: Sequence[int]) -> np.float32:
        """Return the log-probability of tokens and the end of sentence."""
        total = np.float32(0)
        for i, token in enumerate((*tokens, EOS)):
            total += self.log_probs(sentence, tokens[:i])[token]
        return total


def rules(beam_size: int, penalty: tuple[str, float] = ("gnmt", 0.6), n_best: int = 1, **options: Any) -> SearchRules:
    function = length_penalty(*penalty)  # type: ignore[arg-type]
    return SearchRules(
        beam_size=beam_size, bos=BOS, eos=EOS, banned=(PAD, BOS), penalty=function, n_best=n_best, **options
    )


def search_all(
    model: TableModel,
    limits: Sequence[int],
    how: SearchRules,
    *,
    sentences: Sequence[int] = range(SENTENCES),
    prefixes: Sequence[Sequence[int]] | None = None,
    phrases: Sequence[Phrases] | None = None,
    spellings: Sequence[Spelling | None] = (),
    continues_word: np.ndarray = NO_WORD_CONTINUES,
) -> list[list[Hypothesis]]:
    """Search for sentences; with phrases, by the search that puts them into translations."""
    cache = model.cache(sentences[: len(limits)])
    tokens = torch.tensor(prefixes or [[]] * len(limits), dtype=torch.long)
    if phrases is None:
        return search(model.step, cache, torch.tensor(limits), how, tokens, spellings)
    requests = [
        Request(1, [], limit, row.tolist(), each, spelling)
        for limit, row, each, spelling in zip(limits, tokens, phrases, spellings or [None] * len(limits))  # noqa: B905
    ]
    return constrained.search(model.step, cache, requests, how, tokens, continues_word)


def divide(log_prob: np.float32, how: SearchRules, length: int) -> float:
    return float(log_prob / np.float32(how.penalty(length)))


def every_sequence(model: TableModel, sentence: int, limit: int, how: SearchRules) -> list[Hypothesis]:
    """Return all complete sequences within a limit, best first."""
    sequences = (tokens for words in range(limit) for tokens in product(WORDS, repeat=words))
    scored = [Hypothesis(list(t), divide(model.total(sentence, t), how, len(t) + 1)) for t in sequences]
    return sorted(scored, key=lambda one: -one.score)


def plain_beam_search(
    model: TableModel, sentence: int, limit: int, how: SearchRules, prefix: Sequence[int] = ()
) -> list[Hypothesis]:
    """Search for one sentence with lists and loops; it stops before the limit only with early stopping.

    The first `how.given` tokens of the prefix have probability 1.
    """
    live: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = []
        for place, (total, tokens) in enumerate(live):
            log_probs = model.log_probs(sentence, tokens) * np.float32(length > how.given)
            allowed = [prefix[length - 1]] if length <= len(prefix) else [EOS] if length == limit else [EOS, *WORDS]
            candidates += [(-(total + log_probs[token]), place, token, tokens) for token in allowed]
        kept = sorted(candidates)[: how.candidates]
        for rank, (negative, _, token, tokens) in enumerate(kept):
            if token == EOS and (rank < how.beam_size or not how.early_stopping):
                finished.append(Hypothesis(list(tokens), divide(-negative, how, length)))
        live = [(-negative, (*tokens, token)) for negative, _, token, tokens in kept if token != EOS][: how.beam_size]
        if how.early_stopping and len(finished) >= how.beam_size:
            worst = sorted(one.score for one in finished)[-how.beam_size]
            if how.early_stopping is True or not live or divide(live[0][0], how, length) <= worst:
                break
    return sorted(finished, key=lambda one: -one.score)[: how.n_best]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], rel=1e-6)


def count(tokens: Sequence[int], phrase: tuple[int, ...]) -> int:
    """Return how often a phrase occurs, without overlaps."""
    at = found = 0
    while at + len(phrase) <= len(tokens):
        hit = tuple(tokens[at : at + len(phrase)]) == phrase
        found, at = found + hit, at + (len(phrase) if hit else 1)
    return found


def has_all(tokens: Sequence[int], phrases: Phrases) -> bool:
    return all(count(tokens, phrase) >= phrases.count(phrase) for phrase in phrases)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_full_beam_is_exhaustive_search(penalty):
    model, how = TableModel(1), rules(FULL_BEAM, penalty, n_best=20)
    for sentence, found in enumerate(search_all(model, LIMITS, how)):
        assert_same(found, every_sequence(model, sentence, LIMITS[sentence], how)[:20])


@pytest.mark.parametrize("phrases", [((3,),), ((4, 4),), ((3, 4, 5),), ((5,), (3, 3)), ((4,), (4,)), ((5, 5, 3),)])
def test_full_beam_finds_the_best_translations_with_phrases(phrases):
    model, how = TableModel(1), rules(FULL_BEAM, n_best=10)
    for sentence, found in enumerate(search_all(model, [DEPTH] * 2, how, phrases=[phrases] * 2)):
        every = every_sequence(model, sentence, DEPTH, how)
        assert_same(found, [one for one in every if has_all(one.tokens, phrases)][:10])


TEXTS = [b"", b"", b"", b"a", b"ab", b"b"]  # of tokens


def spell(text: str) -> Spelling:
    def encode(text: str) -> list[int]:
        return [TEXTS.index(character.encode()) for character in text]

    ids, spelling = Prefixes(SimpleNamespace(target_texts=TEXTS, encode_target=encode)).encode(text)
    assert ids == []
    assert spelling is not None
    return spelling


@pytest.mark.parametrize(
    ("prefix", "phrases"),
    [*product(["a", "b", "ab", "ba", "aba", "abab"], [()]), *product(["a", "b", "ab", "ba"], [((4,),), ((3, 5),)])],
)
def test_full_beam_finds_the_best_translations_that_begin_with_characters(prefix, phrases):
    """Whatever tokens spell them, and where the last one continues after them."""
    model, how = TableModel(5), rules(FULL_BEAM, n_best=10)
    spellings = [spell(prefix), None]
    limits = [DEPTH, DEPTH]
    found = [search_all(model, limits, how, phrases=[phrases] * 2, spellings=spellings)]
    if not phrases:
        found.append(search_all(model, limits, how, spellings=spellings))
        shortest = int(spellings[0].needed[-1]) + 1  # leaves room for the fewest tokens only
        tight, _ = search_all(model, [shortest, DEPTH], how, spellings=spellings)
        assert_same(tight, [one for one in every_sequence(model, 0, shortest, how) if begins(one.tokens, prefix)][:10])
    for each in found:
        for sentence, text in enumerate((prefix, "")):
            every = every_sequence(model, sentence, DEPTH, how)
            fitting = [one for one in every if has_all(one.tokens, phrases) and begins(one.tokens, text)]
            assert_same(each[sentence], fitting[:10])


def begins(tokens: Sequence[int], text: str) -> bool:
    return b"".join(TEXTS[token] for token in tokens).startswith(text.encode())


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    spread=st.sampled_from([1.0, 2.0, 5.0]),
    round_to=st.sampled_from([None, None, 1.0, 4.0, 1e9]),
    beam_size=st.integers(1, 5),
    penalty=st.sampled_from(PENALTIES),
    early_stopping=st.sampled_from([False, True, "heuristic"]),
    given_tokens=st.integers(0, 2),
    prefix_length=st.integers(0, 3),
    data=st.data(),
)
def test_search_equals_a_plain_beam_search(
    seed, spread, round_to, beam_size, penalty, early_stopping, given_tokens, prefix_length, data
):
    """Also with ties, which rounded logits give, with prefixes, and for a sentence alone. A beam of 1 is greedy."""
    model, n_best = TableModel(seed, spread=spread, round_to=round_to), data.draw(st.integers(1, beam_size))
    limits = data.draw(st.lists(st.integers(prefix_length + 1, DEPTH), min_size=1, max_size=SENTENCES))
    words = st.lists(st.sampled_from(WORDS), min_size=prefix_length, max_size=prefix_length)
    prefixes = [data.draw(words) for _ in limits]
    how = rules(beam_size, penalty, n_best, early_stopping=early_stopping, given=min(given_tokens, prefix_length))
    found = search_all(model, limits, how, prefixes=prefixes)
    steps = len(model.rows_per_step)
    assert steps <= DEPTH - prefix_length  # a prefix takes one step
    for sentence, (limit, prefix) in enumerate(zip(limits, prefixes, strict=True)):
        assert_same(found[sentence], plain_beam_search(model, sentence, limit, how, prefix))
        assert search_all(model, [limit], how, sentences=[sentence], prefixes=[prefix]) == [found[sentence]]
    if round_to is None:  # without phrases, the other search is the same but for its ties
        for mine, its in zip(
            search_all(model, limits, how, prefixes=prefixes, phrases=[()] * SENTENCES), found, strict=True
        ):
            assert_same(mine, its)


@pytest.mark.parametrize("phrases", [None, [()]])
def test_search_continues_while_a_longer_translation_may_be_better(phrases):
    """The likeliest first token is the end of sentence, and the best translation per token has three words."""
    model = TableModel(1)
    model.logits[:] = torch.tensor([0.0, 0.0, 0.0, 20.0, 0.0, 0.0])  # after the first word, 3 is almost certain
    model.logits[:, 0] = torch.tensor([1e-9, 1e-9, 0.5, 0.2, 0.15, 0.15]).log()
    model.logits[:, 1 + 3 + VOCAB * (1 + 3 + VOCAB * (1 + 3)), EOS] = 40.0  # after 3 3 3
    ((best,),) = search_all(model, [5], rules(2, ("average", 1.0)), phrases=phrases)
    assert best.tokens == [3, 3, 3]


@pytest.mark.parametrize("phrases", [None, [()] * SENTENCES])
def test_heuristic_early_stopping(phrases):
    """It finds other translations than early stopping, in both searches."""
    how, differs = rules(2, ("average", 1.0), early_stopping="heuristic"), 0
    for seed in range(30):
        model = TableModel(seed, spread=2.0)
        found = search_all(model, LIMITS, how, phrases=phrases)
        for sentence, mine in enumerate(found):
            assert_same(mine, plain_beam_search(model, sentence, LIMITS[sentence], how))
        differs += found != search_all(model, LIMITS, replace(how, early_stopping=True), phrases=phrases)
    assert differs


def test_early_stopping_takes_fewer_steps():
    rows = {}
    for early_stopping in (True, False):
        model = TableModel(4, spread=5.0)
        search_all(model, LIMITS, rules(3, ("average", 1.0), early_stopping=early_stopping))
        rows[early_stopping] = sum(model.rows_per_step)
    assert rows[True] < rows[False]


def test_long_prefixes_are_read_in_parts(monkeypatch):
    model, prefixes = TableModel(1), [[3, 4, 5], [5, 3, 3]]
    whole = search_all(model, [5, 5], rules(2), prefixes=prefixes)
    for tokens, steps in ((1, 4), (4, 2), (6, 2)):
        monkeypatch.setattr(beam, "PREFIX_TOKENS", tokens)
        model.rows_per_step.clear()
        for found, expected in zip(search_all(model, [5, 5], rules(2), prefixes=prefixes), whole, strict=True):
            assert_same(found, expected)
        assert len(model.rows_per_step) >= steps


def test_sentences_that_are_done_leave_the_batch():
    """Banned tokens are not generated, however likely; a sentence that never ends is ended at its limit."""
    model = TableModel(11)
    model.logits[0, :, [PAD, BOS]] += 80.0
    model.logits[0, :, EOS] += 70.0  # done after one step
    model.logits[1:, :, EOS] -= 50.0  # done at their limits
    found = search_all(model, [5, 3, 5], rules(2))
    assert model.rows_per_step == [3, 2 * 2, 2 * 2, 1 * 2, 1 * 2]
    assert [len(best.tokens) + 1 for (best,) in found] == [1, 3, 5]
    assert found[1][0].score == pytest.approx(model.total(1, found[1][0].tokens) / (8 / 6) ** 0.6, rel=1e-5)
    assert all(token in WORDS for (best,) in found for token in best.tokens)


@pytest.mark.parametrize(
    "run",
    [
        lambda model: search_all(model, [2, 5, 4], rules(2)),
        lambda model: search_all(model, [2, 5, 4], rules(2), prefixes=[[3], [3], [3]]),
        lambda model: search_all(model, [2, 5, 4], rules(2), phrases=[()] * 3),
        lambda model: draw(model, 4, SamplingOptions(), rows=3),
    ],
    ids=["beam", "prefix", "phrases", "sampling"],
)
def test_nan_is_reported(run: Callable[[TableModel], object]):
    model = TableModel(12)
    model.logits[:] = math.nan
    with pytest.raises(Diverged, match="NaN"):
        run(model)


@pytest.mark.parametrize("n_best", [0, 3])
def test_n_best_must_fit_the_beam(n_best):
    with pytest.raises(ValueError, match=f"beam size 2, got {n_best}"):
        rules(2, n_best=n_best)


@example(vocab=640, k=2, round_to=2.0)
@example(vocab=6007, k=9, round_to=0.5)
@example(vocab=6007, k=40, round_to=1e9)
@settings(max_examples=8)
@given(st.sampled_from([31, 640, 1009, 6007]), st.sampled_from([1, 2, 9, 40]), st.sampled_from([None, 0.5, 2.0, 1e9]))
def test_best_tokens_are_those_of_a_stable_sort(vocab, k, round_to):
    """Rows are processed in chunks and blocks, many values are equal, and some rows are at their limit."""
    logits = 3 * torch.randn(50, vocab, generator=torch.Generator().manual_seed(k))
    logits = logits if round_to is None else (logits / round_to).round() * round_to
    at_limit = torch.arange(50) % 5 == 3
    log_probs = logits.log_softmax(-1)
    log_probs[:, [PAD, BOS]] = -math.inf
    log_probs[at_limit] = log_probs[at_limit].where(torch.arange(vocab) == EOS, -math.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "CHUNK", 7 * vocab)
        values, tokens = best_tokens(logits, min(k, vocab), at_limit, rules(1))
    expected = log_probs.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :k])
    real = values > -math.inf
    assert torch.equal(tokens[real], expected.indices[:, :k][real])


@given(st.integers(0, 99), st.sampled_from([1, 2, 4]))
def test_every_translation_contains_its_phrases(seed, beam_size):
    """Also if there is room for the phrases only; the score is that of all tokens."""
    phrases = [((3,),), (), ((5, 4),), ((3, 3), (3, 4)), ((4, 5, 3),), ((5,), (5,), (4,)), ((3,), (4,), (5,), (3,))]
    limits, model = [5, 5, 3, 5, 4, 5, 5], TableModel(seed, spread=4.0)
    found = search_all(model, limits, rules(beam_size, ("none", 0.0)), phrases=phrases)
    for sentence, (best,) in enumerate(found):
        assert has_all(best.tokens, phrases[sentence])
        assert len(best.tokens) < limits[sentence]
        assert best.score == pytest.approx(model.total(sentence, best.tokens), rel=1e-5)


def test_hypotheses_with_a_phrase_are_not_pruned_for_likelier_ones_without():
    """The phrase is unlikely as the first token, and far less likely later."""
    model = TableModel(1)
    model.logits[:] = torch.tensor([0.0, 0.0, 0.0, 9.0, 9.0, -20.0])
    model.logits[:, 0, 5] = 0.0
    model.logits[:, 1 + 5, EOS] = 30.0  # the sentence ends only after the phrase
    for (best,) in search_all(model, LIMITS[:2], rules(2, ("none", 0.0)), phrases=[((5,),)] * 2):
        assert best.tokens == [5]


def test_a_phrase_is_not_followed_by_the_rest_of_a_word():
    model, phrases = TableModel(2), [((3,),)] * SENTENCES
    model.logits[:, :, 4] += 9.0
    found = search_all(model, [5] * 7, rules(4), phrases=phrases, continues_word=np.arange(VOCAB) == 4)
    assert all((3, 4) not in pairwise(best.tokens) for (best,) in found)
    assert any((3, 4) in pairwise(best.tokens) for (best,) in search_all(model, [5] * 7, rules(4), phrases=phrases))


def test_prefixes_and_phrases_together():
    """A prefix may contain the phrase, which leaves the rest free."""
    model = TableModel(3)
    first, second = search_all(model, [5, 5], rules(3), prefixes=[[4, 3], [3, 5]], phrases=[((3, 5),)] * 2)
    assert first[0].tokens[:2] == [4, 3]
    assert has_all(first[0].tokens, ((3, 5),))
    assert_same(second, plain_beam_search(model, 1, 5, rules(3), (3, 5)))


def draw(
    model: TableModel, limit: int, how: SamplingOptions, *, rows: int, prefix: Sequence[int] = (), first: int = 0
) -> list[Hypothesis]:
    """Draw translations of the first sentences in turn; `first` leaves out that many rows."""
    numbers = torch.from_numpy(np.random.default_rng(7).random((rows, limit)))[first:]
    cache = model.cache([row % 2 for row in range(first, rows)])
    prefixes = torch.tensor([list(prefix)] * len(numbers), dtype=torch.long)
    return sample(
        model.step, cache, torch.full((len(numbers),), limit), rules(1, ("average", 1.0)), prefixes, how, numbers
    )


@pytest.mark.parametrize("how", [SamplingOptions(), SamplingOptions(top_k=2), SamplingOptions(temperature=0.4)])
def test_tokens_are_drawn_with_their_probabilities(how):
    """For the first token, and for tokens after prefixes that are drawn; the definition is computed from scratch."""
    model = TableModel(2, spread=1.0)
    drawn = [(*one.tokens, EOS) for one in draw(model, 3, how, rows=8000)[::2]]
    for prefix in ((), (3,), (4,)):
        log_probs = model.log_probs(0, prefix).astype(np.float64)
        log_probs[[PAD, BOS]] = -np.inf
        if how.top_k:
            log_probs[log_probs < np.sort(log_probs)[-how.top_k]] = -np.inf
        weights = np.exp(log_probs / how.temperature)
        after = [tokens[len(prefix)] for tokens in drawn if tokens[: len(prefix)] == prefix]
        counts = Counter(after)
        for token, share in enumerate(weights / weights.sum()):
            error = math.sqrt(share * (1 - share) / max(1, len(after)))
            assert not after or abs(counts[token] / len(after) - share) <= 4.5 * error, (prefix, token)


@given(
    st.integers(0, 99),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.5, 2.0]),
    st.lists(st.sampled_from(WORDS), max_size=3),
)
def test_draws_have_the_scores_of_the_model(seed, top_k, temperature, prefix):
    """They begin with their prefix, do not depend on other rows, and drawing from the likeliest token is greedy."""
    model, how = TableModel(seed), SamplingOptions(top_k=top_k, temperature=temperature)
    limit = min(DEPTH, len(prefix) + 2)
    found = draw(model, limit, how, rows=20, prefix=prefix)
    for row, one in enumerate(found):
        assert one.tokens[: len(prefix)] == prefix
        assert len(one.tokens) < limit
        assert one.score == pytest.approx(model.total(row % 2, one.tokens) / (len(one.tokens) + 1), rel=1e-5)
    assert_same(draw(model, limit, how, rows=20, prefix=prefix, first=17), found[17:])
    if top_k == 1:
        greedy = [plain_beam_search(model, sentence, limit, rules(1), prefix)[0].tokens for sentence in range(2)]
        assert [one.tokens for one in found] == greedy * 10


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"temperature": 0.0}, {"seed": -1}])
def test_sampling_options_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingOptions(**wrong)
