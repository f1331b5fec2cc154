"""Beam search and sampling on models small enough to know everything about: a table of logits for every prefix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn.translation.errors import Diverged, InputError
from relattn.translation.search import beam, constrained
from relattn.translation.search.beam import assign_slots, best_tokens, close_up, search, stable_topk
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import Hypothesis, Request, SamplingOptions, SearchRules

PAD, BOS, EOS, VOCAB = 0, 1, 2, 6
WORDS = range(3, VOCAB)
DEPTH = 5
NO_PREFIX = torch.empty(1, 0, dtype=torch.long)
SENTENCES = 7
PENALTIES = [("gnmt", 0.6), ("gnmt", 2.0), ("average", 1.0), ("none", 0.0)]


@dataclass(frozen=True)
class Node:
    """The cache of a table model: where in the tree of prefixes each row stands."""

    sentence: Tensor  # (rows,)
    place: Tensor  # (rows,) -1 before the beginning

    def select(self, rows: Tensor) -> Node:
        return Node(self.sentence[rows], self.place[rows])

    def move(self, rows: Tensor, to: Tensor, keep: int) -> Node:
        self.sentence[to], self.place[to] = self.sentence[rows], self.place[rows]
        return Node(self.sentence[:keep], self.place[:keep])


class TableModel:
    """Logits for every prefix of up to DEPTH − 1 tokens, of several sentences."""

    def __init__(self, seed: int, *, spread: float = 2.0, round_to: float | None = None) -> None:
        places = sum(VOCAB**depth for depth in range(DEPTH))
        noise = torch.randn(SENTENCES, places, VOCAB, generator=torch.Generator().manual_seed(seed))
        self.logits = noise * spread if round_to is None else (noise * spread / round_to).round() * round_to
        self.rows_asked: list[int] = []

    def cache(self, sentences: Tensor) -> Node:
        return Node(sentences, torch.full_like(sentences, -1))

    def step(self, tokens: Tensor, cache: Node) -> tuple[Tensor, Node]:
        self.rows_asked.append(len(tokens))
        place, logits = cache.place, []
        for token in tokens.T:
            place = torch.where(place < 0, 0, place * VOCAB + token + 1)
            logits.append(self.logits[cache.sentence, place])
        return torch.stack(logits, 1), Node(cache.sentence, place)

    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> np.ndarray:
        place = 0
        for token in prefix:
            place = place * VOCAB + token + 1
        return self.logits[sentence, place].log_softmax(-1).numpy()


def rules(
    beam_size: int, name: str = "gnmt", alpha: float = 0.6, n_best: int = 1, *, early_stopping: bool = False
) -> SearchRules:
    return SearchRules(
        early_stopping=early_stopping,
        beam_size=beam_size,
        bos=BOS,
        eos=EOS,
        banned=(PAD, BOS),
        penalty=length_penalty(name, alpha),  # type: ignore[arg-type]
        n_best=n_best,
    )


def search_all(model: TableModel, limits: list[int], how: SearchRules) -> list[list[Hypothesis]]:
    sentences = torch.arange(len(limits))
    return search(model.step, model.cache(sentences), torch.tensor(limits), how, NO_PREFIX.expand(len(limits), 0))


def divide(log_prob: np.float32, how: SearchRules, length: int) -> np.float32:
    return log_prob / how.penalty(torch.tensor(length)).numpy()


def every_sequence(model: TableModel, sentence: int, limit: int, how: SearchRules) -> list[Hypothesis]:
    """All complete sequences within a limit, best first."""
    found = []
    for words in range(limit):
        for tokens in product(WORDS, repeat=words):
            total = np.float32(0)
            for i, token in enumerate((*tokens, EOS)):
                total += model.log_probs(sentence, tokens[:i])[token]
            found.append(Hypothesis(list(tokens), float(divide(total, how, words + 1))))
    return sorted(found, key=lambda f: -f.score)


def plain_beam_search(
    model: TableModel, sentence: int, limit: int, how: SearchRules, begin: tuple[int, ...] = ()
) -> list[Hypothesis]:
    """The method in lists and loops, one sentence at a time and without ever stopping early but where that is asked."""
    live: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = []
        for place, (total, prefix) in enumerate(live):
            log_probs = model.log_probs(sentence, prefix)
            allowed = [begin[length - 1]] if length <= len(begin) else [EOS] if length == limit else [EOS, *WORDS]
            for token in allowed:
                candidates.append((-(total + log_probs[token]), place, token, prefix))
        candidates.sort()
        kept = candidates[: 2 * how.beam_size if how.beam_size > 1 else 1]
        for rank, (negative, _, token, prefix) in enumerate(kept):
            if token == EOS and (rank < how.beam_size or not how.early_stopping):
                finished.append(Hypothesis(list(prefix), float(divide(-negative, how, length))))
        if how.early_stopping and len(finished) >= how.beam_size:
            break
        live = [(-negative, (*prefix, token)) for negative, _, token, prefix in kept if token != EOS][: how.beam_size]
    return sorted(finished, key=lambda f: -f.score)[: how.n_best]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [f.tokens for f in found] == [f.tokens for f in expected]
    assert [f.score for f in found] == pytest.approx([f.score for f in expected], rel=1e-6)


@pytest.mark.parametrize(("name", "alpha"), PENALTIES)
def test_a_beam_that_covers_everything_is_exhaustive_search(name, alpha):
    model, limits = TableModel(1), [1, 2, 3, 4, 5, 5, 4]
    how = rules(len(WORDS) ** (DEPTH - 1), name, alpha, n_best=20)
    for sentence, found in enumerate(search_all(model, limits, how)):
        assert_same(found, every_sequence(model, sentence, limits[sentence], how)[:20])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "alpha"), PENALTIES)
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_it_finds_what_a_search_that_never_stops_early_finds(seed, beam_size, name, alpha):
    model, limits = TableModel(seed, spread=1.0 + seed), [5, 4, 3, 5, 1, 2, 5]
    for n_best in {1, beam_size}:
        how = rules(beam_size, name, alpha, n_best)
        for sentence, found in enumerate(search_all(model, limits, how)):
            assert_same(found, plain_beam_search(model, sentence, limits[sentence], how))


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_it_stops_early_where_it_is_to(seed, beam_size):
    model, limits = TableModel(seed, spread=1.0 + seed), [5, 4, 3, 5, 1, 2, 5]
    steps = []
    for early in (True, False):
        model.rows_asked.clear()
        for n_best in {1, beam_size}:
            how = rules(beam_size, "average", 1.0, n_best, early_stopping=early)
            for sentence, found in enumerate(search_all(model, limits, how)):
                assert_same(found, plain_beam_search(model, sentence, limits[sentence], how))
        steps.append(sum(model.rows_asked))
    assert steps[0] <= steps[1]
    assert steps[0] < steps[1] or beam_size == 1


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("prefixes", [[(3,), (4,), (4,)], [(4, 5, 4), (3, 4, 5), (5, 5, 5)]])
@pytest.mark.parametrize("seed", range(4))
def test_hypotheses_begin_with_prefixes_that_are_read_in_one_pass(seed, prefixes, beam_size):
    """The second sentence has room for its prefix alone."""
    model, limits = TableModel(seed), [5, len(prefixes[0]) + 1, 5]
    for n_best in {1, beam_size}:
        how, sentences = rules(beam_size, n_best=n_best), torch.arange(len(limits))
        model.rows_asked.clear()
        found = search(model.step, model.cache(sentences), torch.tensor(limits), how, torch.tensor(prefixes))
        assert len(model.rows_asked) <= 5 - len(prefixes[0])
        for sentence, prefix in enumerate(prefixes):
            assert_same(found[sentence], plain_beam_search(model, sentence, limits[sentence], how, prefix))
            assert all(tuple(one.tokens[: len(prefix)]) == prefix for one in found[sentence])


def test_long_prefixes_are_read_in_parts(monkeypatch):
    model, prefixes = TableModel(1), torch.tensor([[3, 4, 5], [5, 3, 3]])
    arguments = torch.tensor([5, 5]), rules(2), prefixes
    whole = search(model.step, model.cache(torch.arange(2)), *arguments)
    for tokens in (1, 4, 6):
        monkeypatch.setattr(beam, "PREFIX_TOKENS", tokens)
        for found, expected in zip(search(model.step, model.cache(torch.arange(2)), *arguments), whole, strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("round_to", [1.0, 4.0, 1e9])
def test_ties_are_ranked_by_beam_and_then_by_token(round_to, beam_size):
    model, limits = TableModel(3, round_to=round_to), [5] * SENTENCES
    how = rules(beam_size, n_best=beam_size)
    for sentence, found in enumerate(search_all(model, limits, how)):
        assert_same(found, plain_beam_search(model, sentence, limits[sentence], how))


def test_beam_1_is_greedy():
    model = TableModel(5)
    for sentence, (best,) in enumerate(search_all(model, [DEPTH] * SENTENCES, rules(1))):
        tokens: list[int] = []
        while len(tokens) < DEPTH - 1:
            log_probs = model.log_probs(sentence, tuple(tokens))
            token = max([EOS, *WORDS], key=lambda t: log_probs[t])
            if token == EOS:
                break
            tokens.append(token)
        assert best.tokens == tokens


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_sentence_is_searched_alone_as_in_a_batch(beam_size):
    model, limits = TableModel(7), [5, 1, 4, 2, 5, 3, 5]
    how = rules(beam_size, n_best=beam_size)
    together = search_all(model, limits, how)
    for sentence, limit in enumerate(limits):
        alone = search(model.step, model.cache(torch.tensor([sentence])), torch.tensor([limit]), how, NO_PREFIX)
        assert alone == [together[sentence]]


def test_asking_for_more_hypotheses_changes_none_of_the_first():
    model, limits = TableModel(8), [DEPTH] * SENTENCES
    most = search_all(model, limits, rules(4, n_best=4))
    for n in (1, 2, 3):
        assert search_all(model, limits, rules(4, n_best=n)) == [found[:n] for found in most]


def test_banned_tokens_are_not_generated_however_likely():
    model = TableModel(9)
    model.logits[..., [PAD, BOS]] += 10.0
    found = search_all(model, [DEPTH] * SENTENCES, rules(3, n_best=3))
    assert all(token in WORDS for hypotheses in found for f in hypotheses for token in f.tokens)


def test_a_model_that_never_ends_is_ended_at_each_limit():
    model = TableModel(10)
    model.logits[..., EOS] -= 50.0
    limits = [1, 2, 3, 4, 5, 4, 3]
    found = search_all(model, limits, rules(2))
    assert [len(best.tokens) + 1 for (best,) in found] == limits
    assert all(best.score < -10 for (best,) in found)  # and at the true probability of ending


def test_sentences_that_are_over_leave_the_batch():
    model = TableModel(11)
    model.logits[0, :, EOS] += 50.0  # over after one step
    model.logits[1:, :, EOS] -= 50.0  # at their limits
    search_all(model, [5, 3, 5], rules(2, "none"))
    assert model.rows_asked == [3, 2 * 2, 2 * 2, 1 * 2, 1 * 2]


def test_a_model_without_numbers_is_reported():
    model = TableModel(12)
    model.logits[2] = float("nan")
    with pytest.raises(InputError, match="log-probabilities are NaN"):
        search_all(model, [2, 5, 4], rules(2))


@pytest.mark.parametrize("n_best", [0, 3])
def test_n_best_must_fit_the_beam(n_best):
    with pytest.raises(ValueError, match=f"n_best must be between 1 and the beam size 2, got {n_best}"):
        rules(2, n_best=n_best)


@pytest.mark.parametrize("levels", [1, 2, 3, 1000])
@pytest.mark.parametrize("k", [1, 4, 29])
def test_stable_topk_is_the_head_of_a_stable_sort(k, levels):
    x = torch.randint(levels, (31, 29), generator=torch.Generator().manual_seed(levels)).float()
    x[::2, ::3] = float("-inf")
    values, index = stable_topk(x, k)
    expected, expected_index = x.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :k])
    real = values > float("-inf")
    assert torch.equal(index[real], expected_index[:, :k][real])


@pytest.mark.parametrize("round_to", [None, 0.5, 2.0, 1e9])
@pytest.mark.parametrize("k", [1, 2, 9, 40])
@pytest.mark.parametrize("vocab", [30, 640, 1000, 6000])
def test_the_best_tokens_of_rows_are_those_of_all_their_log_probabilities(monkeypatch, vocab, k, round_to):
    """Whatever the blocks, a few rows at a time, with many values alike; some rows are at their limit."""
    monkeypatch.setattr(beam, "CHUNK", 7 * vocab)
    logits = 3 * torch.randn(50, vocab, generator=torch.Generator().manual_seed(k))
    logits = logits if round_to is None else (logits / round_to).round() * round_to
    at_limit = torch.arange(50) % 5 == 3
    log_probs = logits.log_softmax(-1)
    log_probs[:, [PAD, BOS]] = -math.inf
    log_probs[at_limit] = log_probs[at_limit].where(torch.arange(vocab) == EOS, -math.inf)
    values, tokens = best_tokens(logits, min(k, vocab), at_limit, rules(1))
    expected = log_probs.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :k])
    real = values > -math.inf
    assert torch.equal(tokens[real], expected.indices[:, :k][real])


@dataclass(frozen=True)
class Named:
    """A cache of what rows are called, and how many were moved."""

    names: Tensor
    moved: int = 0

    def select(self, rows: Tensor) -> Named:
        return Named(self.names[rows])

    def move(self, rows: Tensor, to: Tensor, keep: int) -> Named:
        assert len(to.unique()) == len(to)
        return Named(self.names.index_copy(0, to, self.names[rows])[:keep], len(rows))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_hypotheses_stay_where_they_can(width, seed):
    """Some sentences end; each hypothesis of the others finds what it extends in its slot, and little was moved."""
    generator = torch.Generator().manual_seed(seed)
    ended = torch.rand(6, generator=generator) < seed / 8
    parents = torch.randint(width, (6, width), generator=generator)
    places = close_up(ended)
    assert sorted(places.tolist()) == (~ended).nonzero()[:, 0].tolist()
    rows = (parents + width * torch.arange(6)[:, None])[places]
    slots, cache = assign_slots(Named(torch.arange(6 * width)), rows, width)
    assert torch.equal(cache.names.unflatten(0, (-1, width)).gather(1, slots), rows)
    assert torch.equal(slots.sort(dim=1).values, torch.arange(width).expand_as(slots))
    stay = [len(set(row)) for place, row in zip(places.tolist(), rows.tolist(), strict=True) if place < len(places)]
    assert cache.moved == rows.numel() - sum(stay)


# Phrases that translations are to have

Phrases = tuple[tuple[int, ...], ...]
FREELY = np.zeros(VOCAB, dtype=bool)  # no token goes on within a word


def search_with(
    model: TableModel,
    phrases: list[Phrases],
    limits: list[int],
    how: SearchRules,
    within: np.ndarray = FREELY,
) -> list[list[Hypothesis]]:
    requests = [Request(1, [], limit, phrases=each) for each, limit in zip(phrases, limits, strict=True)]
    prefixes = NO_PREFIX.expand(len(limits), 0)
    return constrained.search(model.step, model.cache(torch.arange(len(limits))), requests, how, prefixes, within)


def holds(tokens: Sequence[int], phrase: tuple[int, ...]) -> int:
    """How often, without overlaps."""
    at = found = 0
    while at + len(phrase) <= len(tokens):
        hit = tuple(tokens[at : at + len(phrase)]) == phrase
        found, at = found + hit, at + (len(phrase) if hit else 1)
    return found


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_without_phrases_it_is_the_plain_search(seed, beam_size, early_stopping):
    model, limits = TableModel(seed), [5, 4, 3, 5, 1, 2, 5]
    for n_best in {1, beam_size}:
        how = rules(beam_size, n_best=n_best, early_stopping=early_stopping)
        found = search_with(model, [()] * SENTENCES, limits, how)
        for mine, plain in zip(found, search_all(model, limits, how), strict=True):
            assert_same(mine, plain)


@pytest.mark.parametrize("phrases", [((3,),), ((4, 4),), ((3, 4, 5),), ((5,), (3, 3)), ((4,), (4,)), ((5, 5, 3),)])
def test_a_beam_that_covers_everything_finds_the_best_that_hold_the_phrases(phrases):
    model, limits = TableModel(1), [5] * SENTENCES
    how = rules(len(WORDS) ** (DEPTH - 1), n_best=10)
    found = search_with(model, [phrases] * SENTENCES, limits, how)
    for sentence in range(SENTENCES):
        everything = every_sequence(model, sentence, 5, how)
        wanted = [f for f in everything if all(holds(f.tokens, p) >= phrases.count(p) for p in phrases)]
        assert_same(found[sentence], wanted[:10])


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_every_translation_has_its_phrases_whatever_the_beam(seed, beam_size):
    """With room for the phrases alone, too; and its score is that of its tokens."""
    phrases = [((3,),), (), ((5, 4),), ((3, 3), (3, 4)), ((4, 5, 3),), ((5,), (5,), (4,)), ((3,), (4,), (5,), (3,))]
    limits, model = [5, 5, 3, 5, 4, 5, 5], TableModel(seed, spread=4.0)
    how = rules(beam_size, "none", 0.0, n_best=1)
    for sentence, found in enumerate(search_with(model, phrases, limits, how)):
        (best,) = found
        assert all(holds(best.tokens, p) >= phrases[sentence].count(p) for p in phrases[sentence])
        assert len(best.tokens) < limits[sentence]
        total = sum(model.log_probs(sentence, tuple(best.tokens[:i]))[t] for i, t in enumerate((*best.tokens, EOS)))
        assert best.score == pytest.approx(total, rel=1e-5)


def test_a_hypothesis_with_a_phrase_is_not_crowded_out_by_likelier_ones_without():
    """The phrase is unlikely at first, and far less likely wherever it comes later."""
    model = TableModel(1)
    model.logits[:] = torch.tensor([0.0, 0.0, 0.0, 9.0, 9.0, -20.0])
    model.logits[:, 0, 5] = 0.0
    model.logits[:, 1 + 5, EOS] = 30.0  # after it alone
    for (best,) in search_with(model, [((5,),)] * SENTENCES, [5] * SENTENCES, rules(2, "none", 0.0)):
        assert best.tokens == [5]


def test_a_phrase_is_not_followed_by_the_rest_of_a_word():
    model, within = TableModel(2), np.arange(VOCAB) == 4  # 4 goes on within a word
    model.logits[:, :, 4] += 9.0
    found = search_with(model, [((3,),)] * SENTENCES, [5] * SENTENCES, rules(4), within)
    assert all((3, 4) not in pairwise(best.tokens) for (best,) in found)
    freely = search_with(model, [((3,),)] * SENTENCES, [5] * SENTENCES, rules(4))
    assert any((3, 4) in pairwise(best.tokens) for (best,) in freely)


def test_prefixes_and_phrases_go_together():
    model = TableModel(3)
    first, second = (
        constrained.search(
            model.step,
            model.cache(torch.tensor([i])),
            [Request(1, [], 5, prefix, ((3, 5),))],
            rules(3),
            torch.tensor([prefix]),
            FREELY,
        )[0]
        for i, prefix in enumerate([[4], [3, 5]])
    )
    assert first[0].tokens[0] == 4
    assert holds(first[0].tokens, (3, 5))
    assert second[0].tokens[:2] == [3, 5]
    best = plain_beam_search(model, 1, 5, rules(3), (3, 5))
    assert_same(second[:1], best)  # the prefix contains the phrase, so the rest is free


def test_a_search_with_phrases_says_where_numbers_are_none():
    model = TableModel(9)
    model.logits[:] = math.nan
    with pytest.raises(Diverged, match="log-probabilities are NaN"):
        search_with(model, [()], [4], rules(2))


# Sampling

ROWS = 20_000


def drawn(
    model: TableModel, limit: int, how: SamplingOptions, *, rows: int = ROWS, begin: tuple = ()
) -> list[Hypothesis]:
    """Many draws for the first sentence."""
    numbers = torch.from_numpy(np.random.default_rng(7).random((rows, limit)))
    prefixes = torch.tensor([begin] * rows, dtype=torch.long)
    cache = model.cache(torch.zeros(rows, dtype=torch.long))
    return sample(model.step, cache, torch.full((rows,), limit), rules(1, "average", 1.0), prefixes, how, numbers)


def shares(model: TableModel, prefix: tuple[int, ...], how: SamplingOptions) -> np.ndarray:
    """How often each token is to follow a prefix, straight from the definition."""
    log_probs = model.log_probs(0, prefix).astype(np.float64)
    log_probs[[PAD, BOS]] = -np.inf
    if how.top_k:
        log_probs[log_probs < np.sort(log_probs)[-how.top_k]] = -np.inf
    weights = np.exp(log_probs / how.temperature)
    return weights / weights.sum()


@pytest.mark.parametrize("how", [SamplingOptions(), SamplingOptions(top_k=2), SamplingOptions(temperature=0.4)])
def test_tokens_are_drawn_as_often_as_they_are_to(how):
    model = TableModel(2, spread=1.0)
    found = drawn(model, 3, how)
    for prefix in ((), (3,), (4,)):
        after = [(*f.tokens, EOS) for f in found if tuple(f.tokens[: len(prefix)]) == prefix]
        if prefix and shares(model, (), how)[prefix[0]] == 0:
            assert not after
            continue
        counts = Counter(tokens[len(prefix)] for tokens in after)
        wanted = shares(model, prefix, how)
        for token in range(VOCAB):
            spread = math.sqrt(wanted[token] * (1 - wanted[token]) / len(after))
            assert abs(counts[token] / len(after) - wanted[token]) <= 4.5 * spread, (prefix, token)


def test_scores_of_draws_are_the_models_own_whatever_is_drawn_from():
    model = TableModel(4)
    for f in drawn(model, 4, SamplingOptions(top_k=3, temperature=2.0), rows=200):
        total = sum(model.log_probs(0, tuple(f.tokens[:i]))[token] for i, token in enumerate((*f.tokens, EOS)))
        assert f.score == pytest.approx(total / (len(f.tokens) + 1), rel=1e-5)


def test_the_likeliest_alone_is_the_greedy_choice():
    model = TableModel(5)
    found = drawn(model, 5, SamplingOptions(top_k=1), rows=3)
    tokens: tuple[int, ...] = ()
    while len(tokens) < 4 and (best := int(np.argmax(shares(model, tokens, SamplingOptions())))) != EOS:
        tokens = (*tokens, best)
    assert [tuple(f.tokens) for f in found] == [tokens] * 3


def test_limits_and_prefixes_hold_for_draws():
    found = drawn(TableModel(6), 3, SamplingOptions(), rows=500, begin=(4,))
    assert {f.tokens[0] for f in found} == {4}
    assert {len(f.tokens) for f in found} == {1, 2}


def test_draws_begin_with_prefixes_of_their_own():
    model, prefixes = TableModel(6), torch.tensor([[4, 5, 3], [3, 3, 3]])
    numbers = torch.from_numpy(np.random.default_rng(1).random((2, 5)))
    limits, options = torch.tensor([4, 5]), SamplingOptions()
    found = sample(model.step, model.cache(torch.arange(2)), limits, rules(1, "none"), prefixes, options, numbers)
    assert [one.tokens[:3] for one in found] == prefixes.tolist()
    for sentence, one in enumerate(found):
        tokens = (*one.tokens, EOS)
        total = sum(model.log_probs(sentence, tokens[:i])[token] for i, token in enumerate(tokens))
        assert one.score == pytest.approx(total, rel=1e-5)


def test_a_row_alone_is_drawn_as_among_others():
    model, numbers = TableModel(8), torch.from_numpy(np.random.default_rng(3).random((50, 5)))
    everything = (
        torch.full((50,), 5),
        rules(1, "average", 1.0),
        torch.empty(50, 0, dtype=torch.long),
        SamplingOptions(),
        numbers,
    )
    together = sample(model.step, model.cache(torch.arange(50) % 7), *everything)
    for i, expected in enumerate(together):
        limits, _, prefixes, how, _ = everything
        (alone,) = sample(
            model.step,
            model.cache(torch.tensor([i % 7])),
            limits[:1],
            rules(1, "average", 1.0),
            prefixes[:1],
            how,
            numbers[i : i + 1],
        )
        assert (alone.tokens, alone.score) == (expected.tokens, pytest.approx(expected.score, rel=1e-6))


def test_draws_from_numbers_that_are_none_are_said_to_be():
    model = TableModel(9)
    model.logits[:] = math.nan
    with pytest.raises(Diverged, match="log-probabilities are NaN"):
        drawn(model, 4, SamplingOptions(), rows=2)


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"temperature": 0.0}, {"seed": -1}])
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingOptions(**wrong)
