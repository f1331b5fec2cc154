"""Remove from a text what is not translated, before the model reads it. `place.py` puts it back into the translation.

This is what a pattern matches, such as literals or tags of markup, and the marks of a document. Below, all of it is
called tags.

Tags that touch each other stay together, and so does a pair with what it encloses if that has no word. An item of a
list takes a comma or semicolon with it, so that the model does not read an empty item. A literal or `<br>` between two
words without spaces leaves a space, so that they stay two words. All other spaces become ordinary ones, and invisible
characters are left out, so that the words are those of the tokenizer.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relattn_mt.data.normalization import CONTROL, INVISIBLE, SPACES
from relattn_mt.text.marked import MARK, PAIRED, Kind, Marked, join, pair_tags
from relattn_mt.text.patterns import BLOCK

SPACE = " "
OPENING_MARKS, CLOSING_MARKS = "([{«„“‘¿¡\"'", ".,;:!?)]}»”’…\"'"
OPENING, CLOSING = tuple(OPENING_MARKS), tuple(CLOSING_MARKS)
SEPARATORS = tuple(",;，；、")
WORD = re.compile("[^ ]+")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "»": "«", "„": "“", "“": "”", "‘": "’", '"': '"', "'": "'"}
_ENDS = ("", *".,;:!?)]}…。，；、")  # what follows the last item of a list, or another item
_NO_SPACE_AFTER, _NO_SPACE_BEFORE = ("", SPACE, *OPENING), ("", SPACE, *CLOSING)
_LEFT_OUT = INVISIBLE + "".join(sorted(CONTROL))
_AS_SPACES = str.maketrans(dict.fromkeys(SPACES, SPACE))
_WITHOUT_INVISIBLE = str.maketrans("", "", _LEFT_OUT)
_MARKUP = re.compile("<[^<>]*>")


@dataclass
class Tag:
    """A tag that was removed from a text.

    Attributes:
        content: The tag as it is written, or the marks.
        kind: "open", "close" or, if it is not one of a pair, "single".
        at: Number of characters before it in the stripped line.
        left: Whether a word stood directly before it, without a space; of a closing tag, whether no space did.
        right: Whether a word stood directly after it, without a space; of an opening tag, whether no space did.
        divides: Whether the line has a space in its place.
    """

    content: Marked
    kind: Kind
    at: int = 0
    left: bool = False
    right: bool = False
    divides: bool = False

    @property
    def visible(self) -> str:
        """Its text without markup."""
        return _MARKUP.sub("", self.content.text)


@dataclass(frozen=True)
class StrippedText:
    """A text without its tags.

    Attributes:
        line: The text without tags, with ordinary spaces.
        tags: The tags, in the order of the text.
        opening: Index of each closing tag -> index of the tag that it closes.
        original: The whole text.
        pattern: Pattern of a tag that is not a mark; None if there are none.
    """

    line: str
    tags: tuple[Tag, ...]
    opening: dict[int, int]
    original: Marked
    pattern: re.Pattern[str] | None


@dataclass
class _Part:
    """A part of a text that is not translated: one tag of a pair, or a single tag.

    Attributes:
        kind: As in `Tag`.
        content: As in `Tag`.
        before: Text between the part before it and this one.
        number: Index of the tag among all tags of the text.
    """

    kind: Kind
    content: Marked
    before: str
    number: int

    @property
    def spaced(self) -> str:
        """The text before it with ordinary spaces."""
        return _spaced(self.before)


def strip(text: Marked, pattern: re.Pattern[str] | None = None) -> StrippedText:
    """Remove the tags from a text.

    Args:
        text: A line or sentence.
        pattern: Pattern of a tag, with groups named "open" and "close" for those of a pair; None: marks alone.
    """
    parts, rest = _parts_of(text, pattern)
    if not parts:
        return StrippedText(text.text, (), {}, text, pattern)
    partners = pair_tags([(part.number, _name(part), part.kind == "close") for part in parts if part.kind in PAIRED])
    for part in parts:
        if part.number not in partners:
            part.kind = "single"
    parts = _join_touching(_without_empty_pairs(parts, rest, partners))
    parts, rest = _with_punctuation(parts, rest)
    parts = _join_touching(parts)
    line, tags = _Line(parts, rest).build()
    numbers = {part.number: index for index, part in enumerate(parts) if part.kind != "single"}
    opening = {numbers[last]: numbers[first] for last, first in partners.items() if first < last and last in numbers}
    return StrippedText(line, tuple(tags), opening, text, pattern)


class _Line:
    """Builds a line without its tags.

    Args:
        parts: The tags.
        rest: Text after the last one.
    """

    def __init__(self, parts: list[_Part], rest: str) -> None:
        self.parts = parts
        self.texts = [*(part.spaced for part in parts), _spaced(rest)]  # before each part, and after the last
        self.text = ""
        self.places: list[int] = []  # characters of the text before each tag

    def build(self) -> tuple[str, list[Tag]]:
        tags = []
        for number, part in enumerate(self.parts):
            self._add(self.texts[number])
            tags.append(self._tag(number, part))
            self.places.append(len(self.text))
            self.text += SPACE * tags[-1].divides
        self._add(self.texts[-1], is_last=True)
        for tag, place in zip(tags, self.places, strict=True):
            tag.at = place
        return self.text, tags

    def _add(self, text: str, *, is_last: bool = False) -> None:
        """Add the text after a tag. One of the spaces on both sides of the tag is left, and none before punctuation."""
        text = text.translate(_WITHOUT_INVISIBLE)
        if self.places and (not self.text or self.text.endswith(SPACE)):
            text = text.lstrip(SPACE)
            closes = text[:1] in CLOSING and not self._opens_quotation(text)
            if closes or (is_last and not text):
                self.text = self.text.rstrip(SPACE)
                for number in range(len(self.places) - 1, -1, -1):
                    if self.places[number] <= len(self.text):
                        break
                    self.places[number] = len(self.text)
        self.text += text

    def _opens_quotation(self, text: str) -> bool:
        """Return whether a text begins with a mark that opens a quotation."""
        if text[:1] == '"':
            return self.text.count('"') % 2 == 0
        return text[:1] == "'" and text[1:2].isalnum()

    def _tag(self, number: int, part: _Part) -> Tag:
        if part.kind == "close":
            return Tag(part.content, part.kind, left=_last(self.parts, self.texts, number) != SPACE)
        if part.kind == "open":
            return Tag(part.content, part.kind, right=_first(self.parts, self.texts, number + 1) != SPACE)
        left = self._outer(number, -1) not in _NO_SPACE_AFTER
        right = self._outer(number, 1) not in _NO_SPACE_BEFORE
        tag = Tag(part.content, part.kind, left=left, right=right)
        if left and right and self.text[-1:] not in ("", SPACE):
            is_space = any(mark.kind == "space" for mark in tag.content.marks)
            tag.divides = bool(tag.visible or is_space or BLOCK.match(tag.content.text))  # unlike `<wbr/>`
        return tag

    def _outer(self, number: int, step: int) -> str:
        """Return the character beside a part on one side, across tags of pairs that touch it and invisible ones."""
        at = number if step < 0 else number + 1  # index of the text on that side
        while 0 < at < len(self.parts) and not self.texts[at] and self.parts[at - (step < 0)].kind != "single":
            at += step
        if step < 0:
            return self.texts[at].rstrip(_LEFT_OUT)[-1:] or (self.parts[at - 1].content.tail if at else "")
        is_inner = at < len(self.parts)
        return self.texts[at].lstrip(_LEFT_OUT)[:1] or (self.parts[at].content.head if is_inner else "")


def _parts_of(text: Marked, pattern: re.Pattern[str] | None) -> tuple[list[_Part], str]:
    """Return all tags of a text, and the text after the last one."""
    parts: list[_Part] = []
    begin = done = 0
    for first, last, kind, content in [*_marks_of(text, pattern), (len(text.text), 0, None, Marked())]:
        for match in pattern.finditer(text.text[begin:first]) if pattern is not None else ():
            name: Any = match.lastgroup or "single"
            parts.append(_Part(name, Marked(match[0]), text.text[done : begin + match.start()], len(parts)))
            done = begin + match.end()
        if kind is not None:
            parts.append(_Part(kind, content, text.text[done:first], len(parts)))
            begin = done = last
    return parts, text.text[done:]


def _marks_of(text: Marked, pattern: re.Pattern[str] | None) -> Iterator[tuple[int, int, Kind, Marked]]:
    """Yield the range, the kind and the content of each mark. What a pattern matches is one with the pairs in it."""
    marks, pairs, done = text.marks, text.pairs, 0

    def alone(stop: int) -> Iterator[tuple[int, int, Kind, Marked]]:
        for mark in marks[done:stop]:
            yield mark.at, mark.at, mark.kind, Marked("", (replace(mark, at=0),))

    places = [mark.at for mark in marks]
    for match in pattern.finditer(text.text) if pattern is not None and marks else ():
        begin, end = match.span()
        first, stop = bisect_right(places, begin), bisect_left(places, end)
        is_in = first < stop
        while is_in and stop < len(marks) and places[stop] == end and first <= pairs.get(stop, stop) < stop:
            stop += 1
        while is_in and first > done and places[first - 1] == begin and first <= pairs.get(first - 1, 0) < stop:
            first -= 1
        if is_in and first >= done and all(first <= pairs.get(i, i) < stop for i in range(first, stop)):
            yield from alone(first)
            yield begin, end, "single", text.part(begin, end, first, stop)
            done = stop
    yield from alone(len(marks))


def _name(part: _Part) -> object:
    """Return the name of a tag that may be one of a pair."""
    if part.content.marks:
        return part.content.marks[0].item
    return part.content.text.strip("</>").split(maxsplit=1)[0].lower()


def _spaced(text: str) -> str:
    return text.translate(_AS_SPACES)  # of the same length


def _last(parts: Sequence[_Part], texts: Sequence[str], number: int) -> str:
    """Return the character before a part: of the text or of another part; empty at the beginning."""
    return texts[number][-1:] or (parts[number - 1].content.tail if number else "")


def _first(parts: Sequence[_Part], texts: Sequence[str], number: int) -> str:
    """Return the first character of the text before a part, or of that part; empty at the end."""
    return texts[number][:1] or (parts[number].content.head if number < len(parts) else "")


def _without_empty_pairs(parts: list[_Part], rest: str, partners: dict[int, int]) -> list[_Part]:
    """Return the parts in which a pair that encloses no words is a single tag with all it encloses.

    It is not if it has spaces at its ends that may separate the words around it.
    """
    befores = [*(part.spaced for part in parts), _spaced(rest)]
    texts, spaces, after_pair = [0], [0], True  # numbers of texts and of such spaces before each tag
    for part in parts:
        texts.append(texts[-1] + bool(part.spaced.strip(SPACE)))
        spaces.append(spaces[-1] + bool(part.before and (part.kind != "single" or after_pair)))
        after_pair = part.kind != "single"
    kept: list[_Part] = []
    number = 0
    while number < len(parts):
        part, last = parts[number], number
        if part.kind == "open":
            last = partners[number]
            is_apart = _last(parts, befores, number) in ("", SPACE) or _first(parts, befores, last + 1) in ("", SPACE)
            is_bare = spaces[last + 1] == spaces[number + 1] or (is_apart and last > number + 1)
            if texts[last + 1] > texts[number + 1] or not is_bare:
                last = number
            else:
                inner = [each for other in parts[number + 1 : last + 1] for each in (other.before, other.content)]
                part = _Part("single", join([part.content, *inner]), part.before, number)
        kept.append(part)
        number = last + 1
    return kept


def _with_punctuation(parts: list[_Part], rest: str) -> tuple[list[_Part], str]:
    """Extend single tags by the brackets around them, and by the separator before an item or after the first item.

    Return the parts, and the text after the last one.
    """
    afters = [*(part.before for part in parts[1:]), rest]
    has_text = False
    for number, part in enumerate(parts):
        after = afters[number]
        if part.kind == "single":
            while part.before and after and _BRACKETS.get(_spaced(part.before[-1])) == _spaced(after[0]):
                part.content = join([part.before[-1], part.content, after[0]])
                part.before, after = part.before[:-1], after[1:]
            before = part.spaced.rstrip(SPACE)
            if before.endswith(SEPARATORS) and (has_text or before[:-1].strip()):
                if _next_character(parts, afters, number, after) in _ENDS:
                    part.content = join([part.before[len(before) - 1 :], part.content])
                    part.before = part.before[: len(before) - 1]
            elif not has_text and not before and after[:1] in SEPARATORS:
                more = _spaced(after[1:])
                if more.startswith(SPACE) and (more.strip() or number + 1 < len(parts)):
                    part.content, after = join([part.content, after[0]]), after[1:]
        has_text = has_text or bool(part.spaced.strip())
        if number + 1 < len(parts):
            parts[number + 1].before = after
        else:
            rest = after
        afters[number] = after
    return parts, rest


def _next_character(parts: list[_Part], afters: list[str], number: int, after: str) -> str:
    """Return the first character of the text after a part and tags of pairs; empty at the end of the text."""
    while True:
        text = _spaced(after).strip(SPACE)
        if text or number + 1 == len(parts):
            return text[:1]
        number += 1
        if parts[number].kind == "single":
            return parts[number].content.head or MARK
        after = afters[number]


def _join_touching(parts: list[_Part]) -> list[_Part]:
    """Join single tags that touch each other."""
    runs: list[list[_Part]] = []
    for part in parts:
        if runs and runs[-1][0].kind == part.kind == "single" and not part.before:
            runs[-1].append(part)
        else:
            runs.append([part])
    for run in runs:
        run[0].content = join(part.content for part in run)
    return [run[0] for run in runs]
