"""Put the tags of a text into its translation, as marks or as they are written.

Each tag occurs exactly once in the translation, unchanged. Its place is beside a word of the translation, or in one:

- An element, which is a pair of tags, encloses the words that are aligned with its words. If there are none, and it had
  a letter or digit, it takes the nearest word that no other element has, or else nests. Both are guesses.
- A tag of a pair within a word, as in `H<sub>2</sub>O`, stays there if the translated word begins or ends as the word.
- Any other tag stands beside the word that is aligned with its neighbour. If the neighbours have no alignment, that is
  a guess. An emoji or symbol at the beginning or the end of the line stays there, and an item of a list in its place.

Elements are nested. What touched a word touches one again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from relattn_mt.data.text_files import has_text
from relattn_mt.text.alignment import Links
from relattn_mt.text.marked import Marked, join
from relattn_mt.text.patterns import UNITS
from relattn_mt.text.strip import CLOSING, CLOSING_MARKS, OPENING, OPENING_MARKS, SEPARATORS, SPACE, StrippedText, Tag
from relattn_mt.text.strip import WORD as _WORD

_SEPARATOR = re.compile(f"[{''.join(SEPARATORS)}](?!\\d)")
_BEGINS_WORD, _ENDS_WORD = re.compile(r"\w|[€£¥$]\d"), re.compile(rf"\w$|\d ?(?:{UNITS})$|(?:://|www\.)\S*$")
_HAS_WORD, _SIGN = re.compile(r"\w"), re.compile(r"([^\w\s])")
_LINKED = 1.5  # how many words farther away a word without a link may be than one that has a link, to be guessed

Span = tuple[int, int]  # the first and the last word


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
    events = list(_nested(placing.root, translation))
    placed = _insert(translation, events, placing.tags)
    return placed, [*filter(None, placing.guessed), *_damaged(stripped, translation, placed.text)]


def _damaged(stripped: StrippedText, translation: str, text: str) -> list[str]:
    """Return what was not translated and occurs less often in a text than in its line and in the translation alone."""
    if stripped.pattern is None:
        return []
    line, alone, found = (
        Counter(match[0] for match in stripped.pattern.finditer(each))
        for each in (stripped.original.text, translation, text)
    )
    return list((line & (line + alone - found)).elements())


@dataclass
class _PlacedTag(Tag):
    """A tag at a word of the line.

    Attributes:
        word: Index of the word before which it stands, or in which; the number of words at the end.
        cut: Number of characters of that word before it; 0 if it does not stand in the word.
    """

    word: int = 0
    cut: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Its word and its cut, which order places in a line."""
        return self.word, self.cut


