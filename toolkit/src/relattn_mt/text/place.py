"""Put the tags of a text into its translation, as marks or as they are written.

Each tag occurs exactly once in the translation, unchanged. The word alignment determines its place: a pair of tags
encloses the words that are aligned with the words it enclosed, and any other tag stands next to the word that is
aligned with its neighbour. An emoji or symbol at the beginning or the end of the line stays there. If the neighbours
have no alignment, the place is a guess, and the tag is reported. A tag of a pair within a word, as in `H<sub>2</sub>O`,
stays within the translated word if that word has the same text before or after the tag.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from relattn_mt.data.text_files import has_text
from relattn_mt.text.marked import MARK, Marked, join
from relattn_mt.text.patterns import UNITS
from relattn_mt.text.strip import (
    CLOSING,
    CLOSING_MARKS,
    NO_SPACE_AFTER,
    NO_SPACE_BEFORE,
    OPENING,
    OPENING_MARKS,
    SEPARATORS,
    SPACE,
    StrippedText,
    Tag,
)

if TYPE_CHECKING:
    from relattn_mt.text.alignment import Links

_WORD = re.compile(r"[^ ]+")
_SEPARATOR = re.compile(f"[{''.join(SEPARATORS)}](?!\\d)")
_BEGINS_WORD, _ENDS_WORD = re.compile(r"\w|[€£¥$]\d"), re.compile(rf"\w$|\d ?(?:{UNITS})$|(?:://|www\.)\S*$")
_HAS_WORD, _SIGN = re.compile(r"\w"), re.compile(r"([^\w\s])")


def place(stripped: StrippedText, translation: str, links: Links) -> tuple[Marked, list[str]]:
    """Return a translation with the tags of its source, and the tags whose place is a guess.

    `links` is the alignment with `stripped.line`, of at most one link per target word.

    If no word changes, the result is the source: no tag moves, and all spaces stay.
    """
    if translation == stripped.line or not has_text(stripped.line):
        return stripped.original, []
    source, target = (list(_WORD.finditer(text)) for text in (stripped.line, translation))
    aligned: dict[int, list[int]] = {}  # source word -> target words
    for source_index, target_index in sorted(links):
        aligned.setdefault(source_index, []).append(target_index)
    offsets: dict[int, int] = {}  # index of the tag -> offset in the translation
    uncertain = []
    tags = list(stripped.tags)
    source_of = {target_index: source_index for source_index, target_index in links}
    sources = [source_of.get(target_index) for target_index in range(len(target))]
    spans = _target_spans(stripped, source, sources)
    cuts = _cuts(stripped, source, target, sources)
    separators = _separator_offsets(stripped.line), _separator_offsets(translation)
    for number, tag in enumerate(stripped.tags):
        if number in spans:
            offsets[number] = _offset_of_paired_tag(number, stripped, target, spans[number], cuts)
        else:
            anchor = stripped.opening.get(number, number)  # a pair whose words are not aligned stays together
            offsets[number], certain = _offset_in_list(
                tag, stripped.line, translation, *separators
            ) or _offset_by_neighbour(anchor, stripped, source, target, aligned)
            if not certain:
                uncertain.append(tag.content.text)
                if tag.kind == "single":  # it must not touch another word
                    tags[number] = replace(tag, left=False, right=False, divides=False)
    _move_into_pairs(offsets, {number: tags[number] for number in spans}, stripped.line, translation)
    _nest_pairs(offsets, stripped.opening)
    for number in _keep_in_pairs(offsets, stripped):
        at, text = offsets[number], tags[number].visible
        if translation[at - 1 : at].strip() and translation[at : at + 1].strip():  # a pair ends within a word
            left, right = not _BEGINS_WORD.match(text), not _ENDS_WORD.search(text)
            tags[number] = replace(tags[number], left=left, right=right)
    lost = {  # tags of pairs whose words have no translation
        number
        for closing, opening in stripped.opening.items()
        for number in (opening, closing)
        if offsets[opening] == offsets[closing] and tags[opening].at < tags[closing].at
    }
    placed = _insert(translation, _sort_tags(offsets, stripped.opening), tags, lost)
    return placed, [*filter(None, uncertain), *_damaged(stripped, translation, placed.text)]


def _damaged(stripped: StrippedText, translation: str, text: str) -> list[str]:
    """Return what was not translated and occurs less often in a text than in its line and in the translation alone."""
    if stripped.pattern is None:
        return []
    line, alone, found = (
        Counter(match[0] for match in stripped.pattern.finditer(each))
        for each in (stripped.original.text, translation, text)
    )
    return list((line & (line + alone - found)).elements())


def _target_spans(
    stripped: StrippedText, source: list[re.Match[str]], sources: Sequence[int | None]
) -> dict[int, tuple[int, int]]:
    """Return the first and the last target word that each opening and closing tag encloses.

    `sources` is the source word that each target word is aligned with.
    """
    spans: dict[int, tuple[int, int]] = {}
    outermost: list[int] = []  # opening tags of the pairs so far that are in none of the others
    bare_ranges = [[word.start() + offset for offset in _range_without_punctuation(word[0])] for word in source]
    for closing, opening in stripped.opening.items():  # inner pairs first
        begin, end = stripped.tags[opening].at, stripped.tags[closing].at
        inner = {i for i, (first, last) in enumerate(bare_ranges) if last > begin and first < end}
        words = inner or {
            i for i, word in enumerate(source) if word.end() > begin and word.start() < end and begin < end
        }
        aligned_range = _longest_aligned_range(sources, words)
        ranges = [aligned_range] if aligned_range else []
        while outermost and outermost[-1] > opening:
            ranges.append(spans[outermost.pop()])
        if ranges:
            spans[opening] = spans[closing] = min(s[0] for s in ranges), max(s[1] for s in ranges)
            outermost.append(opening)
    return spans


def _longest_aligned_range(source_of: Sequence[int | None], words: set[int]) -> tuple[int, int] | None:
    """Return the first and the last target word of the run with the most target words aligned with `words`.

    A run may contain words without alignment, but none that are aligned with other words. The spans of different source
    words therefore never overlap.
    """
    best: tuple[int, int, int] | None = None
    first, count = 0, 0
    for target_index, source_index in enumerate(source_of):
        if source_index in words:
            first, count = (target_index, 1) if count == 0 else (first, count + 1)
            if best is None or count > best[0]:
                best = count, first, target_index
        elif source_index is not None:
            count = 0
    return None if best is None else best[1:]


@dataclass(frozen=True)
class _Cut:
    """Place of a tag within a word: an offset in the translation of the word, from target word `first` to `last`."""

    offset: int
    first: int
    last: int


def _cuts(
    stripped: StrippedText, source: list[re.Match[str]], target: list[re.Match[str]], sources: Sequence[int | None]
) -> dict[int, _Cut]:
    """Return the places of those tags of pairs that stand within a word. `sources` are those of `_target_spans`."""
    starts = [word.start() for word in source]
    tags_by_word: dict[int, list[int]] = {}  # source word -> tags
    for number in sorted({*stripped.opening, *stripped.opening.values()}):
        tag = stripped.tags[number]
        i = bisect_right(starts, tag.at) - 1
        if i >= 0 and source[i].start() < tag.at < source[i].end():
            tags_by_word.setdefault(i, []).append(number)
    cuts: dict[int, _Cut] = {}
    for i, numbers in tags_by_word.items():
        aligned_range = _longest_aligned_range(sources, {i})
        if aligned_range is not None:
            begin, end = target[aligned_range[0]].start(), target[aligned_range[1]].end()
            word_offsets = [stripped.tags[number].at - starts[i] for number in numbers]
            closes = {
                stripped.tags[number].at - starts[i]
                for number in numbers
                if number in stripped.opening and stripped.tags[stripped.opening[number]].at < stripped.tags[number].at
            }
            target_offsets = _match(source[i][0], target[0].string[begin:end], word_offsets, closes)
            cuts |= {
                number: _Cut(begin + target_offsets[word_offset], *aligned_range)
                for word_offset, number in zip(word_offsets, numbers, strict=True)
            }
    return cuts


def _match(word: str, translation: str, word_offsets: Sequence[int], closes: set[int]) -> dict[int, int]:
    """Return the offset in a translation for each of some offsets in a word, in the same order.

    If neither a part beside it nor all signs of the word are the same in the translation, the offset is the end of the
    translation if a tag is closed there, and its start otherwise, or as near to that as the order allows.
    """
    target_offsets: dict[int, int] = {}
    parts, others = (_SIGN.split(each) for each in (word, translation))  # as in and/or
    is_same = parts[1::2] == others[1::2]
    beside_signs = dict(zip(*(accumulate(map(len, each)) for each in (parts, others)), strict=True)) if is_same else {}
    for offset in word_offsets:
        before, after = word[:offset], word[offset:]
        if not before.strip(OPENING_MARKS):
            target_offsets[offset] = _begin(translation, before, after)
        elif not after.strip(CLOSING_MARKS):
            target_offsets[offset] = _end(translation, before, after)
        elif translation.startswith(before):
            target_offsets[offset] = offset
        elif translation.endswith(after):
            target_offsets[offset] = len(translation) - len(word) + offset
            if offset in closes:
                target_offsets[offset] = len(translation[: target_offsets[offset]].rstrip(SPACE))
        elif offset in beside_signs:
            target_offsets[offset] = beside_signs[offset]
    lower = 0
    for offset in sorted(set(word_offsets)):
        if offset in target_offsets:
            lower = target_offsets[offset] = max(lower, target_offsets[offset])
    next_offset = len(translation)
    upper: dict[int, int] = {}
    for offset in sorted(set(word_offsets), reverse=True):
        next_offset = target_offsets.get(offset, next_offset)
        upper[offset] = next_offset
    lower, result = 0, {}
    for offset in sorted(set(word_offsets)):
        lower = result[offset] = upper[offset] if offset in target_offsets or offset in closes else lower
    return result


def _offset_of_paired_tag(
    number: int, stripped: StrippedText, target: list[re.Match[str]], span: tuple[int, int], cuts: dict[int, _Cut]
) -> int:
    """Return the offset in the translation of a tag of a pair that encloses words."""
    tag, line, cut = stripped.tags[number], stripped.line, cuts.get(number)
    is_open = tag.kind == "open"
    if cut is not None and (cut.first == span[0] if is_open else cut.last == span[1]):
        return cut.offset
    word, offset = (target[span[0]], _begin) if is_open else (target[span[1]], _end)
    return word.start() + offset(word[0], line[: tag.at], line[tag.at :])


def _move_into_pairs(offsets: dict[int, int], tags: dict[int, Tag], line: str, translation: str) -> None:
    """Move tags over a space of the translation that the pair encloses in the line. No two pairs enclose the same."""
    ends = set()
    for number, tag in tags.items():
        if tag.kind == "close" and translation[offsets[number] :][:1] == line[: tag.at][-1:] == SPACE:
            offsets[number] += 1
            ends.add(offsets[number])
    for number, tag in tags.items():
        start = offsets[number]
        is_moved = tag.kind == "open" and line[tag.at :][:1] == translation[:start][-1:] == SPACE
        offsets[number] -= is_moved and start not in ends


def _nest_pairs(offsets: dict[int, int], opening: dict[int, int]) -> None:
    """Move the tags of a pair that is within another pair in the line into that pair."""
    enclosing: list[int] = []  # closing tags of the pairs around a pair
    for opening_tag, closing_tag in sorted((opening_tag, closing_tag) for closing_tag, opening_tag in opening.items()):
        while enclosing and enclosing[-1] < opening_tag:
            enclosing.pop()
        offsets[closing_tag] = max(offsets[opening_tag], offsets[closing_tag])
        if enclosing:
            lower, upper = offsets[opening[enclosing[-1]]], offsets[enclosing[-1]]
            for number in (opening_tag, closing_tag):
                offsets[number] = min(max(lower, offsets[number]), upper)
        enclosing.append(closing_tag)


def _sort_tags(offsets: dict[int, int], opening: dict[int, int]) -> list[tuple[int, int]]:
    """Return (offset, tag) in the order of the translation. A pair that would overlap another ends earlier."""
    closing = {first: last for last, first in opening.items()}
    ranks = _ranks(offsets, opening)
    inserted: list[tuple[int, int]] = []
    opened: list[int] = []
    ended: set[int] = set()
    for number in sorted(offsets, key=lambda number: (offsets[number], ranks[number], number)):
        if number in ended:
            continue
        if number in closing:
            opened.append(number)
        while number in opening and (first := opened.pop()) != opening[number]:
            inserted.append((offsets[number], closing[first]))
            ended.add(closing[first])
        inserted.append((offsets[number], number))
    return inserted


def _ranks(offsets: dict[int, int], opening: dict[int, int]) -> dict[int, int]:
    """Return, for each tag, its rank among those with the same offset, so that pairs are nested.

    Pairs that end there come first, with what they enclose, and those that begin there come last.
    """
    closing = {first: last for last, first in opening.items()}
    ranks: dict[int, int] = {}
    enclosing: list[int] = []  # opening tags of pairs that have a length, innermost last
    for number, offset in offsets.items():
        first, last = opening.get(number, number), closing.get(opening.get(number, number), number)
        has_length = offsets[first] < offsets[last]
        if number == first and has_length:
            enclosing.append(number)
        ranks[number] = 1
        if enclosing:
            begin, end = offsets[enclosing[-1]], offsets[closing[enclosing[-1]]]
            ranks[number] = 0 if offset == end else 2 if offset == begin else 1
        if number == last and has_length:
            enclosing.pop()
    return ranks


def _range_without_punctuation(text: str) -> tuple[int, int]:
    """Return the range of a text without punctuation around it."""
    begin = len(text) - len(text.lstrip(OPENING_MARKS))
    return begin, max(begin, len(text.rstrip(CLOSING_MARKS)))


def _begin(word: str, before: str, after: str) -> int:
    """Return the offset in a target word of a tag between two parts of a line, of which the second is translated.

    It is after the opening brackets if the tag stood after such. If it stood between two, it is after as many.
    """
    marks, outside = _range_without_punctuation(word)[0], len(before) - len(before.rstrip(OPENING_MARKS))
    return min(marks, outside) if after.startswith(OPENING) else marks if outside else 0


def _end(word: str, before: str, after: str) -> int:
    """Return the offset in a target word of a tag between two parts of a line, of which the first is translated.

    It is before the punctuation if the tag stood before such. If it stood between two marks, it is before as many.
    """
    marks = len(word) - _range_without_punctuation(word)[1]
    outside = 0 if before.endswith(SPACE) else len(after) - len(after.lstrip(CLOSING_MARKS))
    return len(word) - (min(marks, outside) if before.endswith(CLOSING) else marks if outside else 0)


def _separator_offsets(text: str) -> dict[str, list[int]]:
    """Return the offsets of each separator of items in a text, without those between digits."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for match in _SEPARATOR.finditer(text):
        offsets[match[0]].append(match.start())
    return offsets


