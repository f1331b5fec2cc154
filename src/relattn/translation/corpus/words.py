"""Text as cleaning sees it: in one line, in words, in letters of scripts."""

from __future__ import annotations

import re
from functools import cache

import regex
from babel.core import get_global

# Scripts that are written without spaces: each character counts as a word.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[\w--[{_UNSPACED}]]+|[\w&&[{_UNSPACED}]]", regex.V1)
_SPACED_WORD = regex.compile(r"\w+")  # the same where no such script is, in half the time
_MAYBE_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u19ff\u2e80-\U0010ffff]")
_LETTER = regex.compile(r"\p{L}")

# ISO 15924 has codes for how a language is written that Unicode has no script for.
_MIXED = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Hanb": ("Hani", "Bopo"),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Jamo": ("Hang",),
    "Latf": ("Latn",),
    "Latg": ("Latn",),
}


def plain(text: str) -> str:
    """The text in one line: white space at its ends taken off, any other run of it one space."""
    return " ".join(text.split())


def words(text: str) -> list[str]:
    """The words of a text, case folded: runs of letters, marks and digits; in scripts without spaces each character."""
    word = _WORD if _MAYBE_UNSPACED.search(text) else _SPACED_WORD
    return word.findall(text.casefold())


class Scripts:
    """The scripts that a language is written in, by CLDR; one that CLDR does not know may be written in any.

    Args:
        language: a code with or without a script and a territory: ``en``, ``zh-TW``, ``sr_Latn``.
    """

    def __init__(self, language: str) -> None:
        script = _script(language)
        self._foreign = None
        if script is not None:
            own = "".join(rf"\p{{Script={name}}}" for name in _MIXED.get(script, (script,)))
            self._foreign = regex.compile(rf"[\p{{L}}--[{own}\p{{Common}}\p{{Inherited}}]]", regex.V1)

    def share(self, text: str) -> float:
        """The share of a text's letters that are of these scripts or of all; 1 where there are no letters."""
        foreign = len(self._foreign.findall(text)) if self._foreign is not None else 0
        return 1 - foreign / len(_LETTER.findall(text)) if foreign else 1.0


@cache
def _script(language: str) -> str | None:
    """The ISO 15924 code of how a language is likely to be written; None where CLDR does not know it."""
    name, *rest = language.replace("-", "_").split("_")
    for part in rest:
        if len(part) == 4 and part.isalpha():
            return part.title()
    likely = get_global("likely_subtags")
    for code in (*(f"{name.lower()}_{part.upper()}" for part in rest), name.lower()):
        if code in likely and name.lower() != "und":
            return str(likely[code].split("_")[1])
    return None
