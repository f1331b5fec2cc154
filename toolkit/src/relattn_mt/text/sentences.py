"""Splitting of a text into sentences, and joining of their translations.

A sentence ends at the end of a line, at a tab, at a sign such as `|` between two links, or where sentencex (from
Wikimedia) finds its end within a line: before white space, or after a mark of a script that is written without spaces.
White space is kept as it was, and so are the mark of a list item at the beginning of a line and a text without words.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import sentencex

from relattn_mt.support.types import Span
from relattn_mt.text.marked import Mark, Marked, join
from relattn_mt.text.patterns import has_text, literal_pattern, literals_in

_WITHOUT_SPACES = {"ja", "km", "lo", "my", "th", "zh"}  # languages without spaces between words
LONGEST = 1000  # characters per sentence; longer ones are cut, at a space if possible
MOST_PIECES = 220  # of a sentence, by an estimate
_USUAL_WORD = 12  # letters of a word that is one or two pieces
_MARKS = tuple("。．｡！？")  # that end a sentence without white space after it
_CLOSING = "」』”’）】》〉〕］\"')"  # after such a mark
# What sentencex takes for an end: initials, French titles and other abbreviations; in some languages, ordinals.
_ABBREVIATIONS = "M|MM|Mme|Mmes|Mlle|Mlles|Mgr|Me|Approx|approx|Bzw|bzw|Evtl|evtl|Inkl|inkl|Exkl|exkl|Cf|cf"
_ABBREVIATIONS += "|Incl|incl|Excl|excl|Abzgl|abzgl|Zzgl|zzgl|Zzt|zzt|Ggf|ggf|Geb|geb|Fa|Ing"
_ABBREVIATION = re.compile(rf"(?:^|[\s\"'(«„“‘-])(?:[^\W\d_]|{_ABBREVIATIONS})\.$")
_PERHAPS = "Vol|vol|Eq|eq|Fig|Max|max|Min|min|Tel|tel|Ed|ed|Ex|Kap|Abb|Bd"  # before a small letter or a digit
_PERHAPS += "|Mon|Tues?|Wed|Thurs?|Fri|Sat|Sun|Mo|Di|Mi|Do|Fr|Sa|So"
_PERHAPS_ABBREVIATION = re.compile(rf"(?:^|[\s\"'(])(?:{_PERHAPS})\.\s*$")
_ORDINAL = re.compile(r"(?:^|\s)\d{1,2}\.$")
_WITH_ORDINALS = re.compile("(bs|cs|da|de|et|fi|fo|hr|hu|is|lv|nb|nn|no|pl|sk|sl|sr)\\b")
_ENDS = r"[\r\n\t\v\f\x1c-\x1e\x85\u2028\u2029]+"  # of lines, and of the cells of a table
_LIST_MARK = r"(?:[-*+•–—]|\d{1,3}\)|[A-Za-z]\))[ \u00a0]+(?:\[[ xX]\] +)?"  # 1. may be an ordinal
_LIST_MARKS = re.compile(rf"(?:\A|{_ENDS}) *(?P<mark>(?:> ?)+(?:{_LIST_MARK})*|(?:{_LIST_MARK})+)(?=\S)|{_ENDS}")
_SEPARATOR = re.compile("[ \t\u00a0]*[|·•][ \t\u00a0]*")  # between links
_SPACE = re.compile(r"\s")
_BRACKETED_LITERAL = re.compile(rf"[(\[<\"'„“‘«]*(?:{literal_pattern().pattern})")


@dataclass(frozen=True)
class SplitText:
    """Sentences of a text, and the white space or sign before the first, between them and after the last.

    Attributes:
        sentences: The sentences. A pair of marks around several sentences is a pair in each.
        between: The white space or signs, with a separator between sentences of a script without spaces.
        original: The white space without separators.
    """

    sentences: list[Marked]
    between: list[str]
    original: list[str]

    def join(self, translations: Sequence[Marked]) -> Marked:
        """Return the text with its sentences replaced by their translations. If none changes, it is the same text."""
        spaces = list(self.original if list(translations) == self.sentences else self.between)
        for number, (sentence, translation) in enumerate(zip(self.sentences, translations, strict=True)):
            # white space between the text and a mark, which a translation lacks
            if not translation.text[:1].isspace():
                spaces[number] += sentence.text[: len(sentence.text) - len(sentence.text.lstrip())]
            if not translation.text[-1:].isspace():
                spaces[number + 1] = sentence.text[len(sentence.text.rstrip()) :] + spaces[number + 1]
        parts: list[Marked | str] = [spaces[0]]
        last = Marked()
        for number, (sentence, space) in enumerate(zip(translations, spaces[1:], strict=True)):
            if number:
                count = _divided(last, sentence)
                parts[-2] = Marked(last.text, last.marks[: len(last.marks) - count])
                sentence = Marked(sentence.text, sentence.marks[count:])
            parts += [sentence, space]
            last = sentence
        return join(parts)


def split(
    text: Marked,
    language: str,
    separator: str = "",
    known: frozenset[str] | None = None,
    is_kept: bool = False,
    most_pieces: int = MOST_PIECES,
) -> SplitText:
    """Split a text into sentences. Marks do not change where it is split.

    Args:
        text: Any text.
        language: Code of its language. The rules for English are used for languages that sentencex does not know.
        separator: White space to insert between sentences of a script without spaces.
        known: Characters that the tokenizer does not spell in bytes; None: all.
        is_kept: Whether long literals are kept, and not read by the model. They are not cut up to LONGEST characters.
        most_pieces: Maximum number of pieces of a sentence, by an estimate.
    """
    pairs = text.pairs
    sentences: list[Marked] = []
    between = [""]
    opened: list[int] = []  # items of the pairs that began in an earlier sentence
    done = 0  # characters and marks of earlier parts
    first = 0
    for begin, end, stop in _parts(text, language, known, is_kept, most_pieces):
        part = text.text[begin:end]
        between[-1] += text.text[done:begin]
        done = end
        if first == stop and not has_text(part):
            between[-1] += part
            continue
        start = end - len(part.lstrip())
        last = begin + len(part.rstrip())
        if first < stop:
            start = min(start, text.marks[first].at)
            last = max(last, text.marks[stop - 1].at)
        own = text.part(start, last, first, stop)
        before = [Mark(0, "open", item) for item in opened]
        for i in range(first, stop):
            partner = pairs.get(i, i)
            if partner > i:
                opened.append(text.marks[i].item)
            elif partner < i:
                opened.remove(text.marks[i].item)
        after = [Mark(last - start, "close", item) for item in reversed(opened)]
        first = stop
        sentences.append(Marked(own.text, (*before, *own.marks, *after)))
        between[-1] += text.text[begin:start]
        between.append(text.text[last:end])
    between[-1] += text.text[done:]
    spaces = list(between)
    for number, sentence in enumerate(sentences[:-1], start=1):
        if not spaces[number] and _ends_with_mark(sentence.text):
            spaces[number] = separator
    return SplitText(sentences, spaces, between)


def separator_in(language: str) -> str:
    """Return the white space to insert between sentences of a script without spaces that are translated."""
    return "" if language.partition("-")[0] in _WITHOUT_SPACES else " "


def _divided(before: Marked, after: Marked) -> int:
    """Return the number of pairs that end a sentence and begin the next, the outermost first."""
    count = 0
    for closing, opening in zip(reversed(before.marks), after.marks, strict=False):
        is_pair = (closing.kind, opening.kind) == ("close", "open") and closing.item == opening.item
        if not is_pair or before.text[closing.at :].strip() or after.text[: opening.at].strip():
            break
        count += 1
    return count


def _parts(text: Marked, *splitting: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of the sentences with the white space after them, and the number of marks before their ends.

    A part has at most LONGEST characters, besides white space before it that a mark encloses. Ends of lines are in
    none. `splitting` is what `_lengths` gets.
    """
    marks = text.marks
    count = 0
    for begin, end in _lines(text):
        cut = last = begin
        *lengths, _ = [*_lengths(text.text[begin:end], *splitting)] or [0]
        for length in lengths:
            start = last
            last = cut = cut + length
            spoken = start + len(text.text[start:cut].rstrip())  # without white space after it
            while count < len(marks) and marks[count].at <= last:
                mark = marks[count]
                if mark.kind == "open" and mark.at >= spoken:
                    last = mark.at  # this mark and the white space after it belong to the next sentence
                    break
                if mark.kind != "close" and mark.at == last:
                    break
                count += 1
            yield start, last, count
        while count < len(marks) and marks[count].at <= end:
            count += 1
        yield last, end, count


