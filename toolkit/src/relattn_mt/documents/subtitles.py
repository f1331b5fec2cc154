"""Subtitles in SubRip (`.srt`) and WebVTT (`.vtt`) files: their texts, and the file with translations.

Only the text of subtitles changes. Numbers, times, positions, styles, notes, line ends, and the tags and dashes within
the text stay as they are.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from relattn_mt.documents.lexer import Message
from relattn_mt.support.errors import require
from relattn_mt.support.types import Span
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text

_TIME = r"(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:[.,](\d{1,3}))?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_DASH = re.compile(r"\s*[-–—]\s*")  # before the line of a speaker
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}|\\[Nnh]")
_VOICE = re.compile(r"(?<=.)(?=<v[ .])")
_TAG_OR_SPACE = re.compile(rf"{_TAG.pattern}| ")
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&nbsp;": "\xa0", "&lrm;": "\u200e", "&rlm;": "\u200f"}
_ENTITY = re.compile("|".join(_ENTITIES))
# and what may follow the end
_SENTENCE_ENDS = tuple(".!?…。！？：:")
_CLOSING = " \n\"'”’»«)]}」』"
# that a sentence spans, and seconds between two of them
_MOST_SUBTITLES = 5
_MOST_PAUSE = 3.0
_LINE = 42  # characters of a line of subtitles, if the file has no longer one


class Subtitles:
    """File of subtitles whose texts can be replaced.

    The lines of a subtitle are one text, together with the subtitles after it until a sentence ends. Its translation is
    divided among them in proportion to their lengths, and then into lines. The lines of a dialogue are separate texts.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.

    Raises:
        InputError: The file is neither SubRip nor WebVTT.
    """

    def __init__(self, content: str) -> None:
        self._parts = re.split(r"(\r\n|\n|\r)", content)  # lines, and line ends at odd indices
        is_webvtt = self._parts[0].startswith("WEBVTT")
        found = list(_read(self._parts, is_webvtt))
        require(found or is_webvtt or not content.strip(), "the file must be SubRip or WebVTT subtitles")
        subtitles = [each for each in found if has_text("".join(each.lines))]
        self._longest = max((len(line) for each in subtitles for line in each.lines), default=0)
        entities = frozenset(_ENTITY.findall(content)) if is_webvtt else None
        self._groups = []
        for group in _sentences(subtitles):
            lines = [line for each in group for line in each.lines]
            texts = lines if group[0].is_dialogue else [" ".join(lines)]
            self._groups.append((group, [_Text(each, entities) for each in texts]))
        self.texts = [text for _, texts in self._groups for each in texts for text in each.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its texts replaced."""
        remaining = iter(translations)
        parts = self._parts.copy()
        for group, texts in self._groups:
            sources = [text for each in texts for text in each.texts]
            translated = list(islice(remaining, len(sources)))
            if translated == sources:
                continue
            new_texts = iter(translated)
            filled = [each.fill(new_texts) for each in texts]
            contents = [filled] if group[0].is_dialogue else _divide_group(filled[0], group, max(self._longest, _LINE))
            for subtitle, lines in zip(group, contents, strict=True):
                first, last = subtitle.place
                parts[first : last + 1] = [parts[first - 1].join(lines), *[""] * (last - first)]
        return "".join(parts)


@dataclass(frozen=True)
class _Subtitle:
    """A subtitle: its times in seconds, its lines, and the indices of the first and last line in the file's parts."""

    start: float
    end: float
    lines: list[str]
    place: Span

    @property
    def is_dialogue(self) -> bool:
        return any(map(_DASH.match, self.lines[1:]))


def _read(parts: list[str], is_webvtt: bool) -> Iterator[_Subtitle]:
    """Yield the subtitles of a file."""
    times = {}
    for i in range(0, len(parts), 2):
        if "-->" in parts[i] and (found := _TIMES.fullmatch(parts[i])):
            times[i] = found.groups("0")
    for i, after in pairwise([*times, len(parts) + 1]):
        last = after - 2
        if is_webvtt:  # a blank line ends a subtitle, and an identifier may be before the times of the next
            blank = (j for j in range(i + 2, last + 1, 2) if not parts[j].strip())
            last = next(blank, last + 2) - 2
        elif after < len(parts) and parts[last].strip().isdecimal():
            last -= 2
        while last > i and not parts[last].strip():
            last -= 2
        start = _seconds(*times[i][:4])
        end = _seconds(*times[i][4:])
        yield _Subtitle(start, end, parts[i + 2 : last + 1 : 2], (i + 2, last))


