"""Literals come out as they are: long numbers, identifiers, addresses, placeholders, emoji."""

import random
import time
from dataclasses import replace

import pytest
from relattn_mt import load
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import literal_pattern, literals, may_have_tags, tag_pattern
from relattn_mt.text.strip import strip
from relattn_mt.translate.options import CallOptions, SentenceOptions, TranslateOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translator import Translator

from tests.support.bundles import save_random_bundle
from tests.support.foreign_bundles import make_bundle

KEPT = [
    "12345678",
    "4006381333931",
    "AB-12345",
    "XJ2291-88A",
    "550e8400-e29b-41d4-a716-446655440000",
    "A1B2C3D4",
    "192.168.178.20",
    "v2.13.0-rc1",
    "9" * 200,
    "{name}",
    "%(count)d",
    "https://example.org/search?q=a&b=%20#c",
    "https://en.wikipedia.org/wiki/Python_(language)",
    "www.example.org/users/{id}",
    "https://example.org/?q[]=(a&b=c-",
    "me@example.org",
    "@some_one",
    "#2025Größe_b",
    "😀",
    "👩🏽‍🚀👍🏿",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿🇩🇪",
    "❤️‍🔥",
    "3️⃣",
    "→",
    "★★☆",
    "$ab$cd$ab",
    ":smile::cat:",
    ("1,234.5 " * 10).strip(),
]
TRANSLATED = [
    "1234567",
    "1,204,567,890.5",
    "1.204.567.890",
    "06.06.2022",
    "1.2.3.4.5",
    "v2",
    "3.14159265",
    "COVID-19",
    "26-11-2025",
    "12345678th",
    "USA",
    "mp3",
    "1.5 2.5 3.5",
]
TRANSLATED += ["½", "©", "5 × 3", "@ 5", "#7", "C#", "&#x27;", "10 %", "…", "€ 5"]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_kept(text):
    assert [tag.content.text for tag in strip(Marked(f"one {text}, two"), literal_pattern()).tags] == [text]


@pytest.mark.parametrize("text", TRANSLATED)
def test_what_is_left_to_the_model(text):
    assert not strip(Marked(f"one {text}, two"), literal_pattern()).tags


def test_a_text_without_their_signs_has_none():
    parts = ["abcdefab", "abcd", "abcdefabcdef", "www", "a", "É", " ", "-", "--", ".", "..", "…", "(", ")", "'", "–"]
    parts += ["!", "?", "❶", "①", "½", "🄀", "_", "7", ":", "<", ">", "@"]
    source = random.Random(1)
    texts = ["abcdefab-abcd-abcd-abcd-abcdefabcdef", *("".join(source.choices(parts, k=6)) for _ in range(20_000))]
    for text in texts:
        has_tags = any(pattern().search(text) for pattern in (tag_pattern, literal_pattern))
        assert may_have_tags(text) or not has_tags
    plain = [text for text in texts if not may_have_tags(text)]
    assert len(plain) > 200


@pytest.mark.parametrize("options", [TranslateOptions(n_best=2), TranslateOptions(keep_tags=True, n_best=2)])
def test_every_translation_has_them_once(tmp_path, options):
    translator, source = load(save_random_bundle(tmp_path / "bundle")), random.Random(1)
    numbers = ["".join(source.choice("123456789") for _ in range(length)) for length in range(8, 201, 4)]
    lines = [f"one {number} apple" if i % 2 else f"{number} and two" for i, number in enumerate(numbers)]
    for number, translations in zip(numbers, translator.n_best(lines, options), strict=True):
        for each in translations:
            assert each.text.split().count(number) == 1


def test_lines_without_literals_are_the_same(tmp_path):
    translator = load(save_random_bundle(tmp_path / "bundle"))
    lines = ["one or more apples", "", "me@example.org", "two 12345678 apples", "three"]
    raw, kept = (translator.n_best(lines, TranslateOptions(keep_literals=keep, n_best=2)) for keep in (False, True))
    assert [i for i, (some, others) in enumerate(zip(raw, kept, strict=True)) if some != others] == [2, 3]
    assert all(each.text == "me@example.org" for each in kept[2])


def test_a_line_that_is_too_long_with_its_literals(tmp_path):
    translator = make_bundle(tmp_path / "bundle", positions="learned", max_positions=20).translator()
    line = f"one {'12345678' * 10} apple"
    with pytest.raises(InputError, match="line 1 has"):
        translator.translate([line], TranslateOptions(keep_literals=False))
    assert "12345678" * 10 in translator.translate([line])[0]


@pytest.fixture(scope="module")
def everyday() -> Translator:
    """Return the model that is shipped."""
    return load("everyday-en-de", tgt_lang="de")


