"""Glossaries: source terms with required translations.

A glossary file has one term per line and two columns, separated by a tab: the term as it is written in sources, and its
translation in the required form. Terms match whole words outside of literals, with the same case; the spelling of
accents, spaces, hyphens and apostrophes in Unicode does not matter. The longest term matches first, and matches do not
overlap. Each match requires the translation once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path

from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.text.alignment import Links
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text, literals_in
from relattn_mt.tokens.normalization import normalize, with_usual_signs
from relattn_mt.tokens.text_files import read_lines, require_no_nul
from relattn_mt.tokens.tokenizer import BYTE


class Glossary:
    """Terms and their translations.

    Args:
        terms: Line number, source term and translation of each entry.
        source: Name of the glossary in messages.

    Raises:
        InputError: a term or a translation is empty or has NUL, or a term has two translations. The message has line
            numbers.
    """

    def __init__(self, terms: Iterable[tuple[int, str, str]], *, source: str | Path = "the glossary") -> None:
        self.translations: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for number, term, translation in terms:
            require_no_nul(term + translation, f"{source}: line {number}")
            term = _as_matched(term)
            translation = translation.strip()
            for column, text in (("term", term), ("translation", translation)):
                require(has_text(text), f"{source}: line {number} has no {column}")
            first = numbers.setdefault(term, number)
            is_same = self.translations.setdefault(term, translation) == translation
            both = f"lines {first} and {number}"
            require(is_same, f"{source}: {both} have two translations of {one_line(term, 40)!r}")
        longest_first = sorted(self.translations, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in longest_first) or r"(?!)")

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """Read a glossary from a file. Blank lines are ignored.

        Raises:
            InputError: The file cannot be read, or a line does not have two columns, or as for `Glossary`.
        """

        def terms() -> Iterable[tuple[int, str, str]]:
            for number, line in enumerate(read_lines(path), start=1):
                if not has_text(line):
                    continue
                sides = line.split("\t")
                if len(sides) != 2:
                    raise InputError(f"{path}: line {number} must have two columns, got {len(sides)}")
                yield number, sides[0], sides[1]

        return cls(terms(), source=path)

    def requiring(self, translations: Sequence[str]) -> Glossary:
        """Return a glossary with the terms that have one of these translations. They match as in this one."""
        other = copy(self)
        other.translations = {term: each for term, each in self.translations.items() if each in translations}
        return other

    def find(self, line: str) -> list[str]:
        """Return the translations of the terms in a line, in the order of the line. Those in literals are no terms."""
        return [self.translations[term[0]] for term in self._terms(_as_matched(line))]

    def _terms(self, line: str) -> Iterator[re.Match[str]]:
        kept = [match.span() for match in literals_in(line)]
        for term in self._pattern.finditer(line):
            if term[0] in self.translations and not any(
                begin <= term.start() and term.end() <= end for begin, end in kept
            ):
                yield term

    def translate_whole(self, text: Marked) -> Marked | None:
        """Return a text that is one term, with signs and marks around it, with its translation; None for others."""
        for is_text in (str.isprintable, str.isalnum):
            places = [place for place, each in enumerate(text.text) if is_text(each) and not each.isspace()]
            begin, end = (places[0], places[-1] + 1) if places else (0, 0)
            translation = self.translations.get(_as_matched(text.text[begin:end]))
            if translation is not None and self.find(text.text) == [translation]:  # and not a literal
                added = len(translation) - (end - begin)
                marks = [
                    mark if mark.at <= begin else mark._replace(at=max(mark.at, end) + added) for mark in text.marks
                ]
                return Marked(text.text[:begin] + translation + text.text[end:], tuple(marks))
        return None

    def is_misplaced(self, line: str, translation: str, links: Links) -> bool:
        """Return whether a term of a line is aligned only with words that its translation in the glossary lacks."""
        line = _as_matched(line)
        words = translation.split(" ")
        for term in self._terms(line):
            first, last = (line.count(" ", 0, end) for end in term.span())
            targets = {target for source, target in links if first <= source <= last}
            aligned = [word for number, word in enumerate(words) if number in targets]
            own = self.translations[term[0]].split()
            if aligned and not any(part in word for part in own for word in aligned):
                return True
        return False


def _as_matched(text: str) -> str:
    return with_usual_signs(normalize(text)).replace("’", "'")


def continue_words(pieces: Sequence[str]) -> list[bool]:
    """Return whether each piece continues a word: it begins with a letter, a digit or a byte, and not with a space.

    Pieces that begin with a wide character do not continue words, since Chinese and Japanese have no spaces.
    """
    continues = []
    for piece in pieces:
        first = piece[:1]
        is_in_word = first.isalnum() and unicodedata.east_asian_width(first) not in ("W", "F")
        continues.append(is_in_word or BYTE.fullmatch(piece) is not None)
    return continues
