"""Tokens of a document as texts with marks: pieces of text, and tags, which are not translated."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap

from relattn_mt.support.errors import require
from relattn_mt.text.marked import Kind, Mark, Marked, join, pair_tags
from relattn_mt.text.patterns import BLOCK, has_text, markup_pattern

INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML
_NAME = re.compile(r"[<\[](/?)(\w[\w:-]*)")
FORMATS = {  # tags within a word
    *("b", "big", "del", "em", "font", "i", "ins", "mark", "s", "small", "strike", "strong", "sub", "sup", "tt", "u"),
    *("img", "wbr", "text:span"),
}
_DEEPEST = 256  # elements in each other in a text, as in libxml2; the time grows with the square
_LINKS = {"a", "text:a"}
_SIGNS = re.compile(r"[^\w\s]+")
# before a link and after one
_WORD = re.compile(r"[^\W\d_]{3}$")
_NO_ENDING = re.compile(r"[^\W\d_]{3}")
_APOSTROPHES = {"'", "’"}
_SIGNS_AND_SPACE = re.compile(r"\A((?:[^\w\s]+\s+)?)")


@dataclass(frozen=True)
class TextToken:
    """A piece of text, or a tag.

    Attributes:
        text: The characters of a piece of text; None for a tag.
        name: Name of a tag that may belong to a pair; empty for any other tag. It may begin with that of an element of
            HTML and a space.
        is_closing: Whether it is a closing tag.
        is_break: Whether no text moves across it.
        is_space: Whether it separates words.
    """

    text: str | None = None
    name: str = ""
    is_closing: bool = False
    is_break: bool = False
    is_space: bool = False

    @property
    def element(self) -> str:
        return self.name.partition(" ")[0]


def pairs_of(tokens: Sequence[TextToken], indices: range) -> dict[int, int]:
    """Return the indices of the tags of each pair among some tokens, in both directions. Pairs are nested."""
    return pair_tags([(i, tokens[i].name, tokens[i].is_closing) for i in indices if tokens[i].name])


class TextPart:
    """Tokens of a text between words that touch.

    Tags before the first word, after the last word or around all words stay there. The others are marks of one text: a
    pair, or a single mark for a single tag or a pair without text. Breaks divide it.

    Args:
        tokens: Tokens of the whole text.
        counts: Number of tokens with words before each token, and before the end.
        indices: Indices of the tokens of the part.

    Attributes:
        indices: The same.
        texts: Texts to translate.

    Raises:
        InputError: Tags are nested too deeply.
    """

    def __init__(self, tokens: Sequence[TextToken], counts: Sequence[int], indices: range) -> None:
        self.indices = indices
        self.texts: list[Marked] = []
        self._breaks: list[range] = []  # tokens between the texts
        self._singles: dict[int, range] = {}  # tokens of single marks, by the first of them
        pairs = pairs_of(tokens, indices)
        self._partners = {i: other for i, other in pairs.items() if counts[i] != counts[other]}
        units = deque[range]()  # tokens that stay together; a pair without words is one unit
        start = indices.start
        while start < indices.stop:
            last = start if start in self._partners else pairs.get(start, start)
            units.append(range(start, last + 1))
            start = last + 1

        def stays(start: int) -> bool:
            return counts[start] == counts[start + 1] and start not in self._partners

        while units:
            if stays(units[0].start):
                units.popleft()
            elif stays(units[-1].start):
                units.pop()
            elif self._partners.get(units[0].start) == units[-1].start:
                units.popleft()
                units.pop()
            else:
                break
        self._inner = range(units[0].start, units[-1].stop) if units else range(indices.stop, indices.stop)
        parts: list[Marked | str] = []
        depth = 0
        for unit in units:
            token = tokens[unit.start]
            if token.is_break:
                self._breaks.append(unit)
                self.texts.append(join(parts))
                parts = []
            elif token.text is not None:
                parts.append(token.text)
            elif unit.start in self._partners:
                depth += -1 if token.is_closing else 1
                require(depth <= _DEEPEST, f"elements around words must be nested at most {_DEEPEST} deep, got more")
                kind: Kind = "close" if token.is_closing else "open"
                parts.append(Marked("", (Mark(0, kind, min(unit.start, self._partners[unit.start])),)))
            else:
                self._singles[unit.start] = unit
                parts.append(Marked("", (Mark(0, "space" if token.is_space else "single", unit.start),)))
        if units:
            self.texts.append(join(parts))

    def replaced(self, translations: Iterator[Marked]) -> Iterator[str | int]:
        """Yield the part with the next translations in the places of its texts. As `TokenText.replaced`."""
        texts = [next(translations) for _ in self.texts]
        if texts == self.texts:
            yield from self.indices
            return
        yield from range(self.indices.start, self._inner.start)
        opened: list[int] = []
        for text, after in zip(texts, [*self._breaks, range(0)], strict=True):
            done = 0
            for at, kind, item in text.marks:
                yield text.text[done:at]
                done = at
                if kind == "open":
                    opened.append(item)
                    yield item
                elif kind == "close":
                    while item in opened:  # inner pairs end, too
                        yield self._partners[opened.pop()]
                else:
                    yield from self._singles[item]
            yield text.text[done:]
            yield from after
        while opened:
            yield self._partners[opened.pop()]
        yield from range(self._inner.stop, self.indices.stop)


class TokenText:
    """Text of a document, as tokens. It is divided where words touch that are not one word.

    Args:
        tokens: The tokens.

    Attributes:
        parts: The parts.
        texts: Texts to translate.

    Raises:
        InputError: Tags are nested too deeply.
    """

    def __init__(self, tokens: Sequence[TextToken]) -> None:
        words = (token.text is not None and has_text(token.text) for token in tokens)
        counts = list(accumulate(words, initial=0))
        self.parts = [TextPart(tokens, counts, indices) for indices in _divided(tokens)]
        self.texts = [text for part in self.parts for text in part.texts]

    def replaced(self, translations: Iterator[Marked]) -> Iterator[str | int]:
        """Yield the text with the next translations in the places of its texts: new texts, and indices of tokens.

        A text that its translation does not change keeps its tokens. Pairs are balanced.

        Args:
            translations: Iterator over translations, of which as many are taken as there are texts.
        """
        for part in self.parts:
            yield from part.replaced(translations)

    def fill(self, translations: Iterator[Marked], sources: Sequence[str], escape: Callable[[str], str]) -> str:
        """Return the source of the text with the next translations in the places of its texts, as `replaced`.

        `sources` has the source of each token, and `escape` returns that of a text.
        """
        return "".join(escape(x) if isinstance(x, str) else sources[x] for x in self.replaced(translations))


def _divided(tokens: Sequence[TextToken]) -> Iterator[range]:
    """Yield the indices of the tokens between words that touch without a space, and are not one word.

    The tags of a pair that such a place is in are ranges of their own, so elements stay nested.
    """
    cuts = list[int]()
    last = ""  # text before the inner tags
    inner = list[int]()
    for i, token in enumerate(tokens):
        if token.text is None:
            if not token.name:
                last = ""
            elif token.element not in FORMATS:
                inner.append(i)
        elif token.text and not (last and inner and _SIGNS.fullmatch(token.text)):  # not a sign between links
            closed = max((tag for tag in inner if tokens[tag].is_closing), default=-1)
            opening = min((tag for tag in inner if tag > closed), default=i)
            if inner and _are_apart(last, token.text, [tokens[tag] for tag in inner]):
                cuts.append(opening)
            last = token.text
            inner = []
    edges = {0, *cuts, len(tokens)}
    for i, other in pairs_of(tokens, range(len(tokens))).items():
        if bisect_right(cuts, i) != bisect_right(cuts, other):
            edges |= {i, i + 1}
    yield from starmap(range, pairwise(sorted(edges)))


def _are_apart(text: str, following: str, tags: Sequence[TextToken]) -> bool:
    """Return whether a text and the one after some tags touch, and are not parts of one word.

    This is between two links, between a link and a word, and where a new word begins: with a capital letter or two
    digits after a small letter, or with a capitalized word after a digit.
    """
    before = text[-1:]
    after = following[:2]
    if not (before.strip() and after[:1].strip()):
        return False
    links = [tag.element in _LINKS for tag in tags]
    opens = not tags[-1].is_closing
    if all(links) and opens and any(tag.is_closing for tag in tags):
        return True
    is_cased = before != before.swapcase() and after[0] != after[0].swapcase()  # unlike scripts without spaces
    if any(links) and is_cased:
        return bool(_WORD.search(text[-3:]) if opens else _NO_ENDING.match(following))
    if before.islower():
        return after[0].isupper() or (len(after) == 2 and after.isdecimal())
    return before.isdigit() and after[0].isupper() and after[1:].islower()


class Message:
    """String of a program or a cell whose placeholders, such as `%s` and `<b>`, are tags.

    Args:
        text: The string.
        pattern: Placeholders. Its groups must not capture.
        unescape: Function that returns the characters of the text between placeholders.

    Attributes:
        texts: Texts to translate; none if the string has no words.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], unescape: Callable[[str], str] = str) -> None:
        self._sources = re.split(f"({pattern.pattern})", text)  # placeholders at odd indices
        for i in range(1, len(self._sources), 2):  # a comma or colon after the first placeholders belongs to them
            if self._sources[i - 1].strip() or self._sources[i][0] in "<[":
                break
            _, signs, self._sources[i + 1] = _SIGNS_AND_SPACE.split(self._sources[i + 1], maxsplit=1)
            self._sources[i] += signs
        tokens = [
            _placeholder(source) if i % 2 else TextToken(unescape(source)) for i, source in enumerate(self._sources)
        ]
        self._text = TokenText(tokens)
        self.texts = self._text.texts

    def fill(self, translations: Iterator[Marked], escape: Callable[[str], str] = str) -> str:
        """Return the string with the next translations, after `escape`, in the places of its texts."""
        return self._text.fill(translations, self._sources, escape)


def with_letters(text: str) -> str:
    """Return a string of a program with characters in place of entities of letters and apostrophes, parts of words.

    Those in tags and literals stay.
    """

    def replace(placeholder: re.Match[str]) -> str:
        character = html.unescape(placeholder[0])
        return character if character.isalpha() or character in _APOSTROPHES else placeholder[0]

    return markup_pattern().sub(replace, text)


def _placeholder(source: str) -> TextToken:
    """Return the tag of a placeholder."""
    name = _NAME.match(source)
    return TextToken(
        name=name[2].lower() if name else "",
        is_closing=name is not None and bool(name[1]),
        is_break=BLOCK.fullmatch(source) is not None,
        is_space=_separates(source),
    )


def _separates(source: str) -> bool:
    """Return whether a placeholder, or a character that is written as an entity, separates words."""
    if re.match(r"<\d+[:.]|\{\\", source):  # times and styles of subtitles
        return False
    return source[0] not in "<&" or not (html.unescape(source).isalnum() or html.unescape(source) in "<")
