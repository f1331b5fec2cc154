"""What is not to be translated in a line: taken out before, and put back where the words beside it have gone.

Tags of markup (`<b>`, `</b>`, `<br/>`), placeholders (`{name}`, `%s`, `%(n)d`), web and e-mail addresses, and numbers
with a unit (`5 km`, `12.5%`) come out as they went in, once each. A tag that is closed goes around the words that were
written from the words it stood around; everything else stands beside the word that was written from the one beside it.
Which that is the word alignment says. Where it says nothing of the words beside, the place is a guess, and is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.translate.alignment import Links

_UNITS = (
    "km/h|m/s|km|cm|mm|nm|m|ft|mi|kg|mg|g|lb|oz|ml|cl|l|kB|MB|GB|TB|Hz|kHz|MHz|GHz|kWh|kW|MW|W|mV|V|mA|A|dB|px|pt"
    "|°C|°F|°|%|‰|€|£|¥|\\$"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_KEPT = re.compile(
    "|".join(
        (
            r"(?P<close></[A-Za-z][^<>]*>)",
            r"(?P<alone><[A-Za-z][^<>]*/>|<!--.*?-->)",
            r"(?P<open><[A-Za-z][^<>]*>)",
            r"\{\{[^{}]*\}\}|\$?\{[^{}\s]*\}",
            r"%%",
            r"(?<![\w%])%(?:\d+\$|\(\w+\))?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[sdiufFeEgGxXocrp@](?!\w)",
            r"(?:https?|ftp)://[^\s<>\"]*[\w/#=&]|www\.[^\s<>\"]*[\w/#=&]",
            r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
            rf"(?<![\w.,]){_NUMBER}[ \u00a0]?(?:{_UNITS})(?!\w)",
            rf"(?<!\w)[€£¥$]{_NUMBER}(?!\w)",
        )
    )
)
_SPACE = " "
_WORD = re.compile(r"[^ ]+")
_CORE = re.compile(r"\w(?:.*\w)?")  # of a word, without the punctuation around it
_OPENING, _CLOSING = tuple("([{«„“‘¿¡\"'"), tuple(".,;:!?)]}»”’…\"'")
_BEFORE, _AFTER = ("", _SPACE, *_OPENING), ("", _SPACE, *_CLOSING)  # what no space is to follow, or stand before


@dataclass(frozen=True)
class Tag:
    """Something taken out of a line.

    Attributes:
        text: as it stood there.
        kind: "open", "close" or "alone".
        at: characters of the bare line before it.
        left: whether it stood against a word before it.
        right: whether it stood against a word after it.
    """

    text: str
    kind: str
    at: int
    left: bool
    right: bool


@dataclass(frozen=True)
class Bare:
    """A line without what is not to be translated.

    Attributes:
        line: what is left.
        tags: what was taken out, in its order.
        opened: the numbers of tags that close another, and those that they close.
        whole: the line as it was.
    """

    line: str
    tags: tuple[Tag, ...]
    opened: dict[int, int]
    whole: str


def bare(line: str) -> Bare:
    """Take out of a line what is not to be translated."""
    text, end = "", 0
    tags: list[Tag] = []
    for found in [*_KEPT.finditer(line), None]:
        after = line[end : len(line) if found is None else found.start()]
        if tags and (not text or text.endswith(_SPACE)):  # a space too many was left behind
            after = after.lstrip(_SPACE)
            if after[:1] in ("", *_CLOSING):
                text = text.rstrip(_SPACE)
                number = len(tags)
                while number and tags[number - 1].at > len(text):
                    number -= 1
                    tags[number] = replace(tags[number], at=len(text))
        text += after
        if found is not None:
            end = found.end()
            left = line[: found.start()][-1:] not in _BEFORE
            tags.append(Tag(found[0], found.lastgroup or "alone", len(text), left, line[end:][:1] not in _AFTER))
    opened = _opened(tags)
    paired = {number for pair in opened.items() for number in pair}
    kinds = (tag.kind if number in paired else "alone" for number, tag in enumerate(tags))
    return Bare(text, tuple(replace(tag, kind=kind) for tag, kind in zip(tags, kinds, strict=True)), opened, line)


def _opened(tags: Sequence[Tag]) -> dict[int, int]:
    """The number of each tag that closes another, and the other's. What is closed within another is opened there."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for number, tag in enumerate(tags):
        if tag.kind == "open":
            waiting.append(number)
        elif tag.kind == "close":
            same = [place for place, one in enumerate(waiting) if _name(tags[one]) == _name(tag)]
            if same:
                found[number] = waiting[same[-1]]
                del waiting[same[-1] :]
    return found


