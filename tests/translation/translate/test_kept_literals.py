"""Literals come out as they are: long numbers, identifiers, addresses, placeholders, emoji."""

import random

import pytest

from relattn.translation import load
from relattn.translation.errors import InputError
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.tags import LITERAL, strip_tags
from tests.support.bundles import save_random_bundle

KEPT = [
    "12345678",
    "4006381333931",
    "AB-12345",
    "XJ2291-88A",
    "550e8400-e29b-41d4-a716-446655440000",
    "A1B2C3D4",
    "9" * 200,
    "{name}",
    "%(count)d",
    "https://example.org/search?q=a&b=%20#c",
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
]
TRANSLATED = ["1234567", "1,204,567,890.5", "3.14159265", "COVID-19", "26-11-2025", "12345678th", "USA", "mp3"]
TRANSLATED += ["½", "©", "5 × 3", "@ 5", "#7", "C#", "&#x27;", "10 %", "…", "€ 5"]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_kept(text):
    assert [tag.text for tag in strip_tags(f"one {text}, two", LITERAL).tags] == [text]


@pytest.mark.parametrize("text", TRANSLATED)
def test_what_is_left_to_the_model(text):
    assert not strip_tags(f"one {text}, two", LITERAL).tags


@pytest.mark.parametrize("options", [TranslateOptions(keep_literals=True), TranslateOptions(keep_tags=True, n_best=2)])
def test_every_translation_has_them_once(tmp_path, options):
    translator, source = load(save_random_bundle(tmp_path / "bundle")), random.Random(1)
    numbers = ["".join(source.choice("123456789") for _ in range(length)) for length in range(8, 201, 4)]
    lines = [f"one {number} apple" if i % 2 else f"{number} and two" for i, number in enumerate(numbers)]
    for number, translations in zip(numbers, translator.n_best(lines, options), strict=True):
        for each in translations:
            assert each.text.split().count(number) == 1
    plain = translator.translate(["one 17 apples"])
    assert translator.translate(["one 17 apples"], TranslateOptions(keep_literals=True)) == plain


def test_not_with_alignments():
    with pytest.raises(InputError, match="keep_literals does not work with align"):
        TranslateOptions(keep_literals=True, align=True)


def test_a_literal_stands_where_keep_tags_puts_it():
    translator = load("everyday-en-de", tgt_lang="de")
    lines = ["The red 😀 house is old.", "Please write to me@example.org tomorrow.", "It is cold."]
    literals, tags = (
        translator.translate(lines, TranslateOptions(**{name: True})) for name in ("keep_literals", "keep_tags")
    )
    assert literals == tags
    assert not literals[0].endswith("😀")
