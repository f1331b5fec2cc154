"""Files to translate: plain text, subtitles, HTML and Word documents.

Files come from strangers. Their unpacked size is checked before they are parsed, and nothing in them is used as the
name of another file.
"""

from __future__ import annotations

import codecs
import io
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relattn.translation.errors import InputError, reading, require
from relattn.translation.serve.text.html import Markup
from relattn.translation.serve.text.sentences import PLACEHOLDER
from relattn.translation.serve.text.subtitles import Subtitles
from relattn.translation.serve.text.word import WordDocument


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


_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_CHARSET = re.compile(rb"<meta[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def _require_small(content: bytes, unpacked: int) -> None:
    """Raise an InputError if an archive has more bytes than `unpacked`, whatever sizes it declares."""
    with reading("the file", "not a Word document"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        left = unpacked
        for entry in archive.infolist():
            with archive.open(entry) as file:
                while chunk := file.read(min(left + 1, 1 << 20)):
                    left -= len(chunk)
                    require(left >= 0, f"the contents of the file must have at most {unpacked:,} bytes")


File = Document | Markup | Subtitles | WordDocument
FORMATS: dict[str, Callable[..., File]] = {
    ".txt": _plain_text,
    ".srt": Subtitles,
    ".vtt": Subtitles,
    ".html": Markup,
    ".htm": Markup,
    ".docx": WordDocument,
}


def read_document(name: str, content: bytes, *, keep_tags: bool, unpacked: int) -> File:
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
        return WordDocument(content, keep_tags=keep_tags)
    mark, encoding = _encoding(content, suffix)
    try:
        text = content.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"the file must be text in {encoding}, which byte {error.start + 1} is not") from error
    return FORMATS[suffix](text, keep_tags=keep_tags)


def document_texts(name: str, content: bytes, keep_tags: bool, unpacked: int, characters: int) -> list[str]:
    """Return the texts of a file. Arguments and errors are those of `read_document`.

    Raises:
        InputError: also if the texts have more characters than `characters`, without placeholders.
    """
    texts = read_document(name, content, keep_tags=keep_tags, unpacked=unpacked).texts
    count = sum(len(PLACEHOLDER.sub("", text)) for text in texts)
    require(count <= characters, f"the text of a file must have at most {characters:,} characters, got {count:,}")
    return texts


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
