"""Files to translate: plain text, subtitles, HTML and Word documents.

Files come from strangers. Their unpacked size is checked before they are parsed, and nothing in them is used as the
name of another file.
"""

from __future__ import annotations

import codecs
import copy
import html
import io
import itertools
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import PageElement, Tag

from relattn.translation.errors import InputError, reading, require
from relattn.translation.serve.text.html import Markup
from relattn.translation.serve.text.subtitles import Subtitles


@dataclass(frozen=True)
class Document:
    """File whose texts can be replaced.

    Attributes:
        texts: texts to translate.
        fill: function that returns the file with its texts replaced, given their translations. Call it once.
    """

    texts: list[str]
    fill: Callable[[Sequence[str]], str | bytes]


def _plain_text(content: str, *, keep_tags: bool) -> Document:
    return Document([content], lambda translations: translations[0])


def _word_document(content: bytes, *, keep_tags: bool) -> Document:
    """Read a Word document as HTML: a `<p>` per paragraph, and in it a `<span>` per piece of text.

    A piece is a run, or a container of runs: a link, a tracked insertion or a content control. The runs of a container
    have a `<span>` each within its own. Anything but text, such as a picture or deleted text, stays in its place.
    """
    with reading("the file", "not a Word document"):
        package, parts = _open_word_document(content)
        paragraphs = [
            _pieces(paragraph, itertools.count()) for part in parts for paragraph in part.element.iter("{*}p")
        ]
    markup = Markup("".join(map(_as_html, paragraphs)), keep_tags=keep_tags)

    def fill(translations: Sequence[str]) -> bytes:
        filled = BeautifulSoup(markup.fill(translations), "html.parser").find_all("p")
        for pieces, paragraph in zip(paragraphs, filled, strict=True):
            for line_break in paragraph.find_all("br"):
                line_break.replace_with("\n")
            _fill_pieces(pieces, list(paragraph.children))
        out = io.BytesIO()
        package.save(out)
        return out.getvalue()

    return Document(markup.texts, fill)


def _open_word_document(content: bytes) -> tuple[Any, list[Any]]:
    """Return the package of a Word document, and its parts with text: the body, headers, footers and notes."""
    import docx
    from docx.opc.constants import CONTENT_TYPE
    from docx.opc.part import PartFactory, XmlPart

    notes = CONTENT_TYPE.WML_FOOTNOTES, CONTENT_TYPE.WML_ENDNOTES
    for content_type in notes:  # python-docx does not parse them by itself
        PartFactory.part_type_for.setdefault(content_type, XmlPart)
    body = docx.Document(io.BytesIO(content)).part
    content_types = {CONTENT_TYPE.WML_HEADER, CONTENT_TYPE.WML_FOOTER, *notes}
    others = [part for part in body.package.iter_parts() if part.content_type in content_types]
    return body.package, [body, *sorted(others, key=lambda part: part.partname)]