def _offset_in_list(
    tag: Tag, line: str, translation: str, source: dict[str, list[int]], target: dict[str, list[int]]
) -> tuple[int, bool] | None:
    """Return what `_offset_by_neighbour` does for an item of a list that has as many separators in the translation.

    `source` and `target` are the offsets of the separators in the line and in the translation.
    """
    if tag.content.tail in SEPARATORS and not tag.at:
        return 0, True
    if tag.content.head not in SEPARATORS:
        return None
    if not line[tag.at :].strip():
        return len(translation.rstrip()), True
    offsets, target_offsets = source.get(line[tag.at], []), target.get(line[tag.at], [])
    index = bisect_left(offsets, tag.at)
    if offsets[index : index + 1] != [tag.at] or len(offsets) != len(target_offsets):
        return None
    return target_offsets[index], True


def _offset_by_neighbour(
    number: int,
    stripped: StrippedText,
    source: list[re.Match[str]],
    target: list[re.Match[str]],
    aligned: dict[int, list[int]],
) -> tuple[int, bool]:
    """Return the offset in the translation of a tag beside a word, and whether that is its neighbour."""
    tag, line, tags = stripped.tags[number], stripped.line, stripped.tags
    before = bisect_left(source, tag.at, key=re.Match.start) - 1
    after = bisect_right(source, tag.at, key=re.Match.end)
    follows = not (tag.right and not tag.left)  # whether it belongs to the word before it
    if (edge := _edge(number, stripped)) is not None:
        follows = tags[edge].kind == "close"
    begin, end = 0, target[-1].end() if target else 0
    is_first, is_last = not line[: tag.at].strip(), not line[tag.at :].strip()
    is_symbol = tag.kind == "single" and not tag.content.marks and not _HAS_WORD.search(tag.content.text)
    if edge is None and is_symbol and is_first != is_last:
        return begin if is_first else end, True
    words = list(aligned)
    place = bisect_right(words, before), bisect_left(words, after)
    choices = [(before - words[place[0] - 1], not follows, True)] if place[0] else []
    if place[1] < len(words):
        choices.append((words[place[1]] - after, follows, False))
    if not choices:
        return begin if is_first else end, False
    distance, _, is_before = min(choices)
    index, offset = (max(aligned[words[place[0] - 1]]), _end) if is_before else (min(aligned[words[place[1]]]), _begin)
    word = target[index]
    return word.start() + offset(word[0], line[: tag.at], line[tag.at :]), distance == 0


