"""A text as its sentences and what stands between them, and the text again of their translations.

A line ends a sentence; within a line sentencex (Wikimedia's) says where one does. White space stays as it was, and so
does a text without words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sentencex

LONGEST = 1000  # characters of a sentence; a longer one is cut, at a space where it has one
_LINE_ENDS = re.compile(r"([\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+)")
_SPACE = re.compile(r"\s")
_MARK = re.compile(r"<(/?)[a-z]+\d+(/?)>")  # as `markup` writes them


@dataclass(frozen=True)
class Text:
    """Sentences, and what stands before, between and behind them: one more."""

    sentences: list[str]
    between: list[str]

    def joined(self, translations: Sequence[str], apart: str = "") -> str:
        """The text with translations in the places of its sentences, `apart` where nothing stands between two."""
        spaces = [between or apart for between in self.between[1:-1]] + self.between[-1:]
        return self.between[0] + "".join(words + space for words, space in zip(translations, spaces, strict=False))


def split(text: str, language: str, *, marked: bool = False) -> Text:
    """A text's sentences.

    Args:
        text: any.
        language: by its code; in one that sentencex does not know, sentences end as in English.
        marked: whether it has marks of `markup`; no sentence ends within a pair of them.
    """
    sentences: list[str] = []
    between = [""]
    for number, line in enumerate(_LINE_ENDS.split(text)):
        for part in [line] if number % 2 else _parts(line, language, marked):
            words = part.strip()
            before, _, after = part.partition(words) if words else (part, "", "")
            between[-1] += before
            if words:
                sentences.append(words)
                between.append(after)
    return Text(sentences, between)


def _parts(line: str, language: str, marked: bool) -> Iterator[str]:
    """A line cut behind its sentences."""
    begin = 0
    for end in _ends(line, language, marked):
        while end - begin > LONGEST:
            space = line.rfind(" ", begin + 1, begin + LONGEST)
            cut = begin + LONGEST if space < 0 else space + 1
            yield line[begin:cut]
            begin = cut
        yield line[begin:end]
        begin = end


def _ends(line: str, language: str, marked: bool) -> Iterator[int]:
    """Where the sentences of a line end, the space behind them included; last, where the line does."""
    marks = list(_MARK.finditer(line)) if marked else []
    end = depth = number = 0
    for length in _lengths(_MARK.sub("", line) if marked else line, language):
        end += length
        while number < len(marks):
            mark = marks[number]
            if mark.start() > end or (mark.start() == end and not mark[1]):
                break  # behind this sentence; one that closes belongs to it
            end += len(mark[0])
            depth += 0 if mark[2] else -1 if mark[1] else 1
            number += 1
        if depth <= 0 and end < len(line):
            yield end
    yield len(line)


def _lengths(line: str, language: str) -> list[int]:
    """Those of a line's sentences, in characters; the whole line's where sentencex fails."""
    try:  # spaces of more than a byte make it fail, and what fails in Rust is no Exception
        return [len(words) for words in sentencex.segment(language, _SPACE.sub(" ", line))]
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return [len(line)]
