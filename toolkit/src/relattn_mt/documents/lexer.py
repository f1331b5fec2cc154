"""Tokens of a document as texts with marks: pieces of text, and tags, which are not translated."""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from relattn_mt.support.errors import require
from relattn_mt.text.marked import Kind, Mark, Marked, join, pair_tags
from relattn_mt.text.patterns import BLOCK, has_text

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


class TokenText:
    """Tokens of a text: pieces of text, and tags.

    Tags before the first word, after the last word or around all words stay there. The others are marks of one text: a
    pair, or a single mark for a single tag or a pair without text. `breaks` divide it.

    Args:
        tokens: Text of each token; None for a tag.
        partners: Indices of the tags of each pair, in both directions. Pairs are nested.
        breaks: Indices of tags across which no text moves.
        spaces: Indices of tags that separate words.

    Attributes:
        texts: Texts to translate.

    Raises:
        InputError: Tags are nested too deeply.
    """

    def __init__(
        self,
        tokens: Sequence[str | None],
        partners: Mapping[int, int],
        breaks: Collection[int] = (),
        spaces: Collection[int] = (),
    ) -> None:
        words = [text is not None and has_text(text) for text in tokens]
        counts = [0, *accumulate(words)]  # of tokens with words before each token
        pieces: list[tuple[int, int]] = []  # ranges of tokens; a pair without words is one piece
        while (start := pieces[-1][1] if pieces else 0) < len(tokens):
            end = max(partners.get(start, start), start) + 1
            pieces.append((start, end if counts[end] == counts[start] else start + 1))
        first = 0
        last = len(pieces)

        def stays(piece: tuple[int, int]) -> bool:
            start, end = piece
            return not words[start] and (end > start + 1 or start not in partners)

        while first < last:
            if stays(pieces[first]):
                first += 1
            elif stays(pieces[last - 1]):
                last -= 1
            elif partners.get(pieces[first][0]) == pieces[last - 1][0]:
                first = first + 1
                last = last - 1
            else:
                break
        inner = pieces[first:last]
        self._begin, self._end = (inner[0][0], inner[-1][1]) if inner else (len(tokens), len(tokens))
        self._partners, self._count = partners, len(tokens)
        self._ends: dict[int, int] = {}  # of single marks, by the token where they begin
        self._breaks: list[tuple[int, int]] = []  # ranges of tokens between the texts
        self.texts: list[Marked] = []
        parts: list[Marked | str] = []
        depth = 0
        for start, end in inner:
            text = tokens[start]
            if start in breaks:
                self._breaks.append((start, end))
                self.texts.append(join(parts))
                parts = []
            elif text is not None:
                parts.append(text)
            elif end == start + 1 and start in partners:
                partner = partners[start]
                kind: Kind = "open" if partner > start else "close"
                depth += 1 if kind == "open" else -1
                require(depth <= _DEEPEST, f"elements around words must be nested at most {_DEEPEST} deep, got more")
                parts.append(Marked("", (Mark(0, kind, min(start, partner)),)))
            else:
                self._ends[start] = end
                parts.append(Marked("", (Mark(0, "space" if start in spaces else "single", start),)))
        if inner:
            self.texts.append(join(parts))

    def replaced(self, translations: Iterator[Marked]) -> Iterator[str | int]:
        """Yield the text with the next translations in the places of its texts: new texts, and tokens that are kept.

        A text that its translation does not change keeps its tokens. Pairs are balanced.

        Args:
            translations: Iterator over translations, of which as many are taken as there are texts.
        """
        texts = [next(translations) for _ in self.texts]
        if texts == self.texts:
            yield from range(self._count)
            return
        yield from range(self._begin)
        opened: list[int] = []
        for text, break_ in zip(texts, [*self._breaks, None], strict=True):
            done = 0
            for mark in text.marks:
                yield text.text[done : mark.at]
                done = mark.at
                if mark.kind == "open":
                    opened.append(mark.item)
                    yield mark.item
                elif mark.kind == "close":
                    yield from self._closed(opened, mark.item)
                else:
                    yield from range(mark.item, self._ends[mark.item])
            yield text.text[done:]
            if break_ is not None:
                yield from range(*break_)
        yield from self._closed(opened, *opened[:1])
        yield from range(self._end, self._count)

    def _closed(self, opened: list[int], *items: int) -> Iterator[int]:
        """Yield the closing tags of pairs that are open, from the innermost on, until that of an item."""
        for item in items:
            while item in opened:
                yield self._partners[opened.pop()]

    def fill(self, translations: Iterator[Marked], sources: Sequence[str], escape: Callable[[str], str]) -> str:
        """Return the source of the text with the next translations in the places of its texts, as `replaced`.

        `sources` has the source of each token, and `escape` returns that of a text.
        """
        return "".join(escape(x) if isinstance(x, str) else sources[x] for x in self.replaced(translations))