@pytest.mark.parametrize("text", ["{a}{b}", "%s ", "$ab", "ann@example.org ", "1,234.5 ", "dog {a} "])
def test_many_in_a_row_take_little_time(text, everyday):
    """The model does not read them. With the words between them, it reads a line of usual length."""
    line = (text * 500)[: 500 if "dog" in text else 4000].strip()
    start = time.process_time()
    (translation,) = everyday.translate([line])
    assert time.process_time() - start < 0.5
    assert translation == line or ("dog" in text and translation.count("{a}") == line.count("{a}"))


def test_none_with_alignments(tmp_path):
    translator = load(save_random_bundle(tmp_path / "bundle"))
    lines = ["one 12345678 apple"]
    aligned = translator.n_best(lines, TranslateOptions(align=True))
    assert [best.text for (best,) in aligned] == translator.translate(lines, TranslateOptions(keep_literals=False))


def test_a_literal_that_the_model_copies_stays_where_it_is(everyday):
    lines = ["I have %d messages and %s books."]
    raw = everyday.translate(lines, TranslateOptions(keep_literals=False))
    assert "%d" in raw[0]
    assert "%s" in raw[0]
    assert everyday.translate(lines) == raw


def test_a_lost_literal_stands_where_keep_tags_puts_it(everyday):
    lines = ["Please write to {{ item.title }} tomorrow.", "The red 😀 house is old.", "It is cold."]
    raw, literals, tags = (
        everyday.translate(lines, options)
        for options in (TranslateOptions(keep_literals=False), TranslateOptions(), TranslateOptions(keep_tags=True))
    )
    assert literals == tags
    assert "{{ item.title }}" in literals[0]
    assert "{{ item.title }}" not in raw[0]
    assert not literals[1].endswith("😀")


def test_all_of_several_translations_have_them(everyday):
    lines = ["I have {name} books."]
    (raw,), (kept,) = (everyday.n_best(lines, TranslateOptions(n_best=4, keep_literals=keep)) for keep in (False, True))
    assert "{name}" in raw[0].text
    assert "{name}" not in raw[1].text
    assert all("{name}" in each.text for each in kept)
    assert kept[0] == raw[0]
    assert everyday.translate(lines) == [kept[0].text]


PATTERNS = ["I have {} books.", "Please write to {} tomorrow.", "Where is {}?", "Do not open {} before Monday."]
LITERALS = ["{name}", "%d", "https://example.org/a", "me@example.org", "12345678", "AB-12345", "@anna", "😀"]
LINES = [PATTERNS[(i + turn) % 4].format(literal) for turn in range(2) for i, literal in enumerate(LITERALS)]


def test_n_best_lists_are_different_translations_in_order(everyday):
    best = everyday.translate(LINES)
    lists = everyday.n_best(LINES, TranslateOptions(n_best=4))
    assert [ranked[0].text for ranked in lists] == best
    for line, ranked in zip(LINES, lists, strict=True):
        scores = [each.score for each in ranked]
        assert scores == sorted(scores, reverse=True)
        assert len({each.text for each in ranked}) == len(ranked)
        assert all(literals(each.text) == literals(line) for each in ranked)
    assert sum(len(ranked) == 4 for ranked in lists) >= 0.9 * len(LINES)


def test_sentences_of_a_call_have_their_own_options_and_share_its_search(tmp_path):
    """Also if the first sentence of the call is not read, or if only a later one has lost its literals."""
    translator = load(save_random_bundle(tmp_path / "bundle"))
    lines = ["", "-", "one apple", "one 12345678 apple", "two {name}", "three"]
    several = [SentenceOptions(), SentenceOptions(n_best=2), SentenceOptions(n_best=2, keep_literals=False)]
    for call in (
        CallOptions(search=replace(translator.search, beam_size=3, alpha=0.0)),
        CallOptions(),
    ):
        expected = {
            options: translator.translate_sentences([Sentence(Marked(line), options) for line in lines], call)
            for options in several
        }
        for turn in range(len(several)):
            mixed = [several[(turn + i) % len(several)] for i in range(len(lines))]
            sentences = [Sentence(Marked(line), options) for line, options in zip(lines, mixed, strict=True)]
            results = translator.translate_sentences(sentences, call)
            assert results == [expected[options][i] for i, options in enumerate(mixed)]


def test_unusual_hyphens_and_apostrophes_are_read_as_the_usual_ones():
    translator = load("everyday-en-de")
    unusual = translator.translate(["My mother\u2011in\u2011law is here.", "I don´t know."])
    assert unusual == translator.translate(["My mother-in-law is here.", "I don't know."])
