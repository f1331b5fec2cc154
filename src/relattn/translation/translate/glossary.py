"""A glossary: source terms, and the words that translations are to have for them.

A file of two columns with a tab between them, a term a line: the term as it stands in sources, and its translation in
the form that is wanted. A term is looked for as whole words and as it is written, the longest first, and none within
another; each time it is found its translation is asked for once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from relattn.translation.data.corpora import read_lines
from relattn.translation.data.tokenizer import BYTE, SPACE_MARK
from relattn.translation.errors import InputError, one_line


class Glossary:
    """Terms and their translations.

    Args:
        terms: pairs of source term and translation, numbered by the line they stand in.
        source: what messages call where they come from.

    Raises:
        InputError: a side is empty, or a term has two translations; the message has the lines' numbers.
    """

    def __init__(self, terms: Iterable[tuple[int, str, str]], *, source: str | Path = "the glossary") -> None:
        self.translations: dict[str, str] = {}
        where: dict[str, int] = {}
        for number, term, translation in terms:
            term, translation = term.strip(), translation.strip()
            if not term or not translation:
                raise InputError(f"{source}: line {number}: {'no translation' if term else 'no term'}")
            if self.translations.setdefault(term, translation) != translation:
                raise InputError(
                    f"{source}: lines {where[term]} and {number} have two translations of {one_line(term, 40)!r}"
                )
            where.setdefault(term, number)
        longest_first = sorted(self.translations, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in longest_first) or r"(?!)")

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """The glossary in a file; blank lines are left out. Raises InputError where a line has no tab, or more."""

        def terms() -> Iterable[tuple[int, str, str]]:
            for number, line in enumerate(read_lines(path), start=1):
                if not line.strip():
                    continue
                sides = line.split("\t")
                if len(sides) != 2:
                    raise InputError(f"{path}: line {number} has {len(sides)} columns, not a term and its translation")
                yield number, sides[0], sides[1]

        return cls(terms(), source=path)

    def find(self, line: str) -> list[str]:
        """The translations of the terms in a line, in its order."""
        return [self.translations[found[0]] for found in self._pattern.finditer(line)]


def continue_words(pieces: Sequence[str]) -> list[bool]:
    """Which pieces go on within a word: those that begin with a letter, a digit or a byte, and not with a space.

    Not those that begin with a wide character, for Chinese and Japanese have no spaces.
    """
    return [
        bool(BYTE.fullmatch(piece))
        or (
            piece[:1] != SPACE_MARK
            and piece[:1].isalnum()
            and unicodedata.east_asian_width(piece[:1]) not in ("W", "F")
        )
        for piece in pieces
    ]
