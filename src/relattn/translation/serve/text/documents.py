"""Files whose text is translated: plain text, subtitles, web pages and Word's documents.

Each is bytes to be read into texts, and bytes again with translations in their places. Files are strangers': sizes are
checked before anything is unpacked, and nothing in them names another file.
"""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from bs4 import BeautifulSoup
from bs4.element import PageElement, Tag

from relattn.translation.errors import InputError, reading
from relattn.translation.serve.text.html import Markup


class Document(Protocol):
    """A file that was read.

    Attributes:
        texts: what is to be translated.
    """

    texts: list[str]

    def filled(self, translations: Sequence[str]) -> bytes:
        """The file with translations in the places of its texts."""
        ...


class _Plain:
    def __init__(self, content: bytes, *, marks: bool, unpacked: int) -> None:
        self.texts = [_text(content)]

    def filled(self, translations: Sequence[str]) -> bytes:
        return translations[0].encode()


class _Subtitles:
    """A subtitle's lines are one text, which is cut into as many again; lines of a dialogue are one each."""

    def __init__(self, content: bytes, *, marks: bool, unpacked: int) -> None:
        import srt

        with reading("the file", "not subtitles"):
            self._subtitles = list(srt.parse(_text(content)))
        self._parts: list[list[tuple[Markup, int]]] = []  # of each subtitle: texts, and in how many lines each was
        for subtitle in self._subtitles:
            lines = subtitle.content.split("\n")
            dialogue = any(line.startswith(_DASHES) for line in lines[1:])
            texts = [(line, 1) for line in lines] if dialogue else [(" ".join(lines), len(lines))]
            self._parts.append([(Markup(text, marks=marks), count) for text, count in texts])
        self.texts = [text for parts in self._parts for part, _ in parts for text in part.texts]

    def filled(self, translations: Sequence[str]) -> bytes:
        import srt

        remaining = iter(translations)
        for subtitle, parts in zip(self._subtitles, self._parts, strict=True):
            lines = [
                _in_lines(part.filled([next(remaining) for _ in part.texts], escaped=False), count)
                for part, count in parts
            ]
            subtitle.content = "\n".join(lines)
        return srt.compose(self._subtitles, reindex=False).encode()


_DASHES = "-", "–", "—"
_GAP = re.compile(r" (?![^<>]*>)")  # a space that is in no tag


def _in_lines(text: str, count: int) -> str:
    """A text in so many lines, as long as each other."""
    for number in range(1, count):
        gaps = [gap.start() for gap in _GAP.finditer(text)]
        if gaps:
            nearest = min(gaps, key=lambda gap: abs(gap - len(text) * number / count))
            text = f"{text[:nearest]}\n{text[nearest + 1 :]}"
    return text


class _Page:
    def __init__(self, content: bytes, *, marks: bool, unpacked: int) -> None:
        self._markup = Markup(_text(content), marks=marks)
        self.texts = self._markup.texts

    def filled(self, translations: Sequence[str]) -> bytes:
        return self._markup.filled(translations).encode()


class _Word:
    """A document as HTML: a paragraph is an element, and in it each piece of text with a look or link of its own.

    What holds anything but text, such as a picture, stays where it is.
    """

    def __init__(self, content: bytes, *, marks: bool, unpacked: int) -> None:
        import docx
        from docx.text.paragraph import Paragraph

        _require_small(content, unpacked)
        with reading("the file", "not a document of Word's"):
            self._document = docx.Document(io.BytesIO(content))
            self._paragraphs = [
                [piece for piece in Paragraph(each, self._document).iter_inner_content() if _is_text(piece)]
                for each in _paragraphs(self._document)
            ]
        self._markup = Markup("".join(map(_as_html, self._paragraphs)), marks=marks)
        self.texts = self._markup.texts

    def filled(self, translations: Sequence[str]) -> bytes:
        paragraphs = BeautifulSoup(self._markup.filled(translations), "html.parser").find_all("p")
        for pieces, paragraph in zip(self._paragraphs, paragraphs, strict=True):
            _fill(pieces, paragraph)
        out = io.BytesIO()
        self._document.save(out)
        return out.getvalue()


