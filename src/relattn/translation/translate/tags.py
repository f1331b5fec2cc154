"""Tags and other parts of a line that are not translated: removed before, and restored in the translation.

These are tags of markup (`<b>`, `</b>`, `<br/>`), placeholders (`{name}`, `%s`, `%(n)d`), web and e-mail addresses, and
numbers with a unit (`5 km`, `12.5%`). Below, all of them are called tags. Each occurs exactly once in the translation,
unchanged. The word alignment determines its place: a pair of tags encloses the words that are aligned with the words it
enclosed, and any other tag stands next to the word that is aligned with its neighbour. If the neighbours have no
alignment, the place is a guess, and the tag is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.translate.alignment import Links

_UNITS = (
    "km/h|m/s|km|cm|mm|nm|m|ft|mi|kg|mg|g|lb|oz|ml|cl|l|kB|MB|GB|TB|Hz|kHz|MHz|GHz|kWh|kW|MW|W|mV|V|mA|A|dB|px|pt"
    "|°C|°F|°|%|‰|€|£|¥|\\$"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_TAG = re.compile(
    "|".join(
        (
            r"(?P<close></[A-Za-z][^<>]*>)",
            r"(?P<single><[A-Za-z][^<>]*/>|<!--.*?-->)",
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
_CORE = re.compile(r"\w(?:.*\w)?")  # a word without the punctuation around it
_OPENING, _CLOSING = tuple("([{«„“‘¿¡\"'"), tuple(".,;:!?)]}»”’…\"'")
_NO_SPACE_AFTER, _NO_SPACE_BEFORE = ("", _SPACE, *_OPENING), ("", _SPACE, *_CLOSING)


@dataclass
class Tag:
    """A tag that was removed from a line.

    Attributes:
        text: the tag as it is written.
        kind: "open", "close" or, if it is not one of a pair, "single".
        at: number of characters before it in the stripped line.
        left: whether a word stood directly before it, without a space.
        right: whether a word stood directly after it, without a space.
    """

    text: str
    kind: str
    at: int
    left: bool
    right: bool


@dataclass(frozen=True)
class StrippedLine:
    """A line without its tags.

    Attributes:
        line: the text without tags.
        tags: the tags, in the order of the line.
        opening: index of each closing tag -> index of the tag that it closes.
        original: the whole line.
    """

    line: str
    tags: tuple[Tag, ...]
    opening: dict[int, int]
    original: str


def strip_tags(line: str) -> StrippedLine:
    """Remove the tags from a line."""
    text, end = "", 0
    tags: list[Tag] = []
    opening: dict[int, int] = {}
    waiting: list[int] = []  # indices of tags that may still be closed: pairs are nested and do not overlap
    for match in [*_TAG.finditer(line), None]:
        after = line[end : len(line) if match is None else match.start()]
        if tags and (not text or text.endswith(_SPACE)):  # the spaces on both sides of the tag are left
            after = after.lstrip(_SPACE)
            if after[:1] in ("", *_CLOSING):
                text = text.rstrip(_SPACE)
                for tag in reversed(tags):
                    if tag.at <= len(text):
                        break
                    tag.at = len(text)
        text += after
        if match is not None:
            end = match.end()
            left = line[: match.start()][-1:] not in _NO_SPACE_AFTER
            right = line[end:][:1] not in _NO_SPACE_BEFORE
            tags.append(Tag(match[0], "single", len(text), left, right))
            number = len(tags) - 1
            if match.lastgroup == "open":
                waiting.append(number)
            elif match.lastgroup == "close":
                same = [place for place, other in enumerate(waiting) if _name(tags[other]) == _name(tags[number])]
                if same:
                    opening[number] = waiting[same[-1]]
                    tags[number].kind, tags[opening[number]].kind = "close", "open"
                    del waiting[same[-1] :]
    return StrippedLine(text, tuple(tags), opening, line)


def restore_tags(stripped: StrippedLine, translation: str, links: Links) -> tuple[str, list[str]]:
    """Return a translation with the tags of its source, and the tags whose place is a guess.

    Args:
        stripped: source line.
        translation: translation of `stripped.line`.
        links: word alignment, with at most one link per target word.
    """
    if not stripped.line.strip():
        return stripped.original, []
    source, target = (list(_WORD.finditer(text)) for text in (stripped.line, translation))
    aligned: dict[int, list[int]] = {}  # source word -> target words
    for word, place in links:
        aligned.setdefault(word, []).append(place)
    inserted: list[tuple[int, int]] = []  # (offset in the translation, index of the tag)
    guessed = []
    spans = _spans(stripped, source, target, links)
    for number, tag in enumerate(stripped.tags):
        if number in spans:
            first, last = spans[number]
            is_open = tag.kind == "open"
            offset = _start(target[first], stripped.line, tag) if is_open else _end(target[last], stripped.line, tag)
        else:
            anchor = stripped.tags[stripped.opening.get(number, number)]  # a pair that encloses nothing stays together
            offset, certain = _neighbour(anchor, stripped.line, source, target, aligned)
            if not certain:
                guessed.append(tag.text)
        inserted.append((offset, number))
    return _insert(translation, sorted(inserted), stripped.tags), guessed


def _spans(
    stripped: StrippedLine, source: list[re.Match[str]], target: list[re.Match[str]], links: Links
) -> dict[int, tuple[int, int]]:
    """Return the first and the last target word that each opening and closing tag encloses."""
    spans: dict[int, tuple[int, int]] = {}
    source_of = {place: word for word, place in links}
    for closing, opening in stripped.opening.items():  # inner pairs first
        begin, end = stripped.tags[opening].at, stripped.tags[closing].at
        words = {i for i, word in enumerate(source) if word.end() > begin and word.start() < end}
        run = _longest_run([source_of.get(place) for place in range(len(target))], words)
        covered = [span for number, span in spans.items() if opening < number < closing] + ([run] if run else [])
        if covered:
            spans[opening] = spans[closing] = min(s[0] for s in covered), max(s[1] for s in covered)
    return spans


def _longest_run(source_of: Sequence[int | None], words: set[int]) -> tuple[int, int] | None:
    """Return the first and the last target word of the run with the most target words aligned with `words`.

    A run may contain words without alignment, but none that are aligned with other words. The spans of different source
    words therefore never overlap.
    """
    best: tuple[int, int, int] | None = None
    first, count = 0, 0
    for place, word in enumerate(source_of):
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
    """Return the offset before a target word, or after its opening brackets if the tag stood after such in `line`."""
    return word.start() + (_core(word[0])[0] if line[: tag.at][-1:] in _OPENING else 0)


def _end(word: re.Match[str], line: str, tag: Tag) -> int:
    """Return the offset after a target word, or before its punctuation if the tag stood before such in `line`."""
    return word.start() + (_core(word[0])[1] if line[tag.at :][:1] in _CLOSING else len(word[0]))


def _core(word: str) -> tuple[int, int]:
    """Return the range of the letters and digits of a word; if it has none, an empty range after its opening marks."""
    match = _CORE.search(word)
    opening = len(word) - len(word.lstrip("".join(_OPENING)))
    return match.span() if match else (opening, opening)


def _neighbour(
    tag: Tag, line: str, source: list[re.Match[str]], target: list[re.Match[str]], aligned: dict[int, list[int]]
) -> tuple[int, bool]:
    """Return the offset in the translation of a tag that encloses nothing, and whether a neighbour is aligned."""
    before = max((i for i, word in enumerate(source) if word.start() < tag.at), default=-1)
    after = min((i for i, word in enumerate(source) if word.end() > tag.at), default=len(source))
    follows = not (tag.right and not tag.left)  # whether it belongs to the word before it
    for distance in range(len(source) + 1):
        for is_before in (follows, not follows):
            word = before - distance if is_before else after + distance
            if word not in aligned:
                continue
            if is_before:
                return _end(target[max(aligned[word])], line, tag), distance == 0
            return _start(target[min(aligned[word])], line, tag), distance == 0
    return target[-1].end() if target else 0, False


def _insert(translation: str, inserted: list[tuple[int, int]], tags: Sequence[Tag]) -> str:
    """Insert tags at offsets of a translation, with spaces where the source had them."""
    text, at, spaced = "", 0, False  # spaced: a space precedes the next part
    for offset, number in inserted:
        tag = tags[number]
        words, at = translation[at:offset], offset
        text = _join(text, words, spaced)
        text = _join(text, tag.text, (spaced and not words) or (tag.kind != "open" and not tag.left))
        spaced = tag.kind != "close" and not tag.right
    return _join(text, translation[at:], spaced)


def _join(text: str, more: str, spaced: bool) -> str:
    spaced = spaced and text[-1:] not in _NO_SPACE_AFTER and more[:1] not in _NO_SPACE_BEFORE
    return text + (_SPACE if spaced else "") + more