def _lines(text: Marked) -> Iterator[Span]:
    """Yield the ranges of the lines of a text. A mark between two ends of lines is a line without text."""
    places = sorted({mark.at for mark in text.marks})
    ends = []
    for found in _LIST_MARKS.finditer(text.text):
        start, end = found.span("mark") if found["mark"] else (found.end(), found.end())
        has_marks = bisect_left(places, start) < bisect_left(places, end)
        ends.append((found.start(), start if has_marks else end))
    for before, after in pairwise(text.marks):
        # signs that separate links: they are alone between two pairs of marks
        if (before.kind, after.kind) == ("close", "open") and _SEPARATOR.fullmatch(text.text, before.at, after.at):
            ends.append((before.at, after.at))
    begin = 0
    for start, end in sorted(ends):
        if start < begin:
            continue
        yield begin, start
        for place in places[bisect_right(places, start) : bisect_left(places, end)]:
            yield place, place
        begin = end
    yield begin, len(text.text)


def _lengths(line: str, language: str, known: frozenset[str] | None, is_kept: bool, most_pieces: int) -> Iterator[int]:
    """Yield the lengths of the parts of a line, in characters."""
    if known is not None and known.issuperset(line):
        known = None
    begin = 0
    for length in _sentence_lengths(line, language):
        end = begin + length
        while (longest := _longest(line[begin : min(end, begin + LONGEST)], known, most_pieces)) < end - begin:
            space = line.rfind(" ", begin + 1, begin + longest)
            cut = begin + longest if space < 0 else space + 1
            literal = _BRACKETED_LITERAL.match(line, begin, begin + LONGEST) if is_kept and space < 0 else None
            if literal:
                cut = max(cut, literal.end())
            yield cut - begin
            begin = cut
        yield end - begin
        begin = end