def _edge(number: int, stripped: StrippedText) -> int | None:
    """Return the tag of a pair whose first or last word a single tag stands for, if any."""
    tags, line = stripped.tags, stripped.line
    edges = []
    if tags[number].kind == "single":
        if number > 0 and tags[number - 1].kind == "open" and not line[tags[number - 1].at : tags[number].at].strip():
            edges.append(number - 1)
        following = tags[number + 1] if number + 1 < len(tags) else None
        if following is not None and following.kind == "close" and not line[tags[number].at : following.at].strip():
            edges.append(number + 1)
    return edges[0] if len(edges) == 1 else None


def _keep_in_pairs(offsets: dict[int, int], stripped: StrippedText) -> list[int]:
    """Move single tags that a pair encloses into it, or to its end if they stand there, and return those that moved."""
    closing = {first: last for last, first in stripped.opening.items()}
    enclosing: list[int] = []  # opening tags
    moved = []
    for number, tag in enumerate(stripped.tags):
        if tag.kind == "open":
            enclosing.append(number)
        elif tag.kind == "close":
            enclosing.pop()
        elif enclosing:
            edge = _edge(number, stripped)
            lower, upper = offsets[enclosing[-1]], offsets[closing[enclosing[-1]]]
            at = min(max(lower, offsets[number]), upper) if edge is None else offsets[edge]
            if at != offsets[number]:
                moved.append(number)
            offsets[number] = at
    return moved


