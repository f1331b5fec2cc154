"""Normalization of text: rules that a SentencePiece model applies before it splits a text into pieces.

The default, `nfc`, changes how a text is encoded, and nothing that a reader sees. Unicode's NFKC (SentencePiece's
`nmt_nfkc`) also replaces ½ by 1⁄2, m² by m2, ™ by TM and Chinese punctuation by ASCII, in translations too.

The rules are part of a SentencePiece model, so they apply wherever it is used.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

import sentencepiece

if TYPE_CHECKING:
    from relattn_mt.config import Normalization

CONTROL = frozenset(map(chr, (*range(0x01, 0x09), *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0))))
SPACES = "\t\n\v\f\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
SPACES += "\u202f\u205f\u3000"
# Soft hyphen, grapheme joiner, zero-width space, marks of direction, word joiner, byte order mark. The joiners U+200C
# and U+200D are part of the spelling of Persian, of Indic languages and of emoji.
INVISIBLE = "\xad\u034f\u061c\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064"
INVISIBLE += "\u2066\u2067\u2068\u2069\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
_JOINERS = "\u200c\u200d"
_WITHOUT_JOINERS = [*map(chr, (*range(0x20, 0x7F), *range(0xA1, 0x530)))]  # Latin, Greek, Cyrillic
_PRESENTATION = (  # other forms of characters: ligatures, Arabic letters in a word, full width, mathematical letters
    *range(0xFB00, 0xFB07),
    *range(0xFB50, 0xFBB2),
    *range(0xFE80, 0xFEFD),
    *range(0xFF10, 0xFF1A),
    *range(0xFF21, 0xFF3B),
    *range(0xFF41, 0xFF5B),
    *range(0xFF65, 0xFFA0),
    *range(0x1D400, 0x1D800),
)
_HALF_WIDTH_MARKS = "\uff9e\uff9f"  # of voiced sounds, after a half-width katakana
_HANGUL = range(0xAC00, 0xD7A4)
_HYPHENS = re.compile(r"(?<=\w)[\u2010\u2011](?=\w)")
_APOSTROPHES = re.compile(r"(?<=[^\W\d_])[´`ʼ′‘](?=[^\W\d_])")
_LAST = 0x30000  # no character from here on has a canonical decomposition


def trainer_options(rule: Normalization) -> dict[str, Any]:
    """Return the options of SentencePiece's trainer for a rule."""
    if rule == "nfc":
        return {"normalizer": _nfc(add_dummy_prefix=True, escape_whitespaces=True, remove_extra_whitespaces=True)}
    return {"normalization_rule_name": rule, "remove_extra_whitespaces": rule != "identity"}


def normalize(text: str) -> str:
    """Return a text after the rule `nfc`. Of a text with control characters, only the spaces are normalized."""
    text = " ".join(text.split())
    is_kept = text.isascii() or _affected().isdisjoint(text) or not CONTROL.isdisjoint(text)
    return text if is_kept else normalizer().normalize(text)


def with_usual_signs(text: str) -> str:
    """Return a text of the same length whose words have the usual hyphen and apostrophe, as texts to learn from do."""
    return text if text.isascii() and "`" not in text else _APOSTROPHES.sub("'", _HYPHENS.sub("-", text))


@cache
def _affected() -> frozenset[str]:
    """Return characters of which every text that a rule changes has one, if its spaces are normalized."""
    keys = _nfc_rules().keys() - CONTROL
    return frozenset(key[0] if len(key) == 1 or key[0] in _JOINERS else key[1] for key in keys)


@cache
def normalizer() -> sentencepiece.SentencePieceNormalizer:
    """Return an object whose `normalize(text)` applies the rule `nfc`."""
    return _nfc(add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=True)


def _nfc(**spaces: Any) -> sentencepiece.SentencePieceNormalizer:
    sentencepiece.set_min_log_level(2)  # it reports its number of rules
    return sentencepiece.SentencePieceNormalizer(norm_map=list(_nfc_rules().items()), **spaces)


@cache
def _nfc_rules() -> dict[str, str]:
    """Return strings and their replacements. SentencePiece applies the longest one at each place, once."""
    rules = _composition_rules()
    for code in _PRESENTATION:
        rules[chr(code)] = unicodedata.normalize("NFKC", chr(code))
        for mark in _HALF_WIDTH_MARKS:
            voiced = unicodedata.normalize("NFKC", chr(code) + mark)
            if len(voiced) == 1:
                rules[chr(code) + mark] = voiced
    rules |= dict.fromkeys(SPACES, " ") | dict.fromkeys([*CONTROL, *INVISIBLE], "")
    for letter in _WITHOUT_JOINERS:
        plain = rules.get(letter, letter)
        for joiner in _JOINERS:
            rules |= {letter + joiner: plain, joiner + letter: plain}
    return {given: wanted for given, wanted in rules.items() if given != wanted}


def _composition_rules() -> dict[str, str]:
    """Return the spellings of all characters that NFC composes, with marks in any order, and of those it decomposes."""
    rules = {}
    for code in range(0x80, _LAST):
        character = chr(code)
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed == character:
            continue
        composed = unicodedata.normalize("NFC", character)
        if composed != character:
            rules[character] = composed
        elif code in _HANGUL:
            rules |= {decomposed: character, unicodedata.normalize("NFC", decomposed[:2]) + decomposed[2:]: character}
        else:
            base = decomposed[0]
            marks = decomposed[1:]
            for order in permutations(marks):
                for count in range(len(marks)):
                    spelling = unicodedata.normalize("NFC", base + "".join(order[:count])) + "".join(order[count:])
                    if unicodedata.normalize("NFC", spelling) == character:
                        rules[spelling] = character
    return rules