def restored(of: Bare, translation: str, links: Links) -> tuple[str, list[str]]:
    """A translation with what was taken out of its line, and that of it whose place is a guess.

    Args:
        of: the line.
        translation: of `of.line`.
        links: of their words, each target word in at most one.
    """
    if not of.line.strip():
        return of.whole, []
    source, target = (list(_WORD.finditer(text)) for text in (of.line, translation))
    written: dict[int, list[int]] = {}  # a source word -> the target words written from it
    for word, place in links:
        written.setdefault(word, []).append(place)
    inserted: list[tuple[int, int]] = []  # offset in the translation, number of the tag
    guessed = []
    around = _spans(of, source, target, links)
    for number, tag in enumerate(of.tags):
        if number in around:
            first, last = around[number]
            opens = tag.kind == "open"
            place = _start(target[first], of.line, tag) if opens else _end(target[last], of.line, tag)
            inserted.append((place, number))
            continue
        anchor = of.tags[of.opened.get(number, number)]  # a pair around nothing stays together
        place, sure = _beside(anchor, of.line, source, target, written)
        inserted.append((place, number))
        if not sure:
            guessed.append(tag.text)
    return _assembled(translation, sorted(inserted), of.tags), guessed


def _spans(
    of: Bare, source: list[re.Match[str]], target: list[re.Match[str]], links: Links
) -> dict[int, tuple[int, int]]:
    """Of tags that are closed and of those that close them: the first and the last target word that they go around."""
    spans: dict[int, tuple[int, int]] = {}
    from_word = {place: word for word, place in links}
    for closing, opening in of.opened.items():  # inner ones before outer ones
        begin, end = of.tags[opening].at, of.tags[closing].at
        words = {i for i, word in enumerate(source) if word.end() > begin and word.start() < end}
        found = _longest_run([from_word.get(place) for place in range(len(target))], words)
        covered = [span for number, span in spans.items() if opening < number < closing]
        covered += [found] if found else []
        if covered:
            spans[opening] = spans[closing] = min(s[0] for s in covered), max(s[1] for s in covered)
    return spans


def _longest_run(from_word: Sequence[int | None], words: set[int]) -> tuple[int, int] | None:
    """The first and the last of the target words next to each other of which most are from some source words.

    Words from none may stand among them, words from others may not: so spans of different words never cross.
    """
    best: tuple[int, int, int] | None = None
    first, count = 0, 0
    for place, word in enumerate(from_word):
        if word in words:
            first, count = (place, 1) if count == 0 else (first, count + 1)
            if best is None or count > best[0]:
                best = count, first, place
        elif word is not None:
            count = 0
    return None if best is None else best[1:]


def _name(tag: Tag) -> str:
    return tag.text.strip("</>").split(maxsplit=1)[0].lower()


def _start(word: re.Match[str], line: str, tag: Tag) -> int:
    """Before a target word, or behind the brackets it begins with, where the tag stood behind such."""
    return word.start() + (_core(word[0])[0] if line[: tag.at][-1:] in _OPENING else 0)


def _end(word: re.Match[str], line: str, tag: Tag) -> int:
    """Behind a target word, or before the punctuation it ends with, where the tag stood before such."""
    return word.start() + (_core(word[0])[1] if line[tag.at :][:1] in _CLOSING else len(word[0]))


def _core(word: str) -> tuple[int, int]:
    """Where the letters and digits of a word begin and end; of one without, between what opens and what closes."""
    found = _CORE.search(word)
    opening = len(word) - len(word.lstrip("".join(_OPENING)))
    return found.span() if found else (opening, opening)


def _beside(
    tag: Tag, line: str, source: list[re.Match[str]], target: list[re.Match[str]], written: dict[int, list[int]]
) -> tuple[int, bool]:
    """Where in the translation a tag stands that goes around nothing, and whether the words beside it say so."""
    before = max((i for i, word in enumerate(source) if word.start() < tag.at), default=-1)
    after = min((i for i, word in enumerate(source) if word.end() > tag.at), default=len(source))
    behind = not (tag.right and not tag.left)  # whether it stands behind a word rather than before one
    for distance in range(len(source) + 1):
        for is_before in (behind, not behind):
            word = before - distance if is_before else after + distance
            if word not in written:
                continue
            if is_before:
                return _end(target[max(written[word])], line, tag), distance == 0
            return _start(target[min(written[word])], line, tag), distance == 0
    return target[-1].end() if target else 0, False


def _assembled(translation: str, inserted: list[tuple[int, int]], tags: Sequence[Tag]) -> str:
    """A translation with tags at offsets, apart from the words where they were apart."""
    text, at, apart = "", 0, False  # apart: what comes next is
    for offset, number in inserted:
        tag = tags[number]
        words, at = translation[at:offset], offset
        text = _joined(text, words, apart)
        text = _joined(text, tag.text, (apart and not words) or (tag.kind != "open" and not tag.left))
        apart = tag.kind != "close" and not tag.right
    return _joined(text, translation[at:], apart)


def _joined(text: str, more: str, apart: bool) -> str:
    between = apart and text[-1:] not in _BEFORE and more[:1] not in _AFTER
    return text + (_SPACE if between else "") + more
