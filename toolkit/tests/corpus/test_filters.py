"""Each rule at its limits, and overlap and duplicates against brute force."""

import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words
from relattn_mt.config import CleaningConfig
from relattn_mt.corpus import filters
from relattn_mt.corpus.dedup import SeenPairs, digest
from relattn_mt.corpus.filters import Cleaner, script_share, split_words
from relattn_mt.corpus.overlap import HeldOutText
from relattn_mt.tokens.normalization import normalize

CONFIG = CleaningConfig(max_words=7, max_characters=60, max_ratio=2.0, ngram=5)
HELD_OUT = ["one two three four five six", "eins zwei drei vier"]


@pytest.mark.parametrize(
    ("src", "tgt", "reason"),
    [
        ("A cat sat.", "Eine Katze saß.", None),
        ("", "Katze", "empty"),
        ("cat", "", "empty"),
        ("\u200b\u00ad", "Katze", "empty"),
        ("cat", "\u3164 \ufe0f\u2060\u2800", "empty"),
        ("", "\0", "empty"),  # the first reason that applies
        ("a\0cat", "Katze", "control"),
        ("cat", "\ud800", "control"),
        ("one two three four six five seven", "x " * 6 + "x", None),
        ("one two three four six five seven eight", "x " * 7 + "x", "long"),
        ("a" * 60, "b", None),
        ("a" * 61, "b", "long"),
        ("one two", "abc abc abc abc abc abc", None),
        ("one two", "ab " * 7, "ratio"),
        ("one two", "a b c d e f g", None),  # twice as many bytes
        ("?", "a b c", "ratio"),
        ("cat", "кот", "script"),
        ("кот", "Katze", "script"),
        ("ab", "abкк", None),  # half of them
        ("ab", "abккк", "script"),
        ("zero ONE, two three four five", "x y z", "overlap"),  # either side, and case is ignored
        ("x y z", "Eins zwei, drei vier!", "overlap"),
        ("zero one two three four", "eins zwei drei", None),
        ("A cat sat.", "a CAT  sat", "copy"),
        ("10:30, 1998", "10:30, 1998", None),  # no letters
        ("A cat", "A cats", None),
    ],
)
def test_reasons_at_their_limits(src, tgt, reason):
    assert Cleaner(CONFIG, ("en", "de"), HELD_OUT).drop_reason(src, tgt) == reason


def test_disabled_rules_drop_nothing():
    free = dict.fromkeys(("max_words", "max_characters", "max_ratio", "min_script", "ngram"))
    assert Cleaner(replace(CONFIG, **free), ("en", "de"), ["кот " * 300]).drop_reason("кот " * 300, "x") is None


@pytest.mark.parametrize("tgt_lang", ["en", "fr", "es", "pl", "ru"])
def test_numbers_in_one_word_are_kept_and_misaligned_lines_are_not(tgt_lang):
    long = "Der Ausschuss hat gestern nach einer langen Aussprache beschlossen, den Antrag abzulehnen."
    for src_lang in ("de", "nl", "it", "fi", "hu", "tr"):
        cleaner = Cleaner(CleaningConfig(), (src_lang, tgt_lang), [])
        for number in (791, 7_791, 77_777, 777_777):
            assert cleaner.drop_reason(num2words(number, lang=src_lang), num2words(number, lang=tgt_lang)) is None
        assert {cleaner.drop_reason(short, long) for short in ("Thank you.", "Yes", "1 2")} == {"ratio"}


@pytest.mark.parametrize(
    ("language", "own", "foreign"),
    [
        ("en-GB", "naïve ﬁ", "ελ"),
        ("ja", "日本語のカタカナー", "한글"),
        ("ko", "한글漢字", "かな"),
        ("zh", "汉字", "かな"),
        ("zh-TW", "漢字", "abc"),
        ("sr", "мачка", "mačka"),
        ("sr_Latn", "mačka", "мачка"),
        ("uz-AF", "ازبک", "uz"),
        ("hi", "हिन्दी", "abc"),
        ("qqq", "anything ничто", None),
        ("zxx-Abcd", "anything ничто", None),  # unknown scripts
        ("en_Qaaa", "anything ничто", None),
    ],
)
def test_script_share(language, own, foreign):
    assert script_share(own, language) == 1
    if foreign is not None:
        assert script_share(foreign, language) == 0 < script_share(own + foreign, language) < 1


def test_spaces_and_words():
    assert normalize(" a\tb\r\nc\u2028d\x85e\u00a0f\x1cg  ") == "a b c d e f g"
    assert normalize(" e\u0301\u200b １ m² ") == "é 1 m²"
    assert normalize("e\u0301  \x01") == "e\u0301 \x01"  # a rule drops it
    assert split_words("Don’t STOP, Straße e\u0301 x_1") == ["don", "t", "stop", "strasse", "e\u0301", "x_1"]
    assert split_words("हिन्दी में") == ["हिन्दी", "में"]
    assert split_words("ab漢字c かナ한글") == ["ab", "漢", "字", "c", "か", "ナ", "한글"]
    assert split_words("ไท") == ["ไ", "ท"]
    unspaced = regex.compile(f"[{filters._UNSPACED}]", regex.V1)  # characters that the fast check must find
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert [c for c in unspaced.findall(everything) if not filters._MAYBE_UNSPACED.search(c)] == []


def overlaps_by_brute_force(line: list[str], held_out: list[list[str]], n: int) -> bool:
    if len(line) < n:
        return len(line) >= 4 and line in held_out
    grams = [line[i : i + n] for i in range(len(line) - n + 1)]
    return any(other[i : i + n] in grams for other in held_out for i in range(len(other) - n + 1))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_overlap_matches_brute_force(n):
    source = random.Random(n)
    held_out = [source.choices("abc", k=source.randrange(9)) for _ in range(12)]
    lines = [source.choices("abcd", k=source.randrange(9)) for _ in range(400)]
    held = HeldOutText(held_out, n)
    expected = [overlaps_by_brute_force(line, held_out, n) for line in lines]
    assert [held.overlaps(line) for line in lines] == expected
    assert {True, False} == set(expected)


@given(st.lists(st.lists(st.integers(0, 40), max_size=20), max_size=20))
def test_new_digests_match_a_set(batches):
    seen, known = SeenPairs(), set()
    for batch in batches:
        first = {value: i for i, value in reversed(list(enumerate(batch)))}
        expected = [value not in known and first[value] == i for i, value in enumerate(batch)]
        assert seen.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        known |= set(batch)


def test_a_digest_depends_on_the_boundary_between_the_sides():
    digests = {digest(*pair) for pair in [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"b", b"a"), (b"a", b"b")]}
    assert sorted(map(len, digests)) == [8] * 4