_TEXT = {"rPr", "t", "tab", "cr", "br", "noBreakHyphen", "lastRenderedPageBreak"}  # elements of a run that is only text


def _paragraphs(document: Any) -> Iterator[Any]:
    """The elements of a document's paragraphs, those in tables, headers and footers with them."""
    parts = [document.element.body]
    parts += [part._element for section in document.sections for part in (section.header, section.footer)]
    for part in parts:
        yield from part.iter("{*}p")


def _is_text(piece: Any) -> bool:
    """Whether a run or a link has text and nothing else."""
    runs = getattr(piece, "runs", [piece])
    elements = [child for run in runs for child in run._element]
    breaks = [child for child in elements if child.tag.endswith("}br") and child.attrib]  # of a page, of a column
    return bool(piece.text) and not breaks and all(child.tag.rpartition("}")[2] in _TEXT for child in elements)


def _as_html(pieces: Sequence[Any]) -> str:
    """A paragraph's pieces of text by their numbers; alone, a piece needs none."""
    texts = [html.escape(piece.text).replace("\n", "<br>") for piece in pieces]
    if len(texts) == 1:
        return f"<p>{texts[0]}</p>"
    return f"<p>{''.join(f'<span id={number}>{text}</span>' for number, text in enumerate(texts))}</p>"


def _fill(pieces: Sequence[Any], paragraph: Tag) -> None:
    """Give a paragraph's pieces their new texts, in their new order. Text in none of them goes to the one before it."""
    if not pieces:
        return
    texts = [""] * len(pieces)
    order: list[int] = []
    for node in paragraph.children:
        if isinstance(node, Tag) and node.name == "span":
            order.append(int(str(node["id"])))
        texts[order[-1] if order else 0] += _with_breaks(node)
    places = [(piece._element.getparent(), piece._element) for piece in pieces]
    ordered = order if sorted(order) == list(range(len(pieces))) else list(range(len(pieces)))
    stand_ins = []
    for parent, element in places:
        stand_in = parent.makeelement("place")
        parent.replace(element, stand_in)
        stand_ins.append(stand_in)
    for stand_in, number in zip(stand_ins, ordered, strict=True):
        stand_in.getparent().replace(stand_in, places[number][1])
    for piece, text in zip(pieces, texts, strict=True):
        first, *others = getattr(piece, "runs", [piece])
        first.text = text
        for other in others:
            other.text = ""


def _with_breaks(node: PageElement) -> str:
    if not isinstance(node, Tag):
        return str(node)
    return "\n" if node.name == "br" else "".join(map(_with_breaks, node.children))


def _require_small(content: bytes, unpacked: int) -> None:
    """Refuse an archive that would unpack to more bytes, by what it says and by what it is."""
    with reading("the file", "not a document of Word's"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        left = unpacked
        for entry in archive.infolist():
            with archive.open(entry) as file:
                while piece := file.read(min(left + 1, 1 << 20)):
                    left -= len(piece)
                    if left < 0:
                        raise InputError(f"the file unpacks to more than {unpacked:,} bytes")


def _text(content: bytes) -> str:
    with reading("the file", "not text"):
        return content.decode("utf-8-sig")


FORMATS: dict[str, Callable[..., Document]] = {
    ".txt": _Plain,
    ".srt": _Subtitles,
    ".html": _Page,
    ".htm": _Page,
    ".docx": _Word,
}


def read(name: str, content: bytes, *, marks: bool, unpacked: int) -> Document:
    """A file's texts.

    Args:
        name: of the file; its end says what it is.
        content: of the file.
        marks: as of `Markup`.
        unpacked: bytes that it may unpack to.

    Raises:
        InputError: it is of another kind, is not what its name says, or unpacks to too much.
    """
    kind = ending(name)
    if kind not in FORMATS:
        raise InputError(f"files that are translated end in {', '.join(FORMATS)}")
    return FORMATS[kind](content, marks=marks, unpacked=unpacked)


def ending(name: str) -> str:
    """The end of a file's name, from its last dot on."""
    _, dot, end = name.rpartition(".")
    return f"{dot}{end}".lower()
