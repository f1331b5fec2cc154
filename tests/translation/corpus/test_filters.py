"""Each rule at its limits, and overlap against brute force."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
import regex
from num2words import num2words

from relattn.translation.config import CleaningConfig
from relattn.translation.corpus import filters
from relattn.translation.corpus.filters import Cleaner, normalize_spaces, script_share, split_words
from relattn.translation.corpus.overlap import HeldOutText
from relattn.translation.data.builtin import builtin
from relattn.translation.errors import InputError

CONFIG = CleaningConfig(max_words=7, max_characters=60, max_ratio=2.0, ngram=5)


def reason(src: str, tgt: str, *, languages: tuple[str, str] = ("en", "de"), held_out=(), **changed) -> str | None:
    return Cleaner(replace(CONFIG, **changed), languages, list(held_out)).drop_reason(src, tgt)


def test_good_pairs_are_kept():
    assert reason("A cat sat.", "Eine Katze saß.") is None
    assert reason("17!", "17!") is None  # no letters at all


@pytest.mark.parametrize(
    ("src", "tgt", "why"),
    [
        ("", "Katze", "empty"),
        ("cat", "", "empty"),
        ("", "\0", "empty"),  # the first reason that applies
        ("a\0cat", "Katze", "control"),
        ("cat", "Kat\ufffdze", "control"),
        ("cat", "\x93Katze", "control"),
        ("cat", "\ud800", "control"),
        ("one two three four five six seven", "x " * 6 + "x", None),
        ("one two three four five six seven eight", "x " * 7 + "x", "long"),
        ("a" * 60, "b", None),
        ("a" * 61, "b", "long"),
        ("one two", "a b c d e f", None),
        ("one two", "ab " * 7, "ratio"),
        ("one two", "a b c d e f g", None),  # twice as many bytes
        ("?", "a b c", "ratio"),
        ("cat", "кот", "script"),
        ("кот", "Katze", "script"),
        ("ab", "abкк", None),  # half of them
        ("ab", "abккк", "script"),
    ],
)
def test_reasons_at_their_limits(src, tgt, why):
    assert reason(src, tgt) == why


@pytest.mark.parametrize("tgt_lang", ["en", "fr", "es", "pl", "ru"])
@pytest.mark.parametrize("src_lang", ["de", "nl", "it", "fi", "hu", "tr"])
def test_numbers_in_one_word_are_kept(src_lang, tgt_lang):
    cleaner = Cleaner(CleaningConfig(), (src_lang, tgt_lang), [])
    for number in (791, 7_791, 77_777, 777_777):
        assert cleaner.drop_reason(num2words(number, lang=src_lang), num2words(number, lang=tgt_lang)) is None


def test_the_builtin_corpus_is_kept():
    cleaner = Cleaner(CleaningConfig(), ("it", "en"), [])
    pairs = builtin("train", src_lang="it", tgt_lang="en", lines=2000)
    assert [pair for pair in pairs if cleaner.drop_reason(*pair) == "ratio"] == []


def test_misaligned_lines_are_dropped_by_their_ratio():
    cleaner = Cleaner(CleaningConfig(), ("en", "de"), [])
    long = "Der Ausschuss hat gestern nach einer langen Aussprache beschlossen, den Antrag abzulehnen."
    for short in ("Thank you.", "Yes", "1 2"):
        assert cleaner.drop_reason(short, long) == "ratio"


def test_disabled_rules_drop_nothing():
    free = dict.fromkeys(("max_words", "max_characters", "max_ratio", "min_script", "ngram"))
    assert reason("кот " * 300, "x", held_out=["кот " * 300], **free) is None


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
    ],
)
def test_script_share(language, own, foreign):
    assert script_share(own, language) == 1
    assert foreign is None or script_share(foreign, language) == 0
    assert foreign is None or 0 < script_share(own + foreign, language) < 1


@pytest.mark.parametrize("language", ["zxx-Abcd", "en_Qaaa"])
def test_an_unknown_script_passes(language):
    assert script_share("anything ничто", language) == 1


def test_normalize_spaces():
    assert normalize_spaces(" a\tb\r\nc\u2028d\x85e\u00a0f\x1cg  ") == "a b c d e f g"


def test_split_words():
    assert split_words("Don’t STOP, Straße e\u0301 x_1") == ["don", "t", "stop", "strasse", "e\u0301", "x_1"]
    assert split_words("हिन्दी में") == ["हिन्दी", "में"]
    assert split_words("ab漢字c かナ한글") == ["ab", "漢", "字", "c", "か", "ナ", "한글"]
    assert split_words("ไท") == ["ไ", "ท"]


def test_the_fast_check_finds_every_script_without_spaces():
    unspaced = regex.compile(f"[{filters._UNSPACED}]", regex.V1)
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    missed = [c for c in unspaced.findall(everything) if not filters._MAYBE_UNSPACED.search(c)]
    assert missed == []


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


def test_overlap_of_either_side_ignores_case():
    held_out = ["one two three four five six", "eins zwei drei vier"]
    assert reason("zero ONE, two three four five", "x y z", held_out=held_out) == "overlap"
    assert reason("x y z", "Eins zwei, drei vier!", held_out=held_out) == "overlap"
    assert reason("zero one two three four", "eins zwei drei", held_out=held_out) is None


def test_invalid_settings():
    for name, value in (("max_words", 0), ("max_ratio", 0.5), ("min_script", 1.5), ("ngram", 0)):
        with pytest.raises(InputError, match=f"{name} must be in "):
            CleaningConfig(**{name: value})
