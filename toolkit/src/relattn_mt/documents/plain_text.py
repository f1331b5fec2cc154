"""Plain text: paragraphs whose lines were broken to a width are one text each, and so are other lines in a row.

A line continues a paragraph if its first word would not have fitted into the line before: into the width of the longest
line among lines in a row that have as many marks of quotation (`>`). Marks of quotation and of list items are not part
of the texts. A translation is broken to the same width.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from relattn_mt.text.marked import Marked

_NARROWEST = 40  # characters; shorter lines are not broken to a width
_LINE = re.compile(r"((?:[ \t]*>)*[ \t]*)((?:[-*+•–]|\d{1,3}[.)])[ \t]+(?=\S))?([^\r\n]*)(\r\n|\r|\n|\Z)")


class _Line(NamedTuple):
    """A line: its indentation, with marks of quotation, the mark of a list item, the text and the end."""

    indent: str
    mark: str
    text: str
    end: str

    @property
    def width(self) -> int:
        return len(self.indent + self.mark + self.text.rstrip())


class PlainText:
    """Plain text whose paragraphs can be replaced.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.
    """

    def __init__(self, content: str) -> None:
        lines = [_Line(*(part or "" for part in found.groups())) for found in _LINE.finditer(content) if found[0]]
        self._paragraphs: list[tuple[int, list[_Line]]] = []  # width, 0 for lines without indentation, and lines
        for _, group in groupby(lines, key=lambda line: (not line.text.strip(), line.indent.count(">"))):
            block = list(group)
            width = max(line.width for line in block)
            paragraph = list[_Line]()
            for line in block:
                if not paragraph or not _continues(paragraph, line, width):
                    self._add(width, paragraph)
                    paragraph = []
                paragraph.append(line)
            self._add(width, paragraph)
        self.texts = [Marked(_text(width, lines)) for width, lines in self._paragraphs]

    def _add(self, width: int, paragraph: list[_Line]) -> None:
        """Add a paragraph. Lines in a row without indentation are one text, which takes less time than many."""
        if len(paragraph) == 1 and not paragraph[0].indent + paragraph[0].mark:
            if self._paragraphs and self._paragraphs[-1][0] == 0:
                self._paragraphs[-1][1].extend(paragraph)
                return
            width = 0
        if paragraph:
            self._paragraphs.append((width, paragraph))

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its texts replaced."""
        parts: list[str] = []
        for (width, lines), text, translation in zip(self._paragraphs, self.texts, translations, strict=True):
            if translation == text:
                parts += ["".join(line) for line in lines]
                continue
            begin = lines[0].indent + lines[0].mark
            indent = lines[-1].indent
            end = lines[0].end
            filled = begin + translation.text
            if width and len(lines) > 1:
                wrapper = textwrap.TextWrapper(width, begin, indent, break_long_words=False, break_on_hyphens=False)
                filled = end.join(wrapper.wrap(translation.text))
            parts += [filled, lines[-1].end]
        return "".join(parts)


def _continues(paragraph: Sequence[_Line], line: _Line, width: int) -> bool:
    """Return whether a line continues a paragraph. A number at its beginning may be the mark of an item."""
    before = paragraph[-1]
    if width < _NARROWEST or " " not in before.text.strip():
        return False
    first_word = (line.mark + line.text).split(maxsplit=1)[0]
    if before.width + 1 + len(first_word) <= width:
        return False
    if line.mark and (not line.mark[0].isdigit() or paragraph[0].mark[:1].isdigit()):
        return False
    return line.indent == before.indent or (bool(paragraph[0].mark) and len(line.indent) > len(paragraph[0].indent))


def _text(width: int, lines: Sequence[_Line]) -> str:
    """Return the text of a paragraph."""
    if not width or len(lines) == 1:
        return "".join(line.text + line.end for line in lines[:-1]) + lines[-1].text
    first, *others = lines
    return " ".join([first.text.strip(), *((line.mark + line.text).strip() for line in others)])