def _insert(translation: str, inserted: list[tuple[int, int]], tags: Sequence[Tag], lost: set[int]) -> Marked:
    """Insert tags at offsets of a translation, with spaces where the source had them, but not next to `lost` tags."""
    at, needs_space = 0, False  # needs_space: a space precedes the next segment
    divides = False  # whether the last tag has the place of a space
    last_character = ""  # before the tags of pairs at the end of the text
    previous = ""  # kind of the last tag since the last segment; a closing tag after a single tag does not count
    after_word = False  # whether a single tag before ends with a number or a word, which must not touch another one
    parts: list[Marked] = []
    last = ""  # character or mark at the end of the parts

    def add(part: Marked, needs_space: bool, begin: int, touching: Sequence[str] = ("", SPACE, *SEPARATORS)) -> None:
        nonlocal last
        outside = "" if translation.count('"', 0, begin) % 2 else '"'  # a mark that ends before it, or begins there
        before, after = last not in NO_SPACE_AFTER or last == outside, part.head not in touching or part.head == outside
        if needs_space and last and part.head and before and after:
            parts.append(Marked(SPACE))
            last = SPACE
        parts.append(part)
        last = part.tail or last

    for offset, number in inserted:
        tag = tags[number]
        begin, at, segment = at, offset, translation[at:offset]
        if segment:
            segment, divides = segment.removeprefix(SPACE * divides), False
        add(Marked(segment), needs_space or (after_word and segment[:1].isalnum()), begin, NO_SPACE_BEFORE)
        if segment:
            needs_space, last_character, previous, after_word = False, segment[-1:], "", False
        if number in lost:
            add(tag.content, False, at)
            continue
        if tag.kind == "close" and previous == "single":  # the space after the single tag follows the pair
            add(tag.content, not tag.left, at)
            continue
        visible = tag.visible
        is_word = bool(_BEGINS_WORD.match(visible))
        is_first = previous == "open" and not (is_word and last_character.isalnum())  # of a pair
        space = needs_space or (tag.kind == "single" and not tag.left and not is_first)
        touches = last.isalnum() and (visible[:1] == tag.content.head or not tag.left)
        add(tag.content, space or (is_word and touches), at)
        after_word = tag.kind == "single" and bool(_ENDS_WORD.search(visible))
        needs_space, previous = tag.kind != "close" and not tag.right, tag.kind
        if tag.kind == "open" and (last_character == SPACE or (not last_character and tag.at)):
            needs_space = False
        if tag.kind == "single":
            last_character, divides = tag.content.tail, tag.divides
            if visible[1:] and visible[0] == visible[-1]:  # a quotation mark that closes
                last = MARK
    rest = translation[at:].removeprefix(SPACE * divides)
    add(Marked(rest), needs_space or (after_word and rest[:1].isalnum()), at, NO_SPACE_BEFORE)
    return join(parts)