def _longest(text: str, known: frozenset[str] | None, most_pieces: int) -> int:
    """Return how many of at most LONGEST characters a part may have."""
    most = len(text) if known is None else 2 * len(text.encode("utf-8", "replace"))
    if most <= most_pieces:
        return len(text)
    return max(1, sum(1 for total in accumulate(_pieces(text, known)) if total <= most_pieces))


def _pieces(text: str, known: frozenset[str] | None) -> Iterator[float]:
    """Yield the estimated pieces of each character: few in a word of usual length, twice its bytes if unknown."""
    letters = 0  # in a row
    for each in text:
        if known is not None and each not in known:
            yield 2 * len(each.encode("utf-8", "replace"))
        elif each.isspace():
            yield letters in (1, 2)
        elif each.isalpha() and 1 <= letters < _USUAL_WORD:
            yield 0.05
        else:
            yield 1
        letters = letters + 1 if each.isalpha() else 0


def _sentence_lengths(line: str, language: str) -> list[int]:
    """Return the lengths of the sentences of a line, in characters; the line is one sentence if sentencex fails."""
    plain = _SPACE.sub(" ", line)  # white space of several bytes makes sentencex panic in Rust
    try:
        found = [len(sentence) for sentence in sentencex.segment(language, plain)]
    except BaseException as error:  # a panic raises no Exception
        if type(error).__name__ != "PanicException":
            raise
        return [len(line)]
    kept = [match.span() for match in literals_in(line)]
    lengths = []
    begin = 0
    end = 0
    has_ordinals = _WITH_ORDINALS.match(language) is not None
    for length in found:
        end += length
        following = plain[end : end + 1]
        is_small = following.isdigit() or following.islower()
        is_abbreviated = is_small and _PERHAPS_ABBREVIATION.search(plain[begin:end][-20:])
        is_inside = is_abbreviated or any(start < end < stop for start, stop in kept)
        if end == len(plain) or (not is_inside and _ends(plain[begin:end], has_ordinals=has_ordinals)):
            lengths.append(end - begin)
            begin = end
    return lengths


def _ends(sentence: str, *, has_ordinals: bool) -> bool:
    """Return whether a sentence that sentencex found ends there, and not within a word or after an abbreviation."""
    text = sentence.rstrip()
    if len(text) == len(sentence):
        return _ends_with_mark(text)
    return not _ABBREVIATION.search(text[-20:]) and not (has_ordinals and _ORDINAL.search(text[-20:]))


def _ends_with_mark(sentence: str) -> bool:
    """Return whether a sentence ends with a mark that needs no white space after it, and perhaps closing marks."""
    return sentence.rstrip(_CLOSING).endswith(_MARKS)
