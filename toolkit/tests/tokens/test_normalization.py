"""The rule nfc: one encoding for what looks the same, and nothing else changes."""

import itertools
import unicodedata

import pytest
from relattn_mt.tokens.normalization import normalizer, with_usual_signs

CHARACTERS = [chr(code) for code in range(0x20, 0x30000) if not 0xD800 <= code < 0xE000]
CLEAN = "Ein naiver Süßwaren-Händler (42 %)"


def normalize(text):
    return normalizer().normalize(text)


def test_canonically_equivalent_spellings_are_one():
    """All spellings of the characters of Unicode, by the standard library: marks that do not interact, in any order."""
    for character in CHARACTERS:
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed == character:
            continue
        composed = unicodedata.normalize("NFC", character)
        orders = itertools.permutations(decomposed) if composed == character else []
        spellings = {"".join(order) for order in orders}
        for spelling in {character, decomposed} | spellings:
            if unicodedata.normalize("NFC", spelling) == composed:
                assert normalize(f"—{spelling}—") == normalize(f"—{composed}—")


@pytest.mark.parametrize(
    "text",
    [
        *("½ ¼ 10² m² H₂O", "… ™ ® № ℃", "，。！？（）：；「」", "¿Qué? «Oui» „Ja“ ’n’ — –", "漢字 かな カナ 한국어"),
        *(
            "می\u200cخواهم",
            "ক\u200dষ",
            "👩\u200d👩\u200d👧 ❤\ufe0f 🇩🇪",
            "𝄞 😀 \U0001f600",
            "<b>1 < 2 & 3</b> {name} %s",
        ),
        *("ß ſ ﷺ Ⅷ ①", "\ufffd", "\U0010ffff"),
    ],
)
def test_what_a_reader_sees_is_kept(text):
    assert normalize(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my mother\u2011in\u2010law’s e\u2011mail", "my mother-in-law’s e-mail"),
        ("I don´t, it‘s, you`re, heʼs, she′s", "I don't, it's, you're, he's, she's"),
        ("‘quoted’ `code` 5′ ´ 1\u20112 \u2011 x\u2011", "‘quoted’ `code` 5′ ´ 1-2 \u2011 x\u2011"),
    ],
)
def test_hyphens_and_apostrophes_in_words_are_the_usual_ones(text, expected):
    assert with_usual_signs(text) == expected


SPACES = [x for x in CHARACTERS if unicodedata.category(x) in ("Zs", "Zl", "Zp")]


@pytest.mark.parametrize("character", [*SPACES, *"\t\v\f\r\x85"])
def test_all_kinds_of_spaces_are_spaces(character):
    words = CLEAN.split()
    assert normalize(character + (2 * character).join(words) + character) == CLEAN


INVISIBLE = [
    x for x in CHARACTERS if (unicodedata.category(x) == "Cf" and 0x2000 < ord(x) < 0x2070) or x in "\xad\ufeff"
]


@pytest.mark.parametrize("character", [*INVISIBLE, *"\x01\x1b\x7f\x80\x9f\u061c\u034f\u180e"])
def test_invisible_characters_are_removed(character):
    assert len(INVISIBLE) > 24
    assert normalize(character.join(CLEAN)) == CLEAN
    assert normalize(character + CLEAN + character) == CLEAN


def test_forms_of_presentation():
    given = ["１２３ ＡＢｃ", "ﬁﬂﬃ", "ｶﾞｷﾞﾊﾟ ｱ", "ﻣﺮﺣﺒﺎ", "𝐁𝐨𝐥𝐝 𝟜𝟚", "\ufeff \u200b"]
    assert list(map(normalize, given)) == ["123 ABc", "fiflffi", "ガギパ ア", "مرحبا", "Bold 42", ""]


def test_a_normalized_text_does_not_change():
    for character in CHARACTERS:
        once = normalize(f"—{character}—")
        assert normalize(once) == once