def divided(
    tokens: Sequence[str | None], tags: Sequence[tuple[int, str, bool]]
) -> Iterator[tuple[int, int, dict[int, int]]]:
    """Yield the ranges of tokens between words that touch without a space, and are not one word, and their pairs.

    The tags of a pair that such a place is in are ranges of their own, so elements stay nested.

    Args:
        tokens: As in `TokenText`.
        tags: Number, name and whether it is a closing tag, of each tag that may belong to a pair. A name may have a
            kind before it, such as "a" for a link, and a space.
    """
    kinds = {i: (name.partition(" ")[0], is_closing) for i, name, is_closing in tags}
    names = {i: each for i, each in kinds.items() if each[0] not in FORMATS}
    # last: text before the inner tags
    cuts = list[int]()
    last = ""
    inner = list[int]()
    for i, text in enumerate(tokens):
        if text is None and i in names:
            inner.append(i)
        elif text is None and i not in kinds:
            last = ""
        elif text and not (last and inner and _SIGNS.fullmatch(text)):  # not a sign between links
            closed = max((tag for tag in inner if names[tag][1]), default=-1)
            opening = min((tag for tag in inner if tag > closed), default=i)
            links = [tag for tag in inner if names[tag][0] in _LINKS]
            are_links = len(links) == len(inner) and 0 <= closed < opening < i
            if inner and _are_apart(last, text, bool(links), are_links, opening < i):
                cuts.append(opening)
            last = text
            inner = []
    edges = {0, *cuts, len(tokens)}
    for first, other in pair_tags(tags).items():
        if bisect_right(cuts, min(first, other)) < bisect_right(cuts, max(first, other)):
            edges |= {first, first + 1}
    numbers = [i for i, *_ in tags]
    for begin, end in pairwise(sorted(edges)):
        within = tags[bisect_left(numbers, begin) : bisect_left(numbers, end)]
        yield begin, end, pair_tags([(i - begin, name, is_closing) for i, name, is_closing in within])


def _are_apart(text: str, following: str, is_link: bool, are_links: bool, opens: bool) -> bool:
    """Return whether a text and the one after some tags touch, and are not parts of one word.

    This is between two links, between a link and a word, and where a new word begins: with a capital letter or two
    digits after a small letter, or with a capitalized word after a digit.
    """
    before = text[-1:]
    after = following[:2]
    if not (before.strip() and after[:1].strip()):
        return False
    if is_link and before != before.swapcase() and after[0] != after[0].swapcase():  # not of a script without spaces
        return are_links or bool(_WORD.search(text[-3:]) if opens else _NO_ENDING.match(following))
    if before.islower():
        return are_links or after[0].isupper() or (len(after) == 2 and after.isdecimal())
    return are_links or (before.isdigit() and after[0].isupper() and after[1:].islower())


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
            end = re.compile(r"(?:[^\w\s]+\s+)?").match(self._sources[i + 1]).end()  # type: ignore[union-attr]
            self._sources[i] += self._sources[i + 1][:end]
            self._sources[i + 1] = self._sources[i + 1][end:]
        tokens = [None if i % 2 else unescape(each) for i, each in enumerate(self._sources)]
        names = [(i, _NAME.match(each)) for i, each in enumerate(self._sources) if i % 2]
        tags = [(i, name[2].lower(), bool(name[1])) for i, name in names if name]
        self._parts: list[tuple[list[str], TokenText]] = []
        for begin, end, pairs in divided(tokens, tags):
            sources = self._sources[begin:end]
            placed = [(i, each) for i, each in enumerate(sources) if (i + begin) % 2]
            breaks = {i for i, each in placed if BLOCK.fullmatch(each)}
            spaces = {i for i, each in placed if _separates(each)}
            self._parts.append((sources, TokenText(tokens[begin:end], pairs, breaks, spaces)))
        self.texts = [text for _, part in self._parts for text in part.texts]

    def fill(self, translations: Iterator[Marked], escape: Callable[[str], str] = str) -> str:
        """Return the string with the next translations, after `escape`, in the places of its texts."""
        return "".join(part.fill(translations, sources, escape) for sources, part in self._parts)


def _separates(source: str) -> bool:
    """Return whether a placeholder, or a character that is written as an entity, separates words."""
    if re.match(r"<\d+[:.]|\{\\", source):  # times and styles of subtitles
        return False
    return source[0] not in "<&" or not (html.unescape(source).isalnum() or html.unescape(source) in "'’<")
