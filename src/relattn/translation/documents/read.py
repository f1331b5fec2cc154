"""Files to translate, by the suffix of their names.

Files come from strangers. Their unpacked size is checked before they are parsed, and nothing in them is used as the
name of another file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relattn.translation.documents.archives import Archive, XmlArchive
from relattn.translation.documents.encodings import decode
from relattn.translation.documents.html import Markup
from relattn.translation.documents.markdown import Markdown
from relattn.translation.documents.office import OfficeDocument
from relattn.translation.documents.strings import Json, Po
from relattn.translation.documents.subtitles import Subtitles
from relattn.translation.documents.xliff import Xliff
from relattn.translation.errors import InputError, require
from relattn.translation.text.marked import Marked


@dataclass(frozen=True)
class Document:
    """File whose texts can be replaced.

    Attributes:
        texts: Texts to translate.
        fill: Function that returns the file with its texts replaced, given their translations. Call it once.
    """

    texts: list[Marked]
    fill: Callable[[Sequence[Marked]], str | bytes]


def _plain_text(content: str) -> Document:
    return Document([Marked(content)], lambda translations: translations[0].text)


_REFERENCES = (".html", ".htm", ".xlf", ".xliff")  # which can have any character as a reference
File = Document | Markup | Subtitles | Markdown | Json | Po | Xliff | OfficeDocument | XmlArchive
_TEXTS: dict[str, Callable[..., File]] = {
    ".txt": _plain_text,
    ".srt": Subtitles,
    ".vtt": Subtitles,
    ".html": Markup,
    ".htm": Markup,
    ".md": Markdown,
    ".po": Po,
    ".xlf": Xliff,
    ".xliff": Xliff,
    ".json": Json,
}
_ARCHIVES: dict[str, Callable[..., File]] = {
    ".docx": OfficeDocument,
    ".pptx": OfficeDocument,
    ".xlsx": OfficeDocument,
    ".odt": XmlArchive,
    ".odp": XmlArchive,
    ".epub": XmlArchive,
}
FORMATS = (*_TEXTS, *_ARCHIVES)


def read_document(name: str, content: bytes, unpacked: int) -> File:
    """Read a file.

    Args:
        name: name of the file; its suffix says what it is.
        content: bytes of the file.
        unpacked: maximum number of bytes that the file may unpack to.

    Raises:
        InputError: the suffix is not supported, the file cannot be parsed, or it unpacks to too many bytes.
    """
    suffix = file_suffix(name)
    require(suffix in FORMATS, f"the name of the file must end in {', '.join(FORMATS)}")
    if suffix in _ARCHIVES:
        return _ARCHIVES[suffix](Archive(content, unpacked), suffix)
    return _TEXTS[suffix](decode(content, suffix)[2])


def document_texts(name: str, content: bytes, unpacked: int, characters: int) -> list[Marked]:
    """Return the texts of a file. Arguments and errors are those of `read_document`.

    Raises:
        InputError: also if the texts have more characters than `characters`.
    """
    texts = read_document(name, content, unpacked).texts
    count = sum(len(text.text) for text in texts)
    require(count <= characters, f"the text of a file must have at most {characters:,} characters, got {count:,}")
    return texts


def fill_document(name: str, content: bytes, unpacked: int, translations: Sequence[Marked]) -> bytes:
    """Return a file with its texts replaced."""
    filled = read_document(name, content, unpacked).fill(translations)
    if isinstance(filled, bytes):
        return filled
    suffix = file_suffix(name)
    mark, encoding, _ = decode(content, suffix)
    try:  # UTF-8 and UTF-16 have all characters
        return mark + filled.encode(encoding, "xmlcharrefreplace" if suffix in _REFERENCES else "strict")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the translation has characters that {encoding} does not have: convert the file to UTF-8"
        ) from error


def file_suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, with its dot; empty if it has none."""
    _, dot, suffix = name.rpartition(".")
    return f"{dot}{suffix}".lower()
