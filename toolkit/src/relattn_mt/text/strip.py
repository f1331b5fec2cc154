"""Remove from a text what is not translated, before the model reads it. `place.py` puts it back into the translation.

This is what a pattern matches, such as literals or tags of markup, and the marks of a document. Below, all of it is
called tags.

A text is read as a row of signs, one per character and one per mark. The characters of a tag are replaced by the sign
of its kind and as many signs that continue it. What a pattern of signs matches becomes one single tag: tags that touch
each other, brackets around a tag, an item of a list with its comma or semicolon, and a pair that encloses no word. So
the model reads no empty item. A literal or `<br>` between two words without spaces leaves a space, so that they stay
two. All spaces become ordinary ones, and invisible characters are left out, so that the words are the tokenizer's.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

from relattn_mt.text.marked import Kind, Marked, pair_tags
from relattn_mt.text.patterns import BLOCK
from relattn_mt.tokens.normalization import CONTROL, INVISIBLE, SPACES

SPACE = " "
OPENING_MARKS = "([{«„“‘¿¡\"'"
CLOSING_MARKS = ".,;:!?)]}»”’…\"'"
SEPARATORS = tuple(",;，；、")
WORD = re.compile("[^ ]+")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "»": "«", "„": "“", "“": "”", "‘": "’", '"': '"', "'": "'"}
_OPEN, _CLOSE, _SINGLE, _MORE = "\ufdd0\ufdd1\ufdd2\ufdd3"  # signs of tags, and of one that goes on: no characters
_SIGN_OF: dict[str | None, str] = {"open": _OPEN, "close": _CLOSE}
_KIND_OF: dict[str, Kind] = {_OPEN: "open", _CLOSE: "close"}
_NO_SPACE_AFTER = ("", SPACE, *OPENING_MARKS)
_NO_SPACE_BEFORE = ("", SPACE, *CLOSING_MARKS)
_OF_PAIRS = _OPEN + _CLOSE + _MORE
_OF_TAGS = _OPEN + _CLOSE + _MORE + _SINGLE
_LEFT_OUT = INVISIBLE + "".join(sorted(CONTROL))
_TRANSPARENT = _OF_PAIRS + _LEFT_OUT  # no neighbour of a tag
_AS_SPACES = str.maketrans(dict.fromkeys(SPACES, SPACE))
_WITHOUT_INVISIBLE = str.maketrans("", "", _LEFT_OUT)
_NO_WORD = re.escape(f" {_LEFT_OUT}{_OF_TAGS}")
_TAG = re.compile(f"[{_OF_TAGS}]{_MORE}*")
_TEXT = re.compile(f"[^{_NO_WORD}]+")
_GAP = re.compile(f"(?<![{_NO_WORD}])[ {re.escape(_LEFT_OUT)}]*+[{_OF_TAGS}][{_NO_WORD}]*+")
_RUN = f"{_SINGLE}[{_SINGLE}{_MORE}]*"
_JOINED = re.compile(
    "|".join([_RUN, *(re.escape(left) + _RUN + re.escape(right) for left, right in _BRACKETS.items())])
)
_SEPARATOR = f"[{''.join(SEPARATORS)}]"
_FIRST_ITEMS = re.compile(f"(?:[{_NO_WORD}]*{_SINGLE}{_MORE}*+{_SEPARATOR}(?= +[^ ]))+")
_NEXT_ITEM = re.compile(rf"{_SEPARATOR} *{_SINGLE}{_MORE}*+(?=[ {_OF_PAIRS}]*(?:$|[.,;:!?)\]}}…。，；、]))")
_CLOSING = re.compile(rf"[{re.escape(CLOSING_MARKS)}]++(?![^ {_OF_TAGS}])")
_MARKUP = re.compile("<[^<>]*>")


@dataclass
class Tag:
    """A tag that was removed from a text.

    Attributes:
        content: The tag as it is written, or the marks.
        kind: "open", "close" or, if it is not one of a pair, "single".
        at: Number of characters before it in the stripped line.
        left: Whether a word stood directly before it, without a space; of one of a pair, whether no space did.
        right: Whether a word stood directly after it, without a space; of one of a pair, whether no space did.
    """

    content: Marked
    kind: Kind
    at: int
    left: bool
    right: bool

    @property
    def visible(self) -> str:
        """Its text without markup."""
        return _MARKUP.sub("", self.content.text)

    @property
    def divides(self) -> bool:
        """Whether the line has a space in its place, since it is text or a break between two words."""
        if self.kind != "single" or not (self.left and self.right):
            return False
        is_space = any(mark.kind == "space" for mark in self.content.marks)
        return is_space or bool(self.visible or BLOCK.match(self.content.text))  # unlike `<wbr/>`


@dataclass(frozen=True)
class StrippedText:
    """A text without its tags.

    Attributes:
        line: The text without tags, with ordinary spaces.
        tags: The tags, in the order of the text. Pairs are nested.
        original: The whole text.
        pattern: Pattern of a tag that is not a mark; None if there are none.
    """

    line: str
    tags: tuple[Tag, ...]
    original: Marked
    pattern: re.Pattern[str] | None


def strip(text: Marked, pattern: re.Pattern[str] | None = None) -> StrippedText:
    """Remove the tags from a text.

    Args:
        text: A line or sentence.
        pattern: Pattern of a tag, with groups named "open" and "close" for those of a pair; None: marks alone.
    """
    row = _Row(text, pattern)
    if not row.has_tags:
        return StrippedText(text.text, (), text, pattern)
    row.pair()
    if _SINGLE in row.signs:
        row.join()
    line, tags = row.line()
    return StrippedText(line, tuple(tags), text, pattern)


class _Row:
    """A text as a row of signs.

    Attributes:
        text: The text.
        signs: The signs, one per character and one per mark.
        marks: The index of the sign of each mark.
    """

    def __init__(self, text: Marked, pattern: re.Pattern[str] | None) -> None:
        self.text = text
        self.marks = [mark.at + number for number, mark in enumerate(text.marks)]
        signs = text.text if pattern is None else pattern.sub(_tag_signs, text.text)
        parts = []
        begin = 0
        for mark in (*text.marks, None):
            end = mark.at if mark else len(signs)
            part = signs[begin:end]
            if pattern is not None and (_is_in_word(text.text, begin) or _is_in_word(text.text, end)):
                part = pattern.sub(_tag_signs, part)  # there may be other tags without the text beyond the marks
            parts.append(part)
            if mark:
                parts.append(_SIGN_OF.get(mark.kind, _SINGLE))
            begin = end
        self.signs = "".join(parts).translate(_AS_SPACES)
        self.has_tags = bool(self.marks) or signs != text.text

    def content(self, begin: int, end: int) -> Marked:
        """Return what signs stand for."""
        first = bisect_left(self.marks, begin)
        stop = bisect_left(self.marks, end)
        return self.text.part(begin - first, end - stop, first, stop)

    def pair(self) -> None:
        """Make a single tag of each that is not one of a pair, and of each pair that encloses no word."""
        ends = {tag.start(): tag.end() for tag in _TAG.finditer(self.signs) if tag[0][0] != _SINGLE}
        names = [(begin, _name(self.content(begin, end)), self.signs[begin] == _CLOSE) for begin, end in ends.items()]
        partners = pair_tags(names)
        words = [word.start() for word in _TEXT.finditer(self.signs)]
        signs = list(self.signs)
        done = 0
        for begin in ends:
            last = partners.get(begin, begin)
            is_first = begin <= last and begin >= done
            is_pair = last > begin and bisect_left(words, begin) < bisect_left(words, last)
            if is_first and not is_pair:
                done = ends[last]
                signs[begin:done] = _SINGLE + _MORE * (done - begin - 1)
        self.signs = "".join(signs)

    def join(self) -> None:
        """Make one tag of single tags that touch each other, with brackets around them and separators of a list."""
        signs = _JOINED.sub(_tag_signs, _JOINED.sub(_tag_signs, self.signs))
        first = _FIRST_ITEMS.match(signs)
        if first:
            signs = re.sub(_SEPARATOR, _MORE, first[0]) + signs[first.end() :]
        text = _TEXT.search(signs)
        done = text.start() + 1 if text else 0
        signs = signs[:done] + _NEXT_ITEM.sub(_tag_signs, signs[done:])
        self.signs = _JOINED.sub(_tag_signs, signs)

    def line(self) -> tuple[str, list[Tag]]:
        """Return the line without its tags, and the tags. A gap with tags has one space, or none before punctuation."""
        line = ""
        tags: list[Tag] = []
        done = 0
        for gap in _GAP.finditer(self.signs):
            line += self.signs[done : gap.start()].translate(_WITHOUT_INVISIBLE)
            done = gap.end()
            inner = [self._tag(*tag.span(), len(line)) for tag in _TAG.finditer(self.signs, *gap.span())]
            tags += inner
            is_apart = SPACE in gap[0] or any(tag.divides for tag in inner)
            is_between = bool(line) and done < len(self.signs)
            if is_apart and is_between and not _CLOSING.match(self.signs, done):
                line += SPACE
        return line + self.signs[done:].translate(_WITHOUT_INVISIBLE), tags

    def _tag(self, begin: int, end: int, at: int) -> Tag:
        kind = _KIND_OF.get(self.signs[begin], "single")
        is_single = kind == "single"
        ignored = _TRANSPARENT if is_single else _LEFT_OUT
        before = self.signs[:begin].rstrip(ignored)[-1:]
        after = self.signs[end:].lstrip(ignored)[:1]
        left = before not in (_NO_SPACE_AFTER if is_single else (SPACE,))
        right = after not in (_NO_SPACE_BEFORE if is_single else (SPACE,))
        return Tag(self.content(begin, end), kind, at, left, right)


def _tag_signs(match: re.Match[str]) -> str:
    """Return the signs of a tag."""
    return _SIGN_OF.get(match.lastgroup, _SINGLE) + _MORE * (len(match[0]) - 1)


def _name(tag: Marked) -> object:
    """Return the name of a tag that may be one of a pair. It is empty if a mark directly follows `<` or `</`."""
    if tag.marks:
        return tag.marks[0].item
    words = tag.text.strip("</>").split(maxsplit=1)
    return words[0].lower() if words else ""


def _is_in_word(text: str, at: int) -> bool:
    """Return whether a place in a text has no space on both sides."""
    return bool(text[at - 1 : at].strip() and text[at : at + 1].strip())