def _seconds(hours: str, minutes: str, seconds: str, fraction: str) -> float:
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds) + float(f"0.{fraction}")


class _Text:
    """Text of one or more subtitles, with tags. A dash at its beginning stays there.

    Args:
        text: The text.
        entities: Character entities in a WebVTT file; None for a SubRip file, in which text is not escaped.

    Attributes:
        texts: Texts to translate.
    """

    def __init__(self, text: str, entities: frozenset[str] | None) -> None:
        self._entities = entities
        dash = _DASH.match(text)
        self._dash = dash[0] if dash else ""
        voices = _VOICE.split(text.removeprefix(self._dash))
        self._messages = [Message(each, _TAG, self._unescaped) for each in voices]
        self.texts = [text for each in self._messages for text in each.texts]

    def fill(self, translations: Iterator[Marked]) -> str:
        """Return the text with the next translations in the places of its texts."""
        return self._dash + "".join(each.fill(translations, self._escaped) for each in self._messages)

    def _unescaped(self, text: str) -> str:
        return text if self._entities is None else _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)

    def _escaped(self, text: str) -> str:
        """Escape what would be read as a tag, an entity or an arrow, and characters that the file has as entities."""
        if self._entities is None:
            return text
        text = text.replace("&", "&amp;") if "&amp;" in self._entities else _ENTITY.sub(r"&amp;\g<0>", text)
        text = text.replace("<", "&lt;").replace("-->", "--&gt;")
        for name in self._entities - {"&amp;", "&lt;"}:
            text = text.replace(_ENTITIES[name], name)
        return text


def _sentences(subtitles: Sequence[_Subtitle]) -> Iterator[list[_Subtitle]]:
    """Yield subtitles in groups: those without tags that continue a sentence are in one group."""
    group: list[_Subtitle] = []
    for subtitle in subtitles:
        text = "\n".join(subtitle.lines)
        is_plain = not any(map(_DASH.match, subtitle.lines)) and not re.search(r"[<{♪]", text)
        continues = bool(group) and is_plain and subtitle.start - group[-1].end <= _MOST_PAUSE
        if group and not (continues and len(group) < _MOST_SUBTITLES):
            yield group
            group = []
        group.append(subtitle)
        if not is_plain or text.rstrip(_CLOSING).endswith(_SENTENCE_ENDS):
            yield group
            group = []
    if group:
        yield group


def _divide_group(text: str, group: Sequence[_Subtitle], longest: int) -> list[list[str]]:
    """Divide a text among subtitles, and then into as many lines as each had, or more if lines get too long."""
    lengths = [[len(line) for line in each.lines] for each in group]
    parts = _divide(text, [sum(of_one) + len(of_one) - 1 for of_one in lengths])
    parts += [""] * (len(group) - len(parts))
    lines = []
    for part, of_one in zip(parts, lengths, strict=True):
        fewest = -(-len(part) // longest) if len(group) > 1 else 0
        lines.append(_divide(part, of_one if fewest <= len(of_one) else [1] * fewest))
    return lines


def _divide(text: str, lengths: Sequence[int]) -> list[str]:
    """Divide a text at spaces outside of tags, in proportion to lengths; few words give fewer parts."""
    gaps = [match.start() for match in _TAG_OR_SPACE.finditer(text) if match[0] == " "]
    breaks = min(len(lengths) - 1, len(gaps))
    shares = list(accumulate(length + 1 for length in lengths[: breaks + 1]))  # with the space after each part
    parts = []
    begin = 0
    low = 0
    for number in range(1, breaks + 1):
        wanted = (len(text) + 1) * shares[number - 1] / shares[-1] - 1
        high = len(gaps) - (breaks - number)  # each later break needs a gap
        after = bisect_left(gaps, wanted, low, high)
        nearest = min((i for i in (after - 1, after) if low <= i < high), key=lambda i: abs(gaps[i] - wanted))
        parts.append(text[begin : gaps[nearest]])
        begin = gaps[nearest] + 1
        low = nearest + 1
    return [*parts, text[begin:]]
