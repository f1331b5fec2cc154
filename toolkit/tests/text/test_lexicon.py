"""Lexicons of parallel texts, and the agreement of alignments with them."""

import random

from relattn_mt.text.lexicon import Agreement, agreement, lexicon

WORDS = {f"s{i}": f"t{i}" for i in range(40)}


def corpus(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Return sentences of random words and their translations in another order, which all have the word "the"."""
    draw, pairs = random.Random(seed), []
    for _ in range(count):
        words = draw.sample(sorted(WORDS), 6)
        target = [WORDS[word] for word in words]
        draw.shuffle(target)
        pairs.append((f"The {' '.join(words)}.", f"“{' '.join(target)}” x{draw.randrange(1000)}"))
    return pairs


def test_words_that_are_each_others_best_translation():
    assert lexicon(corpus(300)) == {target: source for source, target in WORDS.items()}


def test_rare_words_and_contractions_are_in_no_lexicon():
    assert lexicon(corpus(3)) == {}
    assert lexicon([]) == {}
    assert lexicon([("don't", "nicht")] * 9) == {}


def test_a_word_with_two_equal_translations_is_sure_of_one_at_most():
    found = lexicon([("a", "x y")] * 9)
    assert len(found) <= 1


def test_agreement_counts_words_that_occur_once_on_each_side():
    sources = {"hund": "dog", "katze": "cat", "haus": "house", "und": "and"}
    pair = [("A dog and a cat, dog!", "Der Hund und die (Katze) Haus")]
    assert agreement(sources, pair, [[(2, 2), (5, 4)]]) == Agreement(1, 1, 0)
    assert agreement(sources, pair, [[(4, 4)]]) == Agreement(1, 0, 1)
    assert agreement(sources, pair, [[]]) == Agreement(0, 0, 2)
    assert agreement(sources, pair * 2, [[(2, 2), (5, 4)], []]) == Agreement(1, 1, 2)
    assert Agreement(3, 1, 0).accuracy == 0.75
    assert Agreement().accuracy == 0