_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_CHARSET = re.compile(rb"<meta[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_CONTAINERS = {"hyperlink", "ins", "moveTo", "sdt", "smartTag"}
_TEXT_ELEMENTS = {"rPr", "t", "tab", "cr", "br", "noBreakHyphen", "lastRenderedPageBreak"}


@dataclass(frozen=True)
class _Piece:
    """Piece of a paragraph.

    Attributes:
        number: its number in the paragraph.
        element: a run, or a container of runs.
        pieces: the pieces of a container.
    """

    number: int
    element: Any
    pieces: list[_Piece]


def _pieces(parent: Any, numbers: Iterator[int]) -> list[_Piece]:
    """Return the pieces of a paragraph or of a container. A run that has anything but text is none."""
    pieces: list[_Piece] = []
    for element in parent:
        name = _name(element)
        if name == "sdtContent":
            pieces += _pieces(element, numbers)
        elif name == "r" and element.text and all(map(_is_text, element)):
            pieces.append(_Piece(next(numbers), element, []))
        elif name in _CONTAINERS and (inner := _pieces(element, numbers)):
            pieces.append(_Piece(next(numbers), element, inner))
    return pieces


def _name(element: Any) -> str:
    """Return the name of an element without its namespace; empty for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _is_text(child: Any) -> bool:
    """Return whether a child of a run is text or its format, and not, for instance, a page break or a picture."""
    return _name(child) in _TEXT_ELEMENTS and not (_name(child) == "br" and child.attrib)


def _as_html(pieces: Sequence[_Piece]) -> str:
    """Return a paragraph as HTML."""
    return f"<p>{_content_as_html(pieces)}</p>"


def _content_as_html(pieces: Sequence[_Piece]) -> str:
    """Return pieces as HTML, with a numbered `<span>` per piece if there are several."""
    texts = [
        _content_as_html(piece.pieces) if piece.pieces else html.escape(piece.element.text).replace("\n", "<br>")
        for piece in pieces
    ]
    if len(texts) != 1:
        texts = [f"<span id={piece.number}>{text}</span>" for piece, text in zip(pieces, texts, strict=True)]
    return "".join(texts)


def _fill_pieces(pieces: Sequence[_Piece], nodes: Sequence[PageElement]) -> None:
    """Set the texts of pieces and reorder them. Text outside of all pieces goes to the one before it.

    A run that occurs again, because its sentences were translated separately, is copied to that place.
    """
    if not pieces:
        return
    by_number = {piece.number: piece for piece in pieces}
    contents: dict[int, list[PageElement]] = {number: [] for number in by_number}
    order: dict[int, None] = {}
    copies: list[tuple[Any, Any, list[PageElement]]] = []  # element before it, copy and its content
    last, content = pieces[0].element, contents[pieces[0].number]
    for node in nodes:
        piece = None
        if len(pieces) > 1 and isinstance(node, Tag):
            piece = by_number.get(int(str(node["id"])))
        if piece is None or not isinstance(node, Tag):
            content.append(node)
            continue
        if piece.number in order and _name(piece.element) == "r":
            run = copy.deepcopy(piece.element)
            content = []
            copies.append((last, run, content))
            last = run
        else:
            order[piece.number] = None
            last, content = piece.element, contents[piece.number]
        content += node.children
    if len(order) == len(pieces):
        places = [piece.element.makeelement("place") for piece in pieces]
        for piece, place in zip(pieces, places, strict=True):
            piece.element.getparent().replace(piece.element, place)
        for number, place in zip(order, places, strict=True):
            place.getparent().replace(place, by_number[number].element)
    for before, run, content in copies:
        before.addnext(run)
        run.text = _joined(content)
    for piece in pieces:
        if piece.pieces:
            _fill_pieces(piece.pieces, contents[piece.number])
        else:
            piece.element.text = _joined(contents[piece.number])


def _joined(nodes: Sequence[PageElement]) -> str:
    """Return the text of nodes."""
    return "".join(node.get_text() for node in nodes)


def _require_small(content: bytes, unpacked: int) -> None:
    """Raise an InputError if an archive has more bytes than `unpacked`, whatever sizes it declares."""
    with reading("the file", "not a Word document"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        left = unpacked
        for entry in archive.infolist():
            with archive.open(entry) as file:
                while chunk := file.read(min(left + 1, 1 << 20)):
                    left -= len(chunk)
                    require(left >= 0, f"the contents of the file must have at most {unpacked:,} bytes")


FORMATS: dict[str, Callable[..., Document | Markup | Subtitles]] = {
    ".txt": _plain_text,
    ".srt": Subtitles,
    ".vtt": Subtitles,
    ".html": Markup,
    ".htm": Markup,
    ".docx": _word_document,
}


def read_document(name: str, content: bytes, *, keep_tags: bool, unpacked: int) -> Document | Markup | Subtitles:
    """Read a file.

    Args:
        name: name of the file; its suffix says what it is.
        content: bytes of the file.
        keep_tags: as in `Markup`.
        unpacked: maximum number of bytes that the file may unpack to.

    Raises:
        InputError: the suffix is not supported, the file cannot be parsed, or it unpacks to too many bytes.
    """
    suffix = file_suffix(name)
    require(suffix in FORMATS, f"the name of the file must end in {', '.join(FORMATS)}")
    if suffix == ".docx":
        _require_small(content, unpacked)
        return _word_document(content, keep_tags=keep_tags)
    mark, encoding = _encoding(content, suffix)
    try:
        text = content.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"the file must be text in {encoding}, which byte {error.start + 1} is not") from error
    return FORMATS[suffix](text, keep_tags=keep_tags)


def document_texts(name: str, content: bytes, keep_tags: bool, unpacked: int) -> list[str]:
    """Return the texts of a file. Arguments and errors are those of `read_document`."""
    return read_document(name, content, keep_tags=keep_tags, unpacked=unpacked).texts


def fill_document(name: str, content: bytes, keep_tags: bool, unpacked: int, translations: Sequence[str]) -> bytes:
    """Return a file with its texts replaced."""
    filled = read_document(name, content, keep_tags=keep_tags, unpacked=unpacked).fill(translations)
    if isinstance(filled, bytes):
        return filled
    mark, encoding = _encoding(content, file_suffix(name))
    return mark + filled.encode(encoding, "xmlcharrefreplace")  # UTF-8 and UTF-16 have all characters


def _encoding(content: bytes, suffix: str) -> tuple[bytes, str]:
    """Return the byte order mark of a text file, and its encoding: UTF-8, UTF-16, or what HTML declares."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return mark, encoding
    declared = _CHARSET.search(content[:1024]) if suffix in (".html", ".htm") else None
    if declared is None:
        return b"", "utf-8"
    label = declared[1].decode().lower()
    try:
        encoding = codecs.lookup(label).name
    except LookupError as error:
        raise InputError(f"the file declares an unknown charset: {label[:40]}") from error
    # As in the Encoding Standard: a declaration that can be read is not in UTF-16, and Latin-1 is windows-1252.
    return b"", {"ascii": "cp1252", "iso8859-1": "cp1252"}.get(encoding, "utf-8" if "utf-16" in encoding else encoding)


def file_suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, with its dot; empty if it has none."""
    _, dot, suffix = name.rpartition(".")
    return f"{dot}{suffix}".lower()
