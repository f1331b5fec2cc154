"""Put the tags of a text into its translation, as marks or as they are written.

Each tag occurs exactly once in the translation, unchanged. The translation is divided into pieces: words, or parts of
words where tags divide the word that they are aligned with, as in `H<sub>2</sub>O`. A piece knows what it translates.

- An element, which is a pair of tags, encloses the run of pieces with most of its own. If there is none, and it had a
  letter or digit, it takes the nearest piece that no other element has, or else nests. Both are guesses.
- Any other tag stands beside the translation of its neighbour. If that has none, its place is a guess. At the beginning
  or the end of an element it stays there, and so does an item of a list in its place, and an emoji or symbol at the
  beginning or the end of the line.

Elements are nested. What touched a word touches one again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise, starmap

from relattn_mt.support.types import Span
from relattn_mt.text.alignment import Links
from relattn_mt.text.marked import Marked, join
from relattn_mt.text.patterns import UNITS, has_text
from relattn_mt.text.strip import CLOSING_MARKS, OPENING_MARKS, SEPARATORS, SPACE, WORD, StrippedText, Tag

_BEGINS_WORD = re.compile(r"\w|[€£¥$]\d")
_ENDS_WORD = re.compile(rf"\w$|\d ?(?:{UNITS})$|(?:://|www\.)\S*$")
_HAS_WORD = re.compile(r"\w")
_PUNCTUATION = ",;:!?…"  # after a word
_SIGN = re.compile(r"([^\w\s])")
_PART = re.compile(" +|[^ ]+")
_FOREIGN = 0.5  # share of its length that it costs to enclose a word of no other element
_NEAR = 16  # number of pieces on each side of the expected place among which one is guessed
_LINKED = 8  # how many characters farther away a piece without a link may be than one with a link, to be guessed


def place(
    stripped: StrippedText, translation: str, links: Links, likeliest: Sequence[int | None] = ()
) -> tuple[Marked, list[str]]:
    """Return a translation with the tags of its source, and the tags or the words whose place is a guess.

    Args:
        stripped: The source without its tags.
        translation: Translation of `stripped.line`. If it is the same, the result is the source.
        links: Word alignment, of at most one link per target word.
        likeliest: Target word of each source word, for those that have no link; None or missing if unknown.
    """
    if translation == stripped.line or not has_text(stripped.line):
        return stripped.original, []
    placing = _Placing(stripped, translation, links, likeliest)
    placed = _joined(_parts(translation, placing.root))
    guessed = [*filter(None, placing.guessed)]
    if stripped.pattern is not None:
        before = Counter(match[0] for match in stripped.pattern.finditer(stripped.original.text))
        after = Counter(match[0] for match in stripped.pattern.finditer(placed.text))
        guessed += (before - after).elements()  # missing, or changed by what stands beside them
    return placed, guessed


@dataclass
class _Piece:
    """A word of the translation, or a part of it if there are tags in the word that it is aligned with.

    Attributes:
        begin: Number of characters before it.
        end: Number of characters before its end.
        origin: The part of the line that it translates; empty if it has no link.
    """

    begin: int
    end: int
    origin: Span = (0, 0)

    @property
    def length(self) -> int:
        """Its number of characters."""
        return self.end - self.begin

    @property
    def is_linked(self) -> bool:
        """Whether it has a link."""
        return self.origin[0] < self.origin[1]

    def translates(self, part: Span) -> bool:
        """Return whether it translates some of a part of the line."""
        return self.origin[0] < part[1] and self.origin[1] > part[0]


@dataclass(eq=False)
class _Element:
    """A pair of tags or a single tag.

    Attributes:
        first: The opening or single tag.
        parent: The element around it.
        last: The closing tag; None if it is single.
        children: The elements in it.
        begin: Number of characters of the translation before it.
        end: Number of characters of the translation before its end, which is `begin` if it encloses no piece.
    """

    first: Tag
    parent: _Element | None = None
    last: Tag | None = None
    children: list[_Element] = field(default_factory=list)
    begin: int = 0
    end: int = 0

    @property
    def source(self) -> Span:
        """The part of the line that it encloses."""
        return self.first.at, (self.last or self.first).at

    def contains(self, other: _Element) -> bool:
        """Return whether it is the other element, or around it."""
        return self.source[0] <= other.source[0] and other.source[1] <= self.source[1]


class _Placing:
    """Finds the places of the tags of a line. Arguments are those of `place`.

    Attributes:
        root: The whole line, as an element.
        guessed: Tags or words whose place is a guess.
    """

    def __init__(self, stripped: StrippedText, translation: str, links: Links, likeliest: Sequence[int | None]) -> None:
        self.line = stripped.line
        self.translation = translation
        self.words = [word.span() for word in WORD.finditer(self.line)]
        self.ends = [end for _, end in self.words]
        self.guessed: list[str] = []
        first, last = (Tag(Marked(), "single", at, left=True, right=True) for at in (0, len(self.line)))
        self.root = _Element(first, last=last, end=len(translation.rstrip()))
        self.changes: list[int] = [-1]  # places of tags, and the innermost pair after each of them
        self.inner = [self.root]
        self.separators: dict[str, list[list[int]]] = {}  # places of each separator in the line and in the translation
        elements = self._elements(stripped.tags)
        pairs = [element for element in reversed(elements) if element.last is not None]  # inner ones first
        self.aligned: dict[int, list[_Piece]] = {}  # translation of each word of the line
        self.pieces = self._pieces(links, likeliest)
        self.linked = sorted((piece.origin[0], index) for index, piece in enumerate(self.pieces) if piece.is_linked)
        for pair in pairs:
            self._enclose(pair, self._run(pair))
        indices = range(len(self.pieces))
        self.choices = [index for index in indices if self._has_word(self.pieces[index])] or indices
        for pair in pairs:
            if _HAS_WORD.search(self.line, *pair.source) and not self._has_word(pair):
                self._guess(pair)
        for element in elements:
            if element.begin == element.end:
                self._place_single(element, element.parent or self.root)

    def _elements(self, tags: Sequence[Tag]) -> list[_Element]:
        """Return the elements, in the order of the line."""
        elements = []
        inner = self.root
        for tag in tags:
            if tag.kind != "close":
                element = _Element(tag, inner)
                inner.children.append(element)
                elements.append(element)
                inner = element if tag.kind == "open" else inner
            elif inner.parent is not None:
                inner.last = tag
                inner = inner.parent
            self.changes.append(tag.at)
            self.inner.append(inner)
        return elements

    def _pieces(self, links: Links, likeliest: Sequence[int | None]) -> list[_Piece]:
        """Return the pieces of the translation."""
        targets = [word.span() for word in WORD.finditer(self.translation)]
        linked: dict[int, list[Span]] = {}
        unlinked = dict(enumerate(targets))
        for source, target in sorted(links):
            linked.setdefault(source, []).append(unlinked.pop(target))
        for source, spans in linked.items():
            self.aligned[source] = self._divided(self.words[source], spans)
        pieces = [*chain(*self.aligned.values()), *starmap(_Piece, unlinked.values())]
        for source, likely in enumerate(likeliest):
            if likely is not None:
                self.aligned.setdefault(source, [_Piece(*targets[likely], self.words[source])])
        return sorted(pieces, key=lambda piece: piece.begin)

    def _divided(self, word: Span, targets: list[Span]) -> list[_Piece]:
        """Return the pieces of the translation of a word, which is divided where tags divide the word."""
        begin = targets[0][0]
        end = targets[-1][1]
        places = self.changes[bisect_right(self.changes, word[0]) : bisect_left(self.changes, word[1])]
        text = self.translation[begin:end]
        if not places or text.count(SPACE) >= len(targets):
            return [_Piece(*target, word) for target in targets]
        edges = [(word[0], begin)]
        for place in places:
            cut = _cut(self.line[word[0] : word[1]], place - word[0], text)
            if cut is not None:
                edges.append((place, max(begin + cut, edges[-1][1])))
        edges.append((word[1], end))
        parts = [_Piece(at, next_at, (place, next_place)) for (place, at), (next_place, next_at) in pairwise(edges)]
        return [piece for piece in parts if piece.begin < piece.end]

    def _is_free(self, piece: _Piece, pair: _Element) -> bool:
        """Return whether a piece translates nothing of another pair, but for those around a pair."""
        return not piece.is_linked or self.inner[bisect_right(self.changes, piece.origin[0]) - 1].contains(pair)

    def _run(self, pair: _Element) -> range:
        """Return adjacent pieces with the longest translation of what a pair encloses, less half of what is foreign.

        None of them is of a pair that is apart, so that these do not overlap.
        """
        begin, end = pair.source
        begin_of_word, _ = self.words[bisect_right(self.ends, begin)]
        linked = self.linked[bisect_left(self.linked, (min(begin, begin_of_word),)) : bisect_left(self.linked, (end,))]
        best = run = range(0)
        most = count = 0.0
        for index in sorted(index for _, index in linked if self.pieces[index].translates(pair.source)):
            for piece in self.pieces[run.stop : index]:
                if count <= 0:
                    break
                if piece.is_linked:
                    count = count - _FOREIGN * piece.length if self._is_free(piece, pair) else 0
            run = range(run.start if count > 0 else index, index + 1)
            count = max(count, 0) + self.pieces[index].length
            if count > most:
                most = count
                best = run
        return best

    def _enclose(self, pair: _Element, indices: range) -> None:
        """Let a pair enclose pieces, and what the pairs in it enclose."""
        pieces = self.pieces[indices.start : indices.stop]
        has_space = any(_is_space(child.first) for child in pair.children)
        at = len(self.line) if has_space else pair.source[1]
        spans = [(child.begin, child.end) for child in pair.children if child.begin < child.end]
        spans += [(piece.begin, self._end(piece, at)) for piece in pieces]
        pair.begin = min((begin for begin, _ in spans), default=0)
        pair.end = max((end for _, end in spans), default=0)
        for index, piece in zip(indices, pieces, strict=True):
            if not piece.is_linked:
                piece.origin = pair.source
                insort(self.linked, (pair.source[0], index))

    def _guess(self, pair: _Element) -> None:
        """Let a pair without a letter or digit enclose a piece that is free, likely and near, if no pair in it does."""
        self._enclose(pair, range(0))
        if self._has_word(pair) or not self.pieces:
            return
        outer = pair.parent or self.root
        while outer.parent is not None and not self._has_word(outer):
            outer = outer.parent
        first, last = pair.source
        words = range(bisect_right(self.ends, first), bisect_left(self.words, (last,)))
        aligned = [piece for word in words for piece in self.aligned.get(word, [])]
        likely = {self._index(piece.begin + 1) - 1 for piece in aligned if piece.translates(pair.source)}
        expected = self._expected(pair.first)
        nearest = bisect_left(self.choices, self._index(min(max(outer.begin, expected), outer.end)))

        def rank(index: int) -> tuple[bool, bool, bool, bool, float]:
            piece = self.pieces[index]
            is_inside = outer.begin <= piece.begin < outer.end
            is_taken = not self._is_free(piece, pair)
            distance = abs(piece.begin - expected) + _LINKED * piece.is_linked
            return not is_inside, not self._has_word(piece), is_taken, index not in likely, distance

        best = min(sorted({*self.choices[max(0, nearest - _NEAR) : nearest + _NEAR], *likely}), key=rank)
        if best not in likely:
            self.guessed.append(pair.first.content.text or self.line[first:last])
        self.pieces[best].origin = pair.source
        self._enclose(pair, range(best, best + 1))

    def _index(self, at: float) -> int:
        """Return the number of pieces that begin before a place."""
        return bisect_left(self.pieces, at, key=lambda piece: piece.begin)

    def _has_word(self, part: _Piece | _Element) -> bool:
        return _HAS_WORD.search(self.translation, part.begin, part.end) is not None

    def _expected(self, tag: Tag) -> float:
        """Return where the translation of what follows a tag is expected, by the lengths of both texts."""
        is_before_space = self.line[tag.at : tag.at + 1] == SPACE
        return (tag.at + is_before_space) * len(self.translation) / len(self.line)

    def _place_single(self, single: _Element, parent: _Element) -> None:
        """Find the place of a single tag, or of a pair that encloses no word: in the element around it."""
        tag = single.first
        at = self._at_edge(tag, parent)
        if at is None:
            at = self._in_list(tag)
        if at is None:
            at = self._beside(tag)
        if at is None:
            index = self._index(self._expected(tag))
            at = self.pieces[index].begin if index < len(self.pieces) else self.root.end
            tag = replace(tag, left=False, right=False)  # it must not touch another word
            if single.last is None:
                self.guessed.append(tag.content.text)
        at = min(max(parent.begin, at), parent.end)
        around = self.translation[at - 1 : at + 1] if at else ""
        is_markup = bool(tag.content.text) and not tag.visible
        if len(around) == 2 and (around.isalnum() or (is_markup and SPACE not in around)):
            tag = replace(tag, left=True, right=True)  # it must not divide a word
        single.first = tag
        single.begin = single.end = at

    def _at_edge(self, tag: Tag, parent: _Element) -> int | None:
        """Return the place of a tag at the beginning or the end of an element, if it stays there."""
        stays = parent is not self.root or not (tag.content.marks or _HAS_WORD.search(tag.content.text))
        begin, end = parent.source
        if tag.at == begin and (stays or tag.content.tail in SEPARATORS):
            return parent.begin
        if tag.at == end and (stays or tag.content.head in SEPARATORS):
            return parent.end
        return None

    def _in_list(self, tag: Tag) -> int | None:
        """Return the place of an item before a separator, if the translation has as many separators as the line."""
        separator = tag.content.head
        if separator not in SEPARATORS or self.line[tag.at : tag.at + 1] != separator:
            return None
        if separator not in self.separators:
            sides = self.line, self.translation
            self.separators[separator] = [[match.start() for match in re.finditer(separator, side)] for side in sides]
        places, target_places = self.separators[separator]
        return target_places[bisect_left(places, tag.at)] if len(places) == len(target_places) else None

    def _beside(self, tag: Tag) -> int | None:
        """Return the place of a tag beside the translation of its neighbour: the word before it, if it touches none."""
        word = bisect_right(self.ends, tag.at)
        is_between = word == len(self.words) or tag.at <= self.words[word][0]
        before = [piece for piece in self.aligned.get(word - is_between, []) if piece.origin[0] < tag.at]
        after = [piece for piece in self.aligned.get(word, []) if piece.origin[1] > tag.at]
        if after and (not before or (tag.right and not tag.left)):
            return after[0].begin
        if not before:
            return None
        return before[-1].end if _is_space(tag) else self._end(before[-1], tag.at)

    def _end(self, piece: _Piece, at: int) -> int:
        """Return the end of a piece, without its punctuation if the line has a word before `at` and text after it."""
        if not self.line[at:] or self.line[:at].rstrip()[-1:] in CLOSING_MARKS:
            return piece.end
        marks = _PUNCTUATION + "." * (piece.end == self.root.end)
        word = self.translation[piece.begin : piece.end].rstrip(marks)
        return piece.begin + len(word) if word else piece.end


def _is_space(tag: Tag) -> bool:
    """Return whether a tag stands for a space."""
    return tag.visible.isspace() or tag.divides


def _core(word: str) -> Span:
    """Return the range of a word without punctuation around it."""
    begin = len(word) - len(word.lstrip(OPENING_MARKS))
    return begin, max(begin, len(word.rstrip(CLOSING_MARKS)))


def _cut(word: str, cut: int, target: str) -> int | None:
    """Return the place in the translation of a word of a tag after `cut` of its characters.

    Between the punctuation around a word, as much of it stays on each side, or all. In the word, the part before the
    place, the part after it or all signs are the same there, but for capitals. None if there is no such place.
    """
    (begin, end), (target_begin, target_end) = _core(word), _core(target)
    if cut <= begin:
        return target_begin if cut == begin else min(cut, target_begin)
    if cut >= end:
        return target_end if cut == end else max(target_end, len(target) - (len(word) - cut))
    before = word[:cut].lower()
    after = word[cut:].lower()
    if target[:cut].lower() == before:
        return cut
    if target[-len(after) :].lower() == after:
        return len(target) - len(after)
    # as in and/or
    parts = _SIGN.split(word)
    target_parts = _SIGN.split(target)
    places, target_places = (list(accumulate(map(len, each))) for each in (parts, target_parts))
    is_same = parts[1::2] == target_parts[1::2] and cut in places
    return target_places[places.index(cut)] if is_same else None


def _parts(translation: str, root: _Element) -> Iterator[str | Tag]:
    """Yield the words and the spaces of a translation, and the tags in their places. Elements are nested."""
    done = 0
    waiting: list[tuple[int, Tag] | _Element] = [*reversed(_apart(root.children))]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Element):
            at = item.begin
            tag = item.first
            if item.last is not None:
                waiting.append((item.end, item.last))
                waiting += reversed(_apart(item.children))
        else:
            at, tag = item
        yield from _PART.findall(translation, done, at)
        yield tag
        done = max(done, at)
    yield from _PART.findall(translation, done)


def _apart(elements: list[_Element]) -> list[_Element]:
    """Return elements in the order of the translation. Of two that overlap, the second is put into the first."""
    apart: list[_Element] = []
    for element in sorted(elements, key=lambda each: each.begin):
        if not apart or element.begin >= apart[-1].end:
            apart.append(element)
        else:
            apart[-1].end = max(apart[-1].end, element.end)
            apart[-1].children.append(element)
    return apart


def _joined(items: Iterator[str | Tag]) -> Marked:
    """Join the parts of a translation, with spaces around single tags where the source had them.

    Tags of pairs wait for the next word or single tag, since a space may stand among them.
    """
    parts: list[Marked | str] = []
    waiting: list[Marked] = []  # tags of pairs since the last part
    gap = ""  # the space of the translation since then
    gap_at = 0  # the tags before it: closing ones, and opening ones of pairs that begin with a space
    before: Tag | str = ""  # the last part
    for item in items:
        if isinstance(item, Tag) and item.kind != "single":
            waiting.append(item.content)
            if item.left if item.kind == "close" else not item.right:
                gap_at = len(waiting)
        elif isinstance(item, str) and item.startswith(SPACE):
            gap = item
        else:
            content = item if isinstance(item, str) else item.content
            parts += [*waiting[:gap_at], _space(before, gap, item), *waiting[gap_at:], content]
            waiting = []
            gap = ""
            gap_at = 0
            before = item
    return join([*parts, *waiting])


def _space(before: Tag | str, gap: str, part: Tag | str) -> str:
    """Return the space between two parts, where the translation has a gap or not."""
    tags = [each for each in (before, part) if isinstance(each, Tag)]
    if before == "" or not tags or (gap and not any(tag.divides for tag in tags)):
        return gap
    if _ENDS_WORD.search(_visible(before)) and _BEGINS_WORD.match(_visible(part)):
        return SPACE
    return "" if _touches(before, part) else SPACE


def _touches(before: Tag | str, part: Tag | str) -> bool:
    """Return whether two parts may touch: tags that touched something, and what is next to punctuation."""
    if isinstance(before, str) and not before.strip(OPENING_MARKS):
        return True
    if isinstance(part, str) and not part.strip(CLOSING_MARKS):
        return True
    has_touched = (isinstance(before, str) or before.right) and (isinstance(part, str) or part.left)
    return has_touched or _visible(part)[:1] in SEPARATORS


def _visible(part: Tag | str) -> str:
    return part.visible if isinstance(part, Tag) else part
