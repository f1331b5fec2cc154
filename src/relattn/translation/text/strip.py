"""Parts of a line that are not translated: removed before, and restored in the translation by `tag_restoration.py`.

These are tags of markup (`<b>`, `</b>`, `<br/>`), numbers with a unit (`5 km`, `12.5%`) and literals: placeholders
(`{name}`, `%s`, `%(n)d`), web and e-mail addresses, handles (`@name`), hashtags, emoji and other symbols, long numbers
and identifiers. Below, all of them are called tags.

Tags that touch each other stay together, and so does a pair with what it encloses if that has no word. An item of a
list takes a comma or semicolon with it, so that the model does not read an empty item. A literal or `<br>` between two
words without spaces leaves a space, so that they stay two words. All other spaces become ordinary ones, and invisible
characters are left out, so that the words are those of the tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from relattn.translation.data.normalization import CONTROL, INVISIBLE, SPACES

UNITS = (
    "km/h|m/s|km|cm|mm|nm|m|ft|mi|kg|mg|g|lb|oz|ml|cl|l|kB|MB|GB|TB|Hz|kHz|MHz|GHz|kWh|kW|MW|W|mV|V|mA|A|dB|px|pt"
    "|°C|°F|°|%|‰|€|£|¥|\\$"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_LONG_NUMBER = (  # of 8 digits, or an identifier: capital letters with 4 digits, or a UUID
    r"(?<![\w.,-])(?:\d{8,}|(?=[A-Z0-9_-]*[A-Z])(?=(?:[A-Z_-]*\d){4})[A-Z0-9][A-Z0-9_-]{6,}[A-Z0-9]"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?!\w|[.,]\d)"
)
# Arrows, technical and other symbols, emoji; and what may follow an emoji: a variant, a skin colour, a joined emoji.
_SYMBOLS = "\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
# Other characters than these, and brackets, only belong to a web address if it continues after them.
_INSIDE, _BRACKETED = r"[\w/#=&+~-]", r"\([^\s<>\"()]*+\)|\{[^\s<>\"{}]*+\}|\[[^\s<>\"\[\]]*+\]"
WEB_ADDRESS = (
    r"(?:(?:https?|ftp)://|www\.)"
    rf"(?:[^\s<>\"\w/#=&+~()\[\]{{}}-]*+(?:{_INSIDE}|{_BRACKETED}|[(\[{{](?={_INSIDE})))++"
)
_LITERALS = (
    r"\{\{[^{}]*\}\}|\$?\{[^{}\s]*\}",
    r"%%",
    r"(?<![\w%])%(?:\d+\$|\(\w+\))?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[sdiufFeEgGxXocrp@](?!\w)",
    WEB_ADDRESS,
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"(?<![\w.@/])@[A-Za-z_]\w+",
    r"(?<![\w&#/.])#\w*[^\W\d_]\w*",
    rf"[{_SYMBOLS}][{_SYMBOLS}\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]*|[0-9#*]\ufe0f?\u20e3",
)
SYMBOL = re.compile(_LITERALS[-1])
LITERAL = re.compile("|".join((*_LITERALS, _LONG_NUMBER)))
TAG = re.compile(
    "|".join(
        (
            r"(?P<close></[A-Za-z][^<>]*>)",
            r"(?P<single><[A-Za-z][^<>]*/>|<!--(?:(?!<!--).)*?-->)",
            r"(?P<open><[A-Za-z][^<>]*>)",
            *_LITERALS,
            rf"(?<![\w.,]){_NUMBER}[ \u00a0]?(?:{UNITS})(?!\w)",
            rf"(?<!\w)[€£¥$]{_NUMBER}(?!\w|[.,]\d)",
            _LONG_NUMBER,
        )
    )
)
SPACE = " "
OPENING_MARKS, CLOSING_MARKS = "([{«„“‘¿¡\"'", ".,;:!?)]}»”’…\"'"
OPENING, CLOSING = tuple(OPENING_MARKS), tuple(CLOSING_MARKS)
SEPARATORS = tuple(",;，；、")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "»": "«", "„": "“", "“": "”", "‘": "’", '"': '"', "'": "'"}
_ENDS = ("", *".,;:!?)]}…。，；、")  # what follows the last item of a list, or another item
NO_SPACE_AFTER, NO_SPACE_BEFORE = ("", SPACE, *OPENING), ("", SPACE, *CLOSING)
_LEFT_OUT = INVISIBLE + "".join(sorted(CONTROL))
_AS_SPACES, _WITHOUT_INVISIBLE = str.maketrans(dict.fromkeys(SPACES, SPACE)), str.maketrans("", "", _LEFT_OUT)
_MARKUP = re.compile("<[^<>]*>")
LINE_BREAK = re.compile(r"<br(?:\s[^<>]*)?/?>", re.IGNORECASE)


@dataclass
class Tag:
    """A tag that was removed from a line.

    Attributes:
        text: the tag as it is written.
        kind: "open", "close" or, if it is not one of a pair, "single".
        at: number of characters before it in the stripped line.
        left: whether a word stood directly before it, without a space; tags of pairs between them do not matter.
        right: whether a word stood directly after it, without a space; tags of pairs between them do not matter.
        divides: whether the stripped line has a space in its place.
    """

    text: str
    kind: str
    at: int
    left: bool
    right: bool
    divides: bool = False

    @property
    def visible(self) -> str:
        """Its text without markup."""
        return _MARKUP.sub("", self.text)


@dataclass(frozen=True)
class StrippedLine:
    """A line without its tags.

    Attributes:
        line: the text without tags, with ordinary spaces.
        tags: the tags, in the order of the line.
        opening: index of each closing tag -> index of the tag that it closes.
        original: the whole line.
        pattern: pattern of a tag.
    """

    line: str
    tags: tuple[Tag, ...]
    opening: dict[int, int]
    original: str
    pattern: re.Pattern[str]


@dataclass
class _Part:
    """A part of a line that is not translated: one tag of a pair, or a single tag.

    Attributes:
        kind: as in `Tag`.
        start: offset in the line.
        end: offset after it.
        match: index of the tag of a pair among all matches.
    """

    kind: str
    start: int
    end: int
    match: int


def strip_tags(line: str, pattern: re.Pattern[str] = TAG) -> StrippedLine:
    """Remove the tags from a line.

    Args:
        line: any line.
        pattern: pattern of a tag, with groups named "open" and "close" for those of a pair.
    """
    matches = list(pattern.finditer(line))
    if not matches:
        return StrippedLine(line, (), {}, line, pattern)
    original, line = line, line.translate(_AS_SPACES)  # of the same length
    pairs = _pairs(matches)
    parts = _join_touching(_with_punctuation(line, _join_touching(_parts(line, matches, pairs))))
    outer_left, outer_right = _outer_offsets(parts)
    text, end = "", 0
    tags: list[Tag] = []
    for number, part in enumerate([*parts, None]):
        after = line[end : len(line) if part is None else part.start].translate(_WITHOUT_INVISIBLE)
        if tags and (not text or text.endswith(SPACE)):  # the spaces on both sides of the tag are left
            after = after.lstrip(SPACE)
            if after[:1] in CLOSING or (not after and part is None):
                text = text.rstrip(SPACE)
                for tag in reversed(tags):
                    if tag.at <= len(text):
                        break
                    tag.at = len(text)
        text += after
        if part is not None:
            end = part.end
            left = line[: outer_left[number]].rstrip(_LEFT_OUT)[-1:] not in NO_SPACE_AFTER
            right = line[outer_right[number] :].lstrip(_LEFT_OUT)[:1] not in NO_SPACE_BEFORE
            if part.kind == "close":
                left = line[part.start - 1] != SPACE
            elif part.kind == "open":
                right = line[part.end] != SPACE
            tag = Tag(original[part.start : part.end], part.kind, len(text), left, right)
            if tag.kind == "single" and left and right and text[-1:] not in ("", SPACE):
                tag.divides = bool(tag.visible or LINE_BREAK.match(tag.text))  # unlike `<wbr/>` within a word
            tags.append(tag)
            text += SPACE * tag.divides
    numbers = {part.match: number for number, part in enumerate(parts) if part.kind != "single"}
    opening = {numbers[last]: numbers[first] for last, first in pairs.items() if last in numbers}
    return StrippedLine(text, tuple(tags), opening, original, pattern)


def literals(text: str) -> Counter[str]:
    """Return how often each literal occurs in a text."""
    return Counter(match[0] for match in LITERAL.finditer(text))


def _pairs(matches: Sequence[re.Match[str]]) -> dict[int, int]:
    """Return the index of each closing tag -> index of the tag that it closes. Pairs are nested and do not overlap."""
    opening: dict[int, int] = {}
    unclosed: list[int] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    for number, match in enumerate(matches):
        if match.lastgroup == "open":
            unclosed.append(number)
            by_name[_name(match[0])].append(number)
        elif match.lastgroup == "close" and by_name[_name(match[0])]:
            opening[number] = by_name[_name(match[0])][-1]
            while by_name[_name(match[0])][-1:] == [opening[number]]:
                by_name[_name(matches[unclosed.pop()][0])].pop()
    return opening


def _parts(line: str, matches: Sequence[re.Match[str]], pairs: dict[int, int]) -> list[_Part]:
    """Return the parts that are not translated. A pair that encloses no words is a single tag with all it encloses.

    It is not if it has spaces at its ends that may separate the words around it.
    """
    closing = {first: last for last, first in pairs.items()}
    texts, spaces, end, after_pair = [0], [0], 0, True  # numbers of texts and of such spaces before each tag
    for number, match in enumerate(matches):
        text, is_paired = line[end : match.start()], number in pairs or number in closing
        texts.append(texts[-1] + bool(text.strip(SPACE)))
        spaces.append(spaces[-1] + bool(text and (is_paired or after_pair)))
        end, after_pair = match.end(), is_paired
    parts: list[_Part] = []
    number = 0
    while number < len(matches):
        last, kind = number, "close" if number in pairs else "single"
        if number in closing:
            last, kind = closing[number], "single"
            start, end = matches[number].start(), matches[last].end()
            is_apart = line[start - 1 : start] in ("", SPACE) or line[end : end + 1] in ("", SPACE)
            is_bare = spaces[last + 1] == spaces[number + 1] or (is_apart and last > number + 1)
            if texts[last + 1] > texts[number + 1] or not is_bare:
                last, kind = number, "open"
        parts.append(_Part(kind, matches[number].start(), matches[last].end(), number))
        number = last + 1
    return parts


def _with_punctuation(line: str, parts: list[_Part]) -> list[_Part]:
    """Extend single tags by the brackets around them, and by the separator before an item or after the first item."""
    has_text, end = False, 0
    for number, part in enumerate(parts):
        following = parts[number + 1].start if number + 1 < len(parts) else len(line)
        if part.kind == "single":
            while end < part.start and part.end < following and _BRACKETS.get(line[part.start - 1]) == line[part.end]:
                part.start, part.end = part.start - 1, part.end + 1
            before = line[end : part.start].rstrip(SPACE)
            if before.endswith(SEPARATORS) and (has_text or before[:-1].strip()):
                if _next_character(line, parts, number) in _ENDS:
                    part.start = end + len(before) - 1
            elif not has_text and not before and line[part.end : following][:1] in SEPARATORS:
                part.end += line[part.end + 1 :][:1] == SPACE and bool(line[part.end + 1 :].strip())
        has_text = has_text or bool(line[end : part.start].strip())
        end = part.end
    return parts


def _next_character(line: str, parts: list[_Part], number: int) -> str:
    """Return the first character of the text after a part and tags of pairs; empty at the end of the line."""
    while True:
        part, following = parts[number], parts[number + 1] if number + 1 < len(parts) else None
        text = line[part.end : len(line) if following is None else following.start].strip(SPACE)
        if text or following is None:
            return text[:1]
        if following.kind == "single":
            return line[following.start]
        number += 1


def _join_touching(parts: list[_Part]) -> list[_Part]:
    """Join single tags that touch each other."""
    joined: list[_Part] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind == "single" and joined[-1].end == part.start:
            joined[-1].end = part.end
        else:
            joined.append(part)
    return joined


def _outer_offsets(parts: list[_Part]) -> tuple[list[int], list[int]]:
    """Return, for each part, the offset before the tags of pairs that touch it on the left, and that on the right."""
    left = [part.start for part in parts]
    right = [part.end for part in parts]
    for number, (part, following) in enumerate(pairwise(parts)):
        if part.end == following.start and part.kind != "single":
            left[number + 1] = left[number]
    for number in range(len(parts) - 2, -1, -1):
        if parts[number].end == parts[number + 1].start and parts[number + 1].kind != "single":
            right[number] = right[number + 1]
    return left, right


def _name(tag: str) -> str:
    return tag.strip("</>").split(maxsplit=1)[0].lower()