@dataclass(eq=False)
class _Element:
    """A pair of tags or a single tag, and its place in the translation.

    Attributes:
        first: Index of the opening or single tag; -1 for the whole line.
        last: Index of the closing or single tag.
        parent: The element around it.
        children: Elements in it.
        span: Target words that it encloses.
        begin: Number of characters of the translation before it.
        end: Number of characters of the translation before its end.
    """

    first: int
    last: int
    parent: _Element | None = None
    children: list[_Element] = field(default_factory=list)
    span: Span | None = None
    begin: int = 0
    end: int = 0

    def move(self, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end


class _Placing:
    """Places the tags of a line. Arguments are those of `place`.

    Attributes:
        tags: The tags, of which some no longer touch their neighbours.
        root: The whole line.
        guessed: Tags or words whose place is a guess.
    """

    def __init__(self, stripped: StrippedText, translation: str, links: Links, likeliest: Sequence[int | None]) -> None:
        self.stripped, self.translation = stripped, translation
        self.source, self.target = (list(_WORD.finditer(text)) for text in (stripped.line, translation))
        self.linked: list[int | None] = [None] * len(self.target)  # source word of each target word
        self.aligned: dict[int, list[int]] = {}  # target words of each source word
        for source, target in sorted(links):
            self.linked[target] = source
            self.aligned.setdefault(source, []).append(target)
        for source, likely in enumerate(likeliest):
            if likely is not None:
                self.aligned.setdefault(source, [likely])
        self.aligned = dict(sorted(self.aligned.items()))
        starts, ends = [word.start() for word in self.source], [word.end() for word in self.source]
        self.tags = []
        for tag in stripped.tags:
            word = bisect_right(ends, tag.at)
            cut = max(0, tag.at - starts[word]) if word < len(starts) else 0
            self.tags.append(_PlacedTag(**vars(tag), word=word, cut=cut))
        self.guessed: list[str] = []
        self.takers = [0] * len(self.target)  # number of pairs that enclose each target word
        self.root = _Element(-1, -1, end=len(translation))
        self.pairs: list[_Element] = []  # inner pairs first
        singles = self._build()
        for pair in self.pairs:
            self._enclose(pair, self._longest_run(self._words(pair)))
        for pair in self.pairs:
            if pair.span is None:
                self._guess(pair)
            self._locate(pair)
        for single in singles:
            self._place_single(single)

    def _build(self) -> list[_Element]:
        """Make the elements, and return those of single tags."""
        inner, singles = self.root, []
        for number, tag in enumerate(self.tags):
            if tag.kind == "close":
                inner.last = number
                self.pairs.append(inner)
                assert inner.parent is not None
                inner = inner.parent
                continue
            element = _Element(number, number, inner)
            inner.children.append(element)
            if tag.kind == "open":
                inner = element
            else:
                singles.append(element)
        return singles

    # ---- pairs ----

    def _words(self, pair: _Element) -> range:
        """Return the source words in a pair. A word counts if more of it than punctuation is there, or if none is."""
        opening, closing = self.tags[pair.first], self.tags[pair.last]
        begin, end = opening.word, closing.word + (closing.cut > 0)
        inner_begin, inner_end = begin, end
        if begin < end and opening.cut >= _core(self.source[begin][0])[1]:
            inner_begin += 1
        if begin < end and 0 < closing.cut <= _core(self.source[end - 1][0])[0]:
            inner_end -= 1
        return range(inner_begin, inner_end) if inner_begin < inner_end else range(begin, end)

    def _enclose(self, pair: _Element, run: Span | None) -> None:
        """Let a pair enclose a run of target words, and those of the pairs in it."""
        spans = [child.span for child in pair.children if child.span is not None]
        spans += [run] if run else []
        if spans:
            pair.span = min(span[0] for span in spans), max(span[1] for span in spans)
            for target in range(pair.span[0], pair.span[1] + 1):
                self.takers[target] += 1

    def _longest_run(self, words: range) -> Span | None:
        """Return the first and the last target word of the run with the most target words linked with `words`.

        A run may contain words without a link, but none that are linked with other words. So the runs of different
        source words never overlap.
        """
        best: tuple[int, int, int] | None = None
        first, count = 0, 0
        for target, source in enumerate(self.linked):
            if source is None:
                continue
            if source not in words:
                count = 0
                continue
            first, count = (target, 1) if count == 0 else (first, count + 1)
            if best is None or count > best[0]:
                best = count, first, target
        return None if best is None else best[1:]

    def _guess(self, pair: _Element) -> None:
        """Let a pair with a letter or digit, but without a link, take the likeliest or the nearest free target word."""
        words = self._words(pair)
        if any(child.span for child in pair.children):
            self._enclose(pair, None)
        if pair.span or not self.target or not any(_HAS_WORD.search(self.source[word][0]) for word in words):
            return
        around: list[Span] = []  # spans of the pairs around it, the innermost first
        parent = pair.parent
        while parent is not None:
            around += [parent.span] if parent.span else []
            parent = parent.parent

        def is_free(target: int) -> bool:
            return self.takers[target] == sum(first <= target <= last for first, last in around)

        def distance(target: int) -> float:
            return abs(target - expected) + _LINKED * (self.linked[target] is not None)

        likely = [self.aligned[word][0] for word in words if word in self.aligned]
        first, last = around[0] if around else (0, len(self.target) - 1)
        if likely and first <= likely[0] <= last and is_free(likely[0]):
            best = likely[0]
        else:
            expected = self._expected(words[0])
            best = min(list(filter(is_free, range(first, last + 1))) or range(first, last + 1), key=distance)
            opening = self.tags[pair.first].content.text
            self.guessed.append(opening or " ".join(self.source[word][0] for word in words))
        self._enclose(pair, (best, best))

    def _expected(self, word: int) -> int:
        """Return where the translation of a source word is if the nearest aligned word has it at the same distance."""
        if not self.aligned:
            return word
        nearest = min(self.aligned, key=lambda other: abs(other - word))
        return self.aligned[nearest][0] + word - nearest

    def _locate(self, pair: _Element) -> None:
        """Find the places of the tags of a pair."""
        opening, closing = self.tags[pair.first], self.tags[pair.last]
        if pair.span is None:  # it encloses spaces or punctuation
            at, _ = self._beside(replace(opening, left=True))
            pair.move(at, at)
            return
        pair.move(self._in_span(opening, pair.span), self._in_span(closing, pair.span))
        if pair.begin >= pair.end:
            pair.move(self.target[pair.span[0]].start(), self.target[pair.span[1]].end())
        if not closing.left and self.translation[pair.end :][:1] == SPACE:
            pair.end += 1
        if not opening.right and self.translation[: pair.begin].endswith(SPACE):
            pair.begin -= 1

    def _in_span(self, tag: _PlacedTag, span: Span) -> int:
        """Return the offset of the opening or the closing tag of a pair that encloses a span."""
        is_open = tag.kind == "open"
        begin, end = self.target[span[0]].start(), self.target[span[1]].end()
        if tag.cut == 0:
            return begin if is_open else end
        word = self.source[tag.word][0]
        core = _core(word)
        if tag.cut <= core[0]:
            target = self.target[span[0]]
            return target.start() + _among_opening_marks(word, tag.cut, target[0])
        if tag.cut >= core[1]:
            target = self.target[span[1]]
            return target.start() + _among_closing_marks(word, tag.cut, target[0])
        run = self._longest_run(range(tag.word, tag.word + 1))
        if run is None or run[not is_open] != span[not is_open]:
            return begin if is_open else end
        begin = self.target[run[0]].start()
        return begin + _within(word, tag.cut, self.translation[begin : self.target[run[1]].end()], closes=not is_open)

    # ---- single tags ----

    def _place_single(self, single: _Element) -> None:
        """Find the place of a single tag: in the pair around it, at its edge if it stood there."""
        tag, parent = self.tags[single.first], single.parent
        assert parent is not None
        at = None
        if parent.first >= 0:
            places = self.tags[parent.first].place, self.tags[parent.last].place
            if (places[0] == tag.place) != (places[1] == tag.place):
                at = parent.begin if places[0] == tag.place else parent.end
        if at is None:
            at, is_certain = self._in_list(tag) or self._at_end(tag) or self._beside(tag)
            if not is_certain:
                self.guessed.append(tag.content.text)
                tag = replace(tag, left=False, right=False, divides=False)  # it must not touch another word
            at, free = min(max(parent.begin, at), parent.end), at
            if at != free and self.translation[at - 1 : at].strip() and self.translation[at : at + 1].strip():
                left, right = not _BEGINS_WORD.match(tag.visible), not _ENDS_WORD.search(tag.visible)
                tag = replace(tag, left=left, right=right)
        self.tags[single.first] = tag
        single.move(at, at)

    def _at_end(self, tag: _PlacedTag) -> tuple[int, bool] | None:
        """Return what `_beside` does for a symbol at the beginning or the end of the line."""
        is_symbol = not tag.content.marks and not _HAS_WORD.search(tag.content.text)
        is_first, is_last = tag.place == (0, 0), tag.word == len(self.source)
        if not is_symbol or is_first == is_last:
            return None
        return (0 if is_first else len(self.translation.rstrip())), True

    def _in_list(self, tag: _PlacedTag) -> tuple[int, bool] | None:
        """Return what `_beside` does for an item of a list that has as many separators in the translation."""
        if tag.content.tail in SEPARATORS and tag.place == (0, 0):
            return 0, True
        if tag.content.head not in SEPARATORS:
            return None
        if tag.word == len(self.source):
            return len(self.translation.rstrip()), True
        at = self.source[tag.word].start() + tag.cut
        separator = self.stripped.line[at]
        places, target_places = ([each for mark, each in side if mark == separator] for side in self._separators)
        index = bisect_left(places, at)
        if places[index : index + 1] != [at] or len(places) != len(target_places):
            return None
        return target_places[index], True

    @cached_property
    def _separators(self) -> list[list[tuple[str, int]]]:
        """The separators of items in the line and in the translation, with their offsets, without those of numbers."""
        sides = self.stripped.line, self.translation
        return [[(match[0], match.start()) for match in _SEPARATOR.finditer(side)] for side in sides]

    def _beside(self, tag: _PlacedTag) -> tuple[int, bool]:
        """Return the offset of a tag beside the nearest aligned word, and whether that is its neighbour."""
        before = tag.word - (tag.cut == 0)
        follows = not (tag.right and not tag.left)  # whether it belongs to the word before it
        words = self._aligned_words
        count = bisect_right(words, before), bisect_left(words, tag.word)
        choices = [(before - words[count[0] - 1], not follows, True)] if count[0] else []
        if count[1] < len(words):
            choices.append((words[count[1]] - tag.word, follows, False))
        if not choices:
            is_before = not self.target or (tag.place == (0, 0) and tag.word < len(self.source))
            return (0 if is_before else self.target[-1].end()), False
        distance, _, is_before = min(choices)
        if not is_before:
            return self.target[min(self.aligned[words[count[1]]])].start(), distance == 0
        target = self.target[max(self.aligned[words[count[0] - 1]])]
        if distance or tag.cut == 0:
            return target.end(), distance == 0
        word = self.source[tag.word][0]
        if tag.cut < _core(word)[1]:
            return target.start() + _within(word, tag.cut, target[0], closes=True), True
        return target.start() + _among_closing_marks(word, tag.cut, target[0]), True

    @cached_property
    def _aligned_words(self) -> list[int]:
        return list(self.aligned)


def _core(word: str) -> tuple[int, int]:
    """Return the range of a word without punctuation around it."""
    begin = len(word) - len(word.lstrip(OPENING_MARKS))
    return begin, max(begin, len(word.rstrip(CLOSING_MARKS)))


def _among_opening_marks(word: str, cut: int, target: str) -> int:
    """Return the offset in a target word of a tag after some of the marks that a word begins with: as many, or all."""
    marks = _core(target)[0]
    return marks if cut == _core(word)[0] else min(marks, cut)


def _among_closing_marks(word: str, cut: int, target: str) -> int:
    """Return the offset in a target word of a tag before some of the marks that a word ends with: as many, or all."""
    marks, outside = len(target) - _core(target)[1], len(word) - cut
    return len(target) - (marks if cut == _core(word)[1] else min(marks, outside))


def _within(word: str, cut: int, target: str, *, closes: bool) -> int:
    """Return the offset in the translation of a word of a tag after `cut` of its characters.

    That is where the part before it, the part after it or all signs of the word are the same there, but for capitals,
    and else its end if the tag closes something, or its start.
    """
    before, after = word[:cut], word[cut:]
    if target[:cut].lower() == before.lower():
        return cut
    at = len(target) - len(after)
    if target[max(0, at) :].lower() == after.lower():
        return len(target[:at].rstrip(SPACE)) if closes else at
    parts, target_parts = _SIGN.split(word), _SIGN.split(target)  # as in and/or
    if parts[1::2] == target_parts[1::2]:
        places, target_places = (list(accumulate(map(len, each))) for each in (parts, target_parts))
        if cut in places:
            return target_places[places.index(cut)]
    return len(target) if closes else 0


def _nested(root: _Element, translation: str) -> Iterator[tuple[int, int]]:
    """Yield the offset and the number of each tag, in the order of the translation. Elements are nested."""
    stack = [(root, iter(_arranged(root, translation)))]
    while stack:
        element, children = stack[-1]
        child = next(children, None)
        if child is not None:
            yield child.begin, child.first
            if child.last != child.first:
                stack.append((child, iter(_arranged(child, translation))))
            continue
        stack.pop()
        if element.last >= 0:
            yield element.end, element.last


def _arranged(parent: _Element, translation: str) -> list[_Element]:
    """Return the elements in another one by their places, so that they do not overlap.

    Of two that overlap, the second begins after the first, or nests if there would be nothing left of it.
    """
    for child in parent.children:
        has_words = child.begin < child.end
        child.move(*(min(max(parent.begin, at), parent.end) for at in (child.begin, child.end)))
        if has_words and child.begin >= child.end:
            child.move(parent.begin, parent.end)
    arranged: list[_Element] = []
    for child in sorted(parent.children, key=lambda each: (each.begin, each.end, each.first)):
        before = arranged[-1] if arranged else None
        if before is None or child.begin >= before.end:
            arranged.append(child)
            continue
        rest = translation[before.end : child.end]
        if rest.strip() and not child.children:
            child.begin = child.end - len(rest.lstrip())
            arranged.append(child)
        else:
            before.end = max(before.end, child.end)
            before.children.append(child)
    return arranged


class _Writer:
    """Writes a translation with tags, with a space between two parts of it where the source had one.

    Parts are words and single tags. Tags of pairs wait for the next part, since the space may stand among them.
    """

    def __init__(self) -> None:
        self.parts: list[Marked | str] = []
        self.waiting: list[Tag] = []  # tags of pairs since the last part
        self.gap, self.gap_at = "", 0  # the space of the translation since then, and the number of tags before it
        self.single: Tag | None = None  # the last part, if it is a single tag
        self.tail = ""  # the last character
        self.quotes = 0  # number of quotation marks so far

    def add_gap(self, space: str) -> None:
        self.gap, self.gap_at = space, len(self.waiting)

    def add(self, part: Marked, tag: Tag | None = None) -> None:
        """Write a word, or a single tag."""
        space = self._space(part, tag)
        at = self.gap_at
        if not self.gap:
            closing = [number for number, each in enumerate(self.waiting, start=1) if each.kind == "close"]
            at = max(closing, default=0)
        tags = [each.content for each in self.waiting]
        self.parts += [*tags[:at], space, *tags[at:], part]
        self.waiting, self.gap = [], ""
        self.single, self.tail = tag, part.tail or self.tail
        self.quotes += part.text.count('"')

    def finish(self) -> Marked:
        return join([*self.parts, *(tag.content for tag in self.waiting)])

    def _space(self, part: Marked, tag: Tag | None) -> str:
        """Return the space before a part."""
        before = self.single
        if not self.tail or (before is None and tag is None):
            return self.gap
        divides = (before is not None and before.divides) or (tag is not None and tag.divides)
        if self.gap and not divides:
            return self.gap
        is_apart = (before is not None and not before.right) or (tag is not None and not tag.left)
        if self._would_join(part, tag):
            return SPACE
        return SPACE if is_apart and not self._touches(part, tag) else ""

    def _would_join(self, part: Marked, tag: Tag | None) -> bool:
        """Return whether two words would become one without a space."""
        before = self.single
        begins = part.head.isalnum() if tag is None else bool(_BEGINS_WORD.match(tag.visible)) and part.head != ""
        ends = self.tail.isalnum() if before is None else bool(_ENDS_WORD.search(before.visible))
        return begins and ends

    def _touches(self, part: Marked, tag: Tag | None) -> bool:
        """Return whether punctuation on one side has no space there: quotation marks, by their number so far."""
        opens, closes = self.tail in OPENING, part.head in CLOSING
        if self.tail == '"':
            opens = self.quotes % 2 == 1
        if part.head == '"':
            closes = self.quotes % 2 == 1
        return opens or (closes if tag is None else part.head in SEPARATORS)


def _insert(translation: str, events: Sequence[tuple[int, int]], tags: Sequence[Tag]) -> Marked:
    """Insert tags at offsets of a translation."""
    writer, done = _Writer(), 0
    for offset, number in [*events, (len(translation), -1)]:
        for match in re.finditer(r" +|[^ ]+", translation[done:offset]):
            if match[0][0] == SPACE:
                writer.add_gap(match[0])
            else:
                writer.add(Marked(match[0]))
        done = max(done, offset)
        if number < 0:
            break
        if tags[number].kind == "single":
            writer.add(tags[number].content, tags[number])
        else:
            writer.waiting.append(tags[number])
    return writer.finish()
