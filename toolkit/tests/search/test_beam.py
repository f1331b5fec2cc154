"""Beam search, and search with phrases, on models with a table of logits per prefix, against brute force."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.config import SearchConfig
from relattn_mt.search.beam import likeliest, search
from relattn_mt.search.engine import NextTokens
from relattn_mt.search.types import Hypothesis, Request, SearchRules, Spelling
from relattn_mt.translate.prefixes import Prefixes

from tests.support.covering import pairwise as covered

PAD, BOS, EOS, VOCAB = 0, 1, 2, 6
WORDS = range(3, VOCAB)
DEPTH = 5  # longest sequence, end of sentence included
SENTENCES = 7
LIMITS = [5, 4, 3, 5, 1, 2, 5]
FULL_BEAM = len(WORDS) ** (DEPTH - 1)  # no hypothesis is ever pruned
PENALTIES = [("gnmt", 0.6), ("gnmt", 2.0), ("average", 1.0), ("none", 0.0)]
Phrases = tuple[tuple[int, ...], ...]


class Table:
    """Engine of a model of several sentences with random logits for every prefix of up to DEPTH - 1 tokens.

    A source is the number of a sentence. The state is (rows, 2): its sentence, and its place in the tree of prefixes.
    """

    def __init__(self, seed: int, *, spread: float = 2.0, round_to: float | None = None) -> None:
        places = sum(VOCAB**depth for depth in range(DEPTH))
        noise = np.random.default_rng(seed).normal(size=(SENTENCES, places, VOCAB)) * spread
        rounded = noise if round_to is None else (noise / round_to).round() * round_to
        self.logits = rounded.astype(np.float32)
        self.rows_per_step: list[int] = []
        self.copied = 0

    def start(self, sources: Sequence[Sequence[int]], capacity: int) -> np.ndarray:
        assert capacity <= DEPTH
        return np.array([[source, -1] for (source,) in sources])

    def step(self, state: Any, tokens: Sequence[int], rows: Sequence[int], how: SearchRules, k: int) -> NextTokens:
        self.rows_per_step.append(len(tokens))
        self.copied += sum(place != row for place, row in enumerate(rows))
        sentence, place = state[rows].T
        place = np.where(place < 0, 0, place * VOCAB + np.array(tokens) + 1)
        state.resize((len(rows), 2), refcheck=False)
        state[:] = np.stack([sentence, place], 1)
        return likeliest(self.logits[sentence, place], k, how.banned)

    def log_probs(self, sentence: int, prefix: Sequence[int]) -> np.ndarray:
        place = 0
        for token in prefix:
            place = place * VOCAB + token + 1
        logits = self.logits[sentence, place]
        return logits - likeliest(logits[None], 1).log_sums

    def total(self, sentence: int, tokens: Sequence[int]) -> np.float32:
        """Return the log-probability of tokens and the end of sentence."""
        total = np.float32(0)
        for i, token in enumerate((*tokens, EOS)):
            total += self.log_probs(sentence, tokens[:i])[token]
        return total


def rules(beam_size: int, penalty: tuple[str, float] = ("gnmt", 0.6), n_best: int = 1, **options: Any) -> SearchRules:
    early_stopping = options.pop("early_stopping", False)
    search = SearchConfig(
        beam_size=beam_size, length_penalty=penalty[0], alpha=penalty[1], early_stopping=early_stopping
    )
    return SearchRules(config=search, bos=BOS, eos=EOS, banned=(PAD, BOS), n_best=n_best, **options)


def search_all(
    model: Table,
    limits: Sequence[int],
    how: SearchRules,
    *,
    sentences: Sequence[int] = range(SENTENCES),
    prefixes: Sequence[Sequence[int]] | None = None,
    phrases: Sequence[Phrases] | None = None,
    spellings: Sequence[Spelling | None] | None = None,
) -> list[list[Hypothesis]]:
    none = [()] * len(limits)
    columns = zip(sentences, limits, prefixes or none, phrases or none, spellings or [None] * len(limits))  # noqa: B905
    requests = [Request(1, [i], limit, list(prefix), words, text) for i, limit, prefix, words, text in columns]
    return search(model, requests, how)


def divide(log_prob: np.float32, how: SearchRules, length: int) -> float:
    return float(log_prob / np.float32(how.penalty(length)))


def every_sequence(model: Table, sentence: int, limit: int, how: SearchRules) -> list[Hypothesis]:
    """Return all complete sequences within a limit, best first."""
    sequences = (tokens for words in range(limit) for tokens in product(WORDS, repeat=words))
    scored = [Hypothesis(list(t), divide(model.total(sentence, t), how, len(t) + 1)) for t in sequences]
    return sorted(scored, key=lambda one: -one.score)


def plain_beam_search(
    model: Table, sentence: int, limit: int, how: SearchRules, prefix: Sequence[int] = ()
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
            if token == EOS and (rank < how.beam_size or not how.config.early_stopping):
                finished.append(Hypothesis(list(tokens), divide(-negative, how, length)))
        live = [(-negative, (*tokens, token)) for negative, _, token, tokens in kept if token != EOS][: how.beam_size]
        if how.config.early_stopping and len(finished) >= how.beam_size:
            worst = sorted(one.score for one in finished)[-how.beam_size]
            if how.config.early_stopping is True or not live or divide(live[0][0], how, length) <= worst:
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
    model, how = Table(1), rules(FULL_BEAM, penalty, n_best=20)
    for sentence, found in enumerate(search_all(model, LIMITS, how)):
        assert_same(found, every_sequence(model, sentence, LIMITS[sentence], how)[:20])


@pytest.mark.parametrize("phrases", [((3,),), ((4, 4),), ((3, 4, 5),), ((5,), (3, 3)), ((4,), (4,)), ((5, 5, 3),)])
def test_full_beam_finds_the_best_translations_with_phrases(phrases):
    model, how = Table(1), rules(FULL_BEAM, n_best=10)
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
    model, how = Table(5), rules(FULL_BEAM, n_best=10)
    spellings = [spell(prefix), None]
    limits = [DEPTH, DEPTH]
    found = search_all(model, limits, how, phrases=[phrases] * 2, spellings=spellings)
    if not phrases:
        shortest = int(spellings[0].needed[-1]) + 1  # leaves room for the fewest tokens only
        tight, _ = search_all(model, [shortest, DEPTH], how, spellings=spellings)
        assert_same(tight, [one for one in every_sequence(model, 0, shortest, how) if begins(one.tokens, prefix)][:10])
    for sentence, text in enumerate((prefix, "")):
        every = every_sequence(model, sentence, DEPTH, how)
        fitting = [one for one in every if has_all(one.tokens, phrases) and begins(one.tokens, text)]
        assert_same(found[sentence], fitting[:10])


def begins(tokens: Sequence[int], text: str) -> bool:
    return b"".join(TEXTS[token] for token in tokens).startswith(text.encode())


def is_complete(tokens: Sequence[int], phrases: Phrases, continuing: int | None) -> bool:
    """Return whether all phrases occur, without overlaps, and none before a token that continues a word."""
    places = [
        [range(at, at + len(phrase)) for at in range(len(tokens)) if tuple(tokens[at : at + len(phrase)]) == phrase]
        for phrase in phrases
    ]
    return any(
        len({place for each in chosen for place in each}) == sum(map(len, phrases))
        and all(tuple(tokens[each.stop : each.stop + 1]) != (continuing,) for each in chosen)
        for chosen in product(*places)
    )


def is_cut(tokens: Sequence[int], phrases: Phrases, continuing: int | None, begun: int) -> bool:
    """Return whether a token after the first `begun` ones continues the last word of a phrase that was needed."""
    for phrase in phrases:
        ends = [at + len(phrase) for at in range(len(tokens)) if tuple(tokens[at : at + len(phrase)]) == phrase]
        for end in ends:
            if tuple(tokens[end : end + 1]) != (continuing,):
                break
            if end >= begun:
                return True
    return False


def is_possible(prefix: Sequence[int], given: int, phrases: Phrases, text: str, limit: int, **_: Any) -> bool:
    return given <= len(prefix) and len(prefix) + len(text) + sum(map(len, phrases)) < limit


@covered(
    valid=is_possible, penalty=PENALTIES, n_best=[1, 7], prefix=[(), (4,), (3, 5)], given=[0, 1, 2],
    phrases=[(), ((3,),), ((4, 5),), ((3,), (5,))], text=["", "a", "b", "ba"], continuing=[None, 4], limit=[4, DEPTH],
)  # fmt: skip
def test_pairs_of_options_equal_exhaustive_search(penalty, n_best, prefix, given, phrases, text, continuing, limit):
    """All sequences that have a prefix, characters after it and phrases, by the score that the penalty gives."""
    model, continues = Table(7), None if continuing is None else np.arange(VOCAB) == continuing
    how = rules(FULL_BEAM, penalty, n_best, given=given, continues_word=continues)
    spellings = [spell(text) if text else None]
    (found,) = search_all(model, [limit], how, prefixes=[prefix], phrases=[phrases], spellings=spellings)
    fitting = []
    for count_of_words in range(limit):
        for tokens in product(WORDS, repeat=count_of_words):
            is_begun = tokens[: len(prefix)] == prefix and begins(tokens[len(prefix) :], text)
            begun = len(prefix)
            while len(b"".join(TEXTS[token] for token in tokens[len(prefix) : begun])) < len(text) and is_begun:
                begun += 1
            is_fitting = is_begun and is_complete(tokens, phrases, continuing)
            if is_fitting and not is_cut(tokens, phrases, continuing, begun):
                total = np.float32(0)
                for i, token in enumerate((*tokens, EOS)):
                    total += model.log_probs(0, tokens[:i])[token] * np.float32(i >= given)
                fitting.append(Hypothesis(list(tokens), divide(total, how, len(tokens) + 1)))
    assert_same(found, sorted(fitting, key=lambda one: -one.score)[:n_best])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    spread=st.sampled_from([1.0, 2.0, 5.0]),
    round_to=st.sampled_from([None, None, 1.0, 4.0, 1e9]),
    beam_size=st.integers(1, 5),
    penalty=st.sampled_from(PENALTIES),
    early_stopping=st.sampled_from([False, True, "heuristic"]),
    given_tokens=st.integers(0, 2),
    data=st.data(),
)
def test_search_equals_a_plain_beam_search(
    seed, spread, round_to, beam_size, penalty, early_stopping, given_tokens, data
):
    """Also with ties, which rounded logits give, with prefixes, and for a sentence alone. A beam of 1 is greedy."""
    model, n_best = Table(seed, spread=spread, round_to=round_to), data.draw(st.integers(1, beam_size))
    words = st.lists(st.sampled_from(WORDS), min_size=given_tokens, max_size=3)
    prefixes = data.draw(st.lists(words, min_size=1, max_size=SENTENCES))
    limits = [data.draw(st.integers(len(prefix) + 1, DEPTH)) for prefix in prefixes]
    how = rules(beam_size, penalty, n_best, early_stopping=early_stopping, given=given_tokens)
    found = search_all(model, limits, how, prefixes=prefixes)
    for sentence, (limit, prefix) in enumerate(zip(limits, prefixes, strict=True)):
        assert_same(found[sentence], plain_beam_search(model, sentence, limit, how, prefix))
        assert search_all(model, [limit], how, sentences=[sentence], prefixes=[prefix]) == [found[sentence]]


def test_search_continues_while_a_longer_translation_may_be_better():
    """The likeliest first token is the end of sentence, and the best translation per token has three words."""
    model = Table(1)
    model.logits[:] = [0.0, 0.0, 0.0, 20.0, 0.0, 0.0]  # after the first word, 3 is almost certain
    model.logits[:, 0] = np.log([1e-9, 1e-9, 0.5, 0.2, 0.15, 0.15])
    model.logits[:, 1 + 3 + VOCAB * (1 + 3 + VOCAB * (1 + 3)), EOS] = 40.0  # after 3 3 3
    ((best,),) = search_all(model, [5], rules(2, ("average", 1.0)))
    assert best.tokens == [3, 3, 3]


def test_heuristic_early_stopping():
    """It finds other translations than early stopping."""
    how, eager = (rules(2, ("average", 1.0), early_stopping=each) for each in ("heuristic", True))
    differs = 0
    for seed in range(30):
        model = Table(seed, spread=2.0)
        found = search_all(model, LIMITS, how)
        for sentence, mine in enumerate(found):
            assert_same(mine, plain_beam_search(model, sentence, LIMITS[sentence], how))
        differs += found != search_all(model, LIMITS, eager)
    assert differs


def test_early_stopping_takes_fewer_steps():
    rows = dict.fromkeys((True, False), 0)
    for early_stopping, seed in product(rows, range(10)):
        model = Table(seed, spread=5.0)
        search_all(model, LIMITS, rules(3, ("average", 1.0), early_stopping=early_stopping))
        rows[early_stopping] += sum(model.rows_per_step)
    assert rows[True] < rows[False]


def test_sentences_that_are_done_leave_the_batch():
    """Banned tokens are not generated, however likely; a sentence that never ends is ended at its limit."""
    model = Table(11)
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
        lambda model: search_all(model, [4, 5, 4], rules(2), phrases=[((3,),)] * 3),
    ],
    ids=["beam", "prefix", "phrases"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_nan_ends_its_sentence_only(run: Callable[[Table], list[Any]], place: int):
    """In the first step, or while the search of other sentences continues."""
    model = Table(12)
    expected = run(model)
    model.logits[1, place:] = math.nan
    found = run(model)
    assert all(expected)
    assert found == [expected[0], [], *expected[2:]]


@pytest.mark.parametrize("n_best", [0, 3])
def test_n_best_must_fit_the_beam(n_best):
    with pytest.raises(ValueError, match=f"beam size 2, got {n_best}"):
        rules(2, n_best=n_best)


@given(st.sampled_from([1, 2, 9, 60]), st.sampled_from([60, 640, 1009]), st.sampled_from([None, 0.5, 2.0, 1e9]))
def test_likeliest_tokens_are_those_of_a_stable_sort(k, vocab, round_to):
    """Also where many values are equal."""
    logits = np.random.default_rng(k).normal(size=(5, vocab), scale=3).astype(np.float32)
    logits = logits if round_to is None else (logits / round_to).round() * round_to
    log_probs = torch.from_numpy(logits).double().log_softmax(-1)  # in float32 it has errors above 1e-6
    log_probs[:, [PAD, BOS]] = -math.inf
    found, expected = likeliest(logits, k, (PAD, BOS)), log_probs.sort(dim=1, descending=True, stable=True)
    assert found.tokens.tolist() == expected.indices[:, :k].tolist()
    np.testing.assert_allclose(found.values, expected.values[:, :k], atol=1e-6)


def test_rows_that_stay_in_their_places_are_not_copied():
    """Where one hypothesis is far likelier than all others, others replace it only in their own rows."""
    model = Table(3, spread=0.1)
    model.logits[:, :, 3] += 30.0
    model.logits[:, :, EOS] -= 30.0
    search_all(model, [5] * 3, rules(2))
    assert model.copied <= 3 * (1 + 2 * 3)


@given(st.integers(0, 99), st.sampled_from([1, 2, 4]))
def test_every_translation_contains_its_phrases(seed, beam_size):
    """Also if there is room for the phrases only; the score is that of all tokens."""
    phrases = [((3,),), (), ((5, 4),), ((3, 3), (3, 4)), ((4, 5, 3),), ((5,), (5,), (4,)), ((3,), (4,), (5,), (3,))]
    limits, model = [5, 5, 3, 5, 4, 5, 5], Table(seed, spread=4.0)
    found = search_all(model, limits, rules(beam_size, ("none", 0.0)), phrases=phrases)
    for sentence, (best,) in enumerate(found):
        assert has_all(best.tokens, phrases[sentence])
        assert len(best.tokens) < limits[sentence]
        assert best.score == pytest.approx(model.total(sentence, best.tokens), rel=1e-5)


def test_hypotheses_with_a_phrase_are_not_pruned_for_likelier_ones_without():
    """The phrase is unlikely as the first token, and far less likely later."""
    model = Table(1)
    model.logits[:] = [0.0, 0.0, 0.0, 9.0, 9.0, -20.0]
    model.logits[:, 0, 5] = 0.0
    model.logits[:, 1 + 5, EOS] = 30.0  # the sentence ends only after the phrase
    for (best,) in search_all(model, LIMITS[:2], rules(2, ("none", 0.0)), phrases=[((5,),)] * 2):
        assert best.tokens == [5]


def test_a_phrase_is_not_followed_by_the_rest_of_a_word():
    model, phrases = Table(2), [((3,),)] * SENTENCES
    model.logits[:, :, 4] += 9.0
    found = search_all(model, [5] * 7, rules(4, continues_word=np.arange(VOCAB) == 4), phrases=phrases)
    assert all((3, 4) not in pairwise(best.tokens) for (best,) in found)
    assert any((3, 4) in pairwise(best.tokens) for (best,) in search_all(model, [5] * 7, rules(4), phrases=phrases))


def test_prefixes_and_phrases_together():
    """A prefix may contain the phrase, which leaves the rest free."""
    model = Table(3)
    first, second = search_all(model, [5, 5], rules(3), prefixes=[[4, 3], [3, 5]], phrases=[((3, 5),)] * 2)
    assert first[0].tokens[:2] == [4, 3]
    assert has_all(first[0].tokens, ((3, 5),))
    assert_same(second, plain_beam_search(model, 1, 5, rules(3), (3, 5)))
