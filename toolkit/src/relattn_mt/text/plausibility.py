"""Warnings about translations that are probably wrong, found by comparing the text with its source."""

from __future__ import annotations

import re
from collections import Counter
from operator import itemgetter

import numpy as np

from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text, may_have_tags, tag_pattern

EMPTY = "empty"
REPETITION = "repetition"
NUMBERS = "numbers"
TAGS = "tags"
LENGTH = "length"
LONG = "long"  # of a text that was copied, because it is longer than the model can read
# of a repetition: parts in a row, and characters
_TIMES = 4
_LONGEST_PART = 60
_SHORTEST_REPETITION = 11
_NUMBER = re.compile(
    r"([$€£¥]\s?)?(\d{1,3}(?:[ '’\u00a0\u202f]\d{3}(?!\d))+(?:[.,]\d+(?!\d))?|\d+(?:[.,]\d+)*)(\s?[$€£¥%‰])?"
)
_TIME = re.compile(r"\b\d{1,2}[.:]\d\d(?= ?(?:Uhr|h|[ap]\.? ?m)\b)|\b\d{1,2}\.\d{1,2}\.(?= )")  # or a day of a year
_FEWEST_DIGITS = 3  # smaller numbers may be words, or hours of another clock, but for amounts
_MOST_TIMES = 3  # as many pieces as the source, from which on a length is unlikely
_FEWEST_PIECES = 12


def implausibilities(source: str, translation: str, src_pieces: int, tgt_pieces: int) -> tuple[str, ...]:
    """Return what is implausible in a translation, as names in a fixed order.

    | name | meaning |
    |---|---|
    | `empty` | the translation has no text |
    | `repetition` | a part occurs four times in a row, and not in the source |
    | `numbers` | the numbers with three digits, decimals, a currency or a percent sign are not those of the source |
    | `tags` | the tags, placeholders and addresses are not those of the source |
    | `length` | it has over three times as many pieces as the source, or less than a third |
    """
    if not has_text(source):
        return ()
    if not has_text(translation):
        return (EMPTY,)
    shorter, longer = sorted((src_pieces, tgt_pieces))
    found = {
        REPETITION: _repeats(translation) and not _repeats(source),
        NUMBERS: not (_has_numbers(source, translation) and _has_numbers(translation, source)),
        TAGS: _tags(source) != _tags(translation),
        LENGTH: longer >= _FEWEST_PIECES and longer > _MOST_TIMES * shorter,
    }
    return tuple(name for name, is_found in found.items() if is_found)


def _repeats(text: str) -> bool:
    """Return whether a part of a text with a letter or a digit occurs four times in a row."""
    least = _SHORTEST_REPETITION - (_TIMES - 1)  # characters in a row that any repetition has again later
    if len({text[i : i + least] for i in range(len(text))}) == len(text):
        return False
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    for size in range(1, min(_LONGEST_PART, len(text) // 2) + 1):
        run = max(_TIMES * size - 1, _SHORTEST_REPETITION) - size  # of characters that equal those `size` before
        differs = np.flatnonzero(np.concatenate([[True], codes[size:] != codes[:-size], [True]]))
        starts = differs[:-1][np.diff(differs) > run]
        if any(any(map(str.isalnum, text[start : start + size])) for start in starts.tolist()):
            return True
    return False


def _numbers(text: str) -> list[tuple[set[str], bool]]:
    """Return the values of the numbers of a text, several if a mark may be one of decimals, and whether they matter."""
    text = re.sub(r"\d", lambda digit: str(int(digit[0])), text)  # of any script
    return [
        (values, bool(found[1] or found[3]) or max(map(len, values)) >= _FEWEST_DIGITS)
        for found in _NUMBER.finditer(_TIME.sub(" ", text))
        for values in _values(re.sub(r"[^\d.,]", "", found[2]))
    ]


def _values(number: str) -> list[set[str]]:
    """Return the values of a number, by the marks between its digits; those of each part of a date or version."""
    whole, *groups = re.split("[.,]", number)
    marks = re.sub(r"\d", "", number)
    if not groups:
        return [{whole}]
    is_decimal = len(marks) == 1 or (marks[-1] not in marks[:-1] and len({*marks}) == 2)
    thousands = groups[:-1] if is_decimal else groups
    if thousands and (len(whole) > 3 or any(len(group) != 3 for group in thousands)):
        return [{part} for part in (whole, *groups)]
    integer = whole + "".join(thousands)
    values = {f"{integer}.{groups[-1].rstrip('0')}".rstrip(".")} if is_decimal else {integer}
    if len(marks) == 1 and len(groups[-1]) == 3 and len(whole) <= 3:
        values.add(whole + groups[-1])
    return [values]


def _has_numbers(text: str, other: str) -> bool:
    """Return whether each number of a text that matters has a value of its own in another text."""
    rest = [values for values, _ in _numbers(other)]
    for values, _ in sorted(filter(itemgetter(1), _numbers(text)), key=lambda each: len(each[0])):
        equal = next((each for each in rest if each & values), None)
        if equal is None:
            return False
        rest.remove(equal)
    return True


def _tags(text: str) -> Counter[str]:
    """Return the tags of a text. Numbers with a unit may be written in another way."""
    if not may_have_tags(text):
        return Counter()
    from relattn_mt.text.strip import strip

    tags = (tag.content.text for tag in strip(Marked(text), tag_pattern()).tags)
    return Counter(tag for tag in tags if not re.search(r"\d", tag) or tag[0] in "<{%")
