"""Files to translate: plain text, subtitles, HTML and Word documents.

Files come from strangers. Their unpacked size is checked before they are parsed, and nothing in them is used as the
name of another file.
"""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Tag

from relattn.translation.errors import reading, require
from relattn.translation.serve.text.html import Markup


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


def _page(content: str, *, keep_tags: bool) -> Document:
    markup = Markup(content, keep_tags=keep_tags)
    return Document(markup.texts, markup.fill)


def _subtitles(content: str, *, keep_tags: bool) -> Document:
    """Read subtitles.

    The lines of a subtitle are one text, whose translation is split into as many lines; lines of a dialogue are
    separate texts.
    """
    import srt

    with reading("the file", "not SubRip subtitles"):
        subtitles = list(srt.parse(content))
    parts: list[list[tuple[Markup, int]]] = []  # per subtitle: texts, and number of lines of each
    for subtitle in subtitles:
        lines = subtitle.content.split("\n")
        is_dialogue = any(line.startswith(("-", "–", "—")) for line in lines[1:])
        texts = [(line, 1) for line in lines] if is_dialogue else [(" ".join(lines), len(lines))]
        parts.append([(Markup(text, keep_tags=keep_tags), count) for text, count in texts])

    def fill(translations: Sequence[str]) -> str:
        remaining = iter(translations)
        for subtitle, pairs in zip(subtitles, parts, strict=True):
            subtitle.content = "\n".join(
                _split_lines(text.fill([next(remaining) for _ in text.texts], escape=False), count)
                for text, count in pairs
            )
        return srt.compose(subtitles, reindex=False)

    return Document([each for pairs in parts for text, _ in pairs for each in text.texts], fill)


def _split_lines(text: str, count: int) -> str:
    """Split a text into lines of similar length."""
    for number in range(1, count):
        gaps = [gap.start() for gap in re.finditer(r" (?![^<>]*>)", text)]  # spaces outside of tags
        if gaps:
            nearest = min(gaps, key=lambda gap: abs(gap - len(text) * number / count))
            text = f"{text[:nearest]}\n{text[nearest + 1 :]}"
    return text


def _word_document(content: bytes, *, keep_tags: bool) -> Document:
    """Read a Word document as HTML: a `<p>` per paragraph, and in it a `<span>` per run or link of text.

    Runs with anything but text, such as a picture, stay in their places.
    """
    import docx
    from docx.text.paragraph import Paragraph

    with reading("the file", "not a Word document"):
        document = docx.Document(io.BytesIO(content))
        paragraphs = [
            [piece for piece in Paragraph(each, document).iter_inner_content() if _is_text(piece)]
            for each in _paragraphs(document)
        ]
    markup = Markup("".join(map(_as_html, paragraphs)), keep_tags=keep_tags)

    def fill(translations: Sequence[str]) -> bytes:
        filled = BeautifulSoup(markup.fill(translations), "html.parser").find_all("p")
        for pieces, paragraph in zip(paragraphs, filled, strict=True):
            _fill_paragraph(pieces, paragraph)
        out = io.BytesIO()
        document.save(out)
        return out.getvalue()

    return Document(markup.texts, fill)


def _paragraphs(document: Any) -> Iterator[Any]:
    """Yield the elements of all paragraphs, including those in tables, headers and footers."""
    parts = [document.element.body]
    parts += [part._element for section in document.sections for part in (section.header, section.footer)]
    for part in parts:
        yield from part.iter("{*}p")


_TEXT_ELEMENTS = {"rPr", "t", "tab", "cr", "br", "noBreakHyphen", "lastRenderedPageBreak"}


def _is_text(piece: Any) -> bool:
    """Whether a run or link has text and nothing else."""
    elements = [child for run in _runs(piece) for child in run._element]
    return bool(piece.text) and all(
        child.tag.rpartition("}")[2] in _TEXT_ELEMENTS
        and not (child.tag.endswith("}br") and child.attrib)  # a page or column break
        for child in elements
    )


def _runs(piece: Any) -> list[Any]:
    """Return the runs of a link; a run is its own."""
    return getattr(piece, "runs", [piece])


def _as_html(pieces: Sequence[Any]) -> str:
    """Return a paragraph as HTML, with a numbered `<span>` per piece if there are several."""
    texts = [html.escape(piece.text).replace("\n", "<br>") for piece in pieces]
    if len(texts) != 1:
        texts = [f"<span id={number}>{text}</span>" for number, text in enumerate(texts)]
    return f"<p>{''.join(texts)}</p>"


def _fill_paragraph(pieces: Sequence[Any], paragraph: Tag) -> None:
    """Set the texts of a paragraph's pieces and reorder them. Text outside of all pieces goes to the one before it."""
    if not pieces:
        return
    texts = [""] * len(pieces)
    order: list[int] = []
    for line_break in paragraph.find_all("br"):
        line_break.replace_with("\n")
    for node in paragraph.children:
        if isinstance(node, Tag) and node.name == "span":
            order.append(int(str(node["id"])))
        texts[order[-1] if order else 0] += node.get_text()
    elements = [piece._element for piece in pieces]
    if sorted(order) == list(range(len(pieces))):
        places = [element.makeelement("place") for element in elements]
        for element, place in zip(elements, places, strict=True):
            element.getparent().replace(element, place)
        for place, number in zip(places, order, strict=True):
            place.getparent().replace(place, elements[number])
    for piece, text in zip(pieces, texts, strict=True):
        first, *others = _runs(piece)
        first.text = text
        for other in others:
            other.text = ""


def _require_small(content: bytes, unpacked: int) -> None:
    """Raise an InputError if an archive has more bytes than `unpacked`, whatever sizes it declares."""
    with reading("the file", "not a Word document"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        left = unpacked
        for entry in archive.infolist():
            with archive.open(entry) as file:
                while chunk := file.read(min(left + 1, 1 << 20)):
                    left -= len(chunk)
                    require(left >= 0, f"the contents of the file must have at most {unpacked:,} bytes")


FORMATS: dict[str, Callable[..., Document]] = {
    ".txt": _plain_text,
    ".srt": _subtitles,
    ".html": _page,
    ".htm": _page,
    ".docx": _word_document,
}


def read_document(name: str, content: bytes, *, keep_tags: bool, unpacked: int) -> Document:
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
    with reading("the file", "not text"):
        text = content.decode("utf-8-sig")
    return FORMATS[suffix](text, keep_tags=keep_tags)


def file_suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, with its dot; empty if it has none."""
    _, dot, suffix = name.rpartition(".")
    return f"{dot}{suffix}".lower()
