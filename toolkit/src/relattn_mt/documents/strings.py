"""Files with the strings of programs: JSON, and PO files of gettext.

Only the strings change, so the layout of a file stays. Placeholders in strings, such as `%s`, `{name}` and `<b>`, are
tags, so a translation has them all. Letters that are entities of HTML, such as `&uuml;`, become characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from relattn_mt.documents.lexer import Message, with_letters
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import KEY, literals, markup_pattern

_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_JSON = re.compile(rf"({_STRING})(\s*:)?")
_LINE = re.compile(rf"[ \t]*(?:#.*|(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)?[ \t]*({_STRING})[ \t]*)?\r?")
_ESCAPE = re.compile(r'\\(?:([abfnrtv"\\])|x([0-9A-Fa-f]{1,2})|([0-7]{1,3}))')
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
_ESCAPED = str.maketrans({text: f"\\{name}" for name, text in _ESCAPES.items()})
_SINGULAR = re.compile("n(!=1|>1|==1[?])|EXPRESSION")  # a plural rule whose first form stands for 1, or for 0 and 1
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and half of a character
_SPACE = re.compile(r"\s*")


def _message(text: str) -> Message | None:
    """Return a string whose texts can be replaced; None if it is empty, a key or not text."""
    if not text or _NO_TEXT.search(text) or re.fullmatch(KEY, text):
        return None
    return Message(text, markup_pattern())


class Json:
    """JSON or JSON lines whose strings can be replaced. Names and other values are left unchanged.

    So are keys (`menu.open`, `fa-home`), and values whose names begin with `@`: descriptions in .arb files of Flutter,
    and types of JSON-LD.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.

    Raises:
        InputError: The file is not JSON.
    """

    def __init__(self, content: str) -> None:
        try:
            _require_json(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the file must be JSON, and not nested too deeply: {error}") from error
        self._content = content
        self._strings: list[tuple[int, int, str, Message]] = []  # range in the file, string and its texts
        end = 0  # of the last value that is left unchanged
        for found in _JSON.finditer(content):
            if found.start() < end:
                continue
            if found[2] is None:
                text = with_letters(json.loads(found[1]))
                if message := _message(text):
                    self._strings.append((*found.span(1), text, message))
            elif found[1].startswith('"@'):
                _, end = json.JSONDecoder().raw_decode(content, _skip_space(content, found.end()))
        self.texts = [text for *_, message in self._strings for text in message.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its strings replaced. Characters outside of ASCII are escaped if the file does so."""
        remaining = iter(translations)
        parts = []
        done = 0
        is_ascii = self._content.isascii() and "\\u" in self._content
        for begin, end, text, message in self._strings:
            filled = message.fill(remaining)
            if filled != text:
                source = json.dumps(filled, ensure_ascii=is_ascii)
                parts += [self._content[done:begin], source]
                done = end
        return "".join([*parts, self._content[done:]])


def _require_json(content: str) -> None:
    """Raise a ValueError unless a text is JSON: one value, or several on lines of their own."""
    begin = _skip_space(content, 0)
    while True:
        _, end = json.JSONDecoder().raw_decode(content, begin)
        begin = _skip_space(content, end)
        if begin == len(content):
            return
        if "\n" not in content[end:begin]:
            raise json.JSONDecodeError("Extra data", content, end)


def _skip_space(content: str, begin: int) -> int:
    """Return the offset of the first character at or after `begin` that is not a space."""
    return _SPACE.match(content, begin).end()  # type: ignore[union-attr]


class Po:
    """PO file of gettext whose translations can be filled.

    Entries with a translation are left unchanged, also if it is marked as fuzzy; so are obsolete entries and keys.

    Args:
        content: The file.
        is_fuzzy: Whether translations are marked as fuzzy, so that programs do not use them before somebody has.

    Attributes:
        texts: Texts to translate.

    Raises:
        InputError: The file is not a PO file.
    """

    def __init__(self, content: str, is_fuzzy: bool = True) -> None:
        self._lines = content.split("\n")
        self._is_fuzzy = is_fuzzy
        self._fills: list[tuple[int, list[int], Message]] = []  # lines of an entry and of empty translations, source
        takes_number = False  # whether the first form stands for 1 and other numbers, such as 21
        for entry in _entries(self._lines):
            source = with_letters(entry.texts.get("msgid", ""))
            plural = with_letters(entry.texts.get("msgid_plural", ""))
            forms = [name for name in entry.lines if name.startswith("msgstr")]
            if not source:  # the header
                form = re.search("plural=([^;]+)", re.sub(r"[\s()]", "", entry.texts.get("msgstr", "")))
                takes_number = form is not None and not _SINGULAR.match(form[1])
            if not source or any(entry.texts[name] for name in forms):
                continue
            first = [entry.lines[name] for name in forms if name in ("msgstr", "msgstr[0]")]
            others = [entry.lines[name] for name in forms if entry.lines[name] not in first]
            if plural and (not others or (takes_number and literals(source) != literals(plural))):
                others = first + others
                first = []
            for places, text in ((first, source), (others, plural)):
                message = _message(text)
                if places and message:
                    self._fills.append((min(entry.lines.values()), places, message))
        self.texts = [text for *_, message in self._fills for text in message.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its translations filled."""
        remaining = iter(translations)
        lines = self._lines.copy()
        for begin, places, message in self._fills:
            filled = message.fill(remaining).translate(_ESCAPED)
            for place in places:
                lines[place] = lines[place].replace('""', f'"{filled}"', 1)
            if self._is_fuzzy:
                _mark_fuzzy(lines, begin)
        return "\n".join(lines)


def _mark_fuzzy(lines: list[str], begin: int) -> None:
    """Mark an entry as fuzzy, whose first keyword is in line `begin`, in its line of flags or in a new one."""
    while begin and lines[begin - 1].startswith("#|"):
        begin -= 1
    flags = lines[begin - 1] if begin else ""
    if flags.startswith("#,"):
        if "fuzzy" not in flags:
            lines[begin - 1] = flags.replace("#,", "#, fuzzy,", 1)
    elif not lines[begin].startswith("#, fuzzy"):
        end = "\r" if lines[begin].endswith("\r") else ""
        lines[begin] = f"#, fuzzy{end}\n{lines[begin]}"


@dataclass
class _Entry:
    """Entry of a PO file: the line and the text of each keyword, such as msgid."""

    lines: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def _entries(lines: Sequence[str]) -> Iterator[_Entry]:
    """Yield the entries of a PO file."""
    entry = _Entry()
    keyword = ""
    for number, line in enumerate(lines):
        found = _LINE.fullmatch(line)
        if found is None or (found[2] and not (found[1] or keyword)):
            raise InputError(f"a PO file must have comments and strings after keywords, which line {number + 1} is not")
        if found[1]:
            keyword = found[1]
            if keyword in ("msgctxt", "msgid") and any(name.startswith("msgstr") for name in entry.lines):
                yield entry
                entry = _Entry()
            entry.lines[keyword] = number
            entry.texts[keyword] = ""
        if found[2]:
            entry.texts[keyword] += _unescaped(found[2])
    if entry.lines:
        yield entry


def _unescaped(string: str) -> str:
    """Return the text of a string with quotation marks."""

    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return _ESCAPES[found[1]]
        return chr(int(found[2], 16) if found[2] else int(found[3], 8))

    return _ESCAPE.sub(replace, string[1:-1])
