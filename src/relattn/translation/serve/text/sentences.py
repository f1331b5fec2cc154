"""Splitting of a text into sentences, and joining of their translations.

A sentence ends at the end of a line, or where sentencex (from Wikimedia) finds its end within a line. White space is
kept as it was, and so is a text without words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sentencex

LONGEST = 1000  # characters per sentence; longer ones are cut, at a space if possible
_LINE_ENDS = re.compile(r"([\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+)")
_SPACE = re.compile(r"\s")
PLACEHOLDER = re.compile(r"(?P<single><m+\d+/>)|(?P<close></m+\d+>)|(?P<open><m+\d+>)")  # tag of `Markup`


@dataclass(frozen=True)
class SplitText:
    """Sentences of a text, and the white space before the first, between them and after the last."""

    sentences: list[str]
    between: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """Return the text with its sentences replaced by their translations."""
        before, *after = self.between
        return before + "".join(sentence + space for sentence, space in zip(translations, after, strict=True))


def split(text: str, language: str, *, keep_tags: bool = False, separator: str = "") -> SplitText:
    """Split a text into sentences.

    Args:
        text: any text.
        language: code of its language. The rules for English are used for languages that sentencex does not know.
        keep_tags: whether the text has placeholder tags of `Markup`; an element is never split.
        separator: white space to insert between sentences that have none between them.
    """
    sentences: list[str] = []
    between = [""]
    for number, line in enumerate(_LINE_ENDS.split(text)):
        for part in [line] if number % 2 else _parts(line, language, keep_tags):
            sentence = part.strip()
            before, _, after = part.partition(sentence) if sentence else (part, "", "")
            between[-1] += before
            if sentence:
                sentences.append(sentence)
                between.append(after)
    return SplitText(sentences, [between[0], *(space or separator for space in between[1:-1]), *between[1:][-1:]])


def _parts(line: str, language: str, keep_tags: bool) -> Iterator[str]:
    """Yield the sentences of a line with the white space after them, in parts of at most LONGEST characters."""
    begin = 0
    for end in _ends(line, language, keep_tags):
        while end - begin > LONGEST:
            space = line.rfind(" ", begin + 1, begin + LONGEST)
            cut = begin + LONGEST if space < 0 else space + 1
            yield line[begin:cut]
            begin = cut
        yield line[begin:end]
        begin = end


def _ends(line: str, language: str, keep_tags: bool) -> Iterator[int]:
    """Yield the offset after each sentence of a line and the white space that follows it."""
    tags = list(PLACEHOLDER.finditer(line))[::-1] if keep_tags else []
    end = depth = 0
    for length in _lengths(PLACEHOLDER.sub("", line) if keep_tags else line, language)[:-1]:
        end += length
        while tags and (tags[-1].start() < end or (tags[-1].start() == end and tags[-1]["close"])):
            tag = tags.pop()  # a closing tag at the end belongs to this sentence
            end += len(tag[0])
            depth += {"single": 0, "close": -1, "open": 1}[str(tag.lastgroup)]
        if depth <= 0:
            yield end
    yield len(line)


def _lengths(line: str, language: str) -> list[int]:
    """Return the lengths of the sentences of a line, in characters; the line is one sentence if sentencex fails."""
    try:  # white space of several bytes makes sentencex panic in Rust, which raises no Exception
        return [len(sentence) for sentence in sentencex.segment(language, _SPACE.sub(" ", line))]
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return [len(line)]
