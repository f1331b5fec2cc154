"""Files to translate, by the suffix of their names.

Files come from strangers. Their unpacked size is checked before they are parsed, and nothing in them is used as the
name of another file.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

from relattn_mt.documents.encodings import decode
from relattn_mt.documents.languages import with_language
from relattn_mt.support.errors import InputError, require, require_at_most
from relattn_mt.text.marked import Marked

MAX_TAGS = 50_000  # within the texts of a file for the server


class Document(Protocol):
    """File whose texts can be replaced.

    Attributes:
        texts: Texts to translate.
    """

    texts: list[Marked]

    def fill(self, translations: Sequence[Marked]) -> str | bytes:
        """Return the file with its texts replaced, given their translations. Call it once."""


_REFERENCES = (".html", ".htm", ".xhtml", ".xlf", ".xliff")  # which can have any character as a reference
_READERS = {  # modules and classes, which are imported when they are needed
    ".txt": "plain_text:PlainText",
    **dict.fromkeys((".srt", ".vtt"), "subtitles:Subtitles"),
    **dict.fromkeys((".html", ".htm"), "html:Markup"),
    **dict.fromkeys((".md", ".mdx", ".markdown"), "markdown:Markdown"),
    **dict.fromkeys((".po", ".pot"), "strings:Po"),
    **dict.fromkeys((".xlf", ".xliff"), "xliff:Xliff"),
    **dict.fromkeys((".json", ".jsonl", ".arb"), "strings:Json"),
    ".xhtml": "html:xhtml",
    **dict.fromkeys((".docx", ".pptx", ".xlsx"), "office:OfficeDocument"),
    **dict.fromkeys((".odt", ".odp", ".ods", ".epub"), "archives:XmlArchive"),
}
FORMATS = tuple(_READERS)


def read_document(name: str, content: bytes, unpacked: int, *, is_fuzzy: bool = True) -> Document:
    """Read a file, whose suffix says what it is, and which may unpack to `unpacked` bytes.

    Translations of a PO file are marked as fuzzy, unless `is_fuzzy` is False.

    Raises:
        InputError: The suffix is not supported, the file cannot be parsed, or it unpacks to too many bytes.
    """
    suffix = file_suffix(name)
    require(suffix in FORMATS, f"the name of the file must end in {', '.join(FORMATS)}")
    module, _, reader = _READERS[suffix].partition(":")
    read: Any = getattr(importlib.import_module(f"relattn_mt.documents.{module}"), reader)
    if reader in ("OfficeDocument", "XmlArchive"):
        from relattn_mt.documents.archives import Archive

        return read(Archive(content, unpacked), suffix)  # type: ignore[no-any-return]
    _, _, text = decode(content, suffix)
    return read(text, is_fuzzy) if reader == "Po" else read(text)  # type: ignore[no-any-return]


def document_texts(name: str, content: bytes, unpacked: int, characters: int) -> tuple[list[Marked], list[str]]:
    """Return the texts of a file, and those that stay. Arguments and errors are those of `read_document`.

    Raises:
        InputError: Also if the texts have more characters than `characters`, or more than MAX_TAGS tags.
    """
    document = read_document(name, content, unpacked)
    texts = document.texts
    require_at_most(characters, sum(len(text.text) for text in texts), "the text of a file", "characters")
    require_at_most(MAX_TAGS, sum(len(text.marks) for text in texts), "the texts of a file", "tags")
    return texts, kept_texts(document)


def kept_texts(document: Document) -> list[str]:
    """Return the texts of a document that stay, because its formulas, lists or filters refer to them."""
    return getattr(document, "kept", [])


def fill_document(name: str, content: bytes, unpacked: int, translations: Sequence[Marked], lang: str = "") -> bytes:
    """Return a file with its texts replaced. Arguments and errors are those of `read_document`."""
    return with_translations(read_document(name, content, unpacked), name, content, translations, lang)


def with_translations(
    document: Document, name: str, content: bytes, translations: Sequence[Marked], lang: str
) -> bytes:
    """Return the content of a file that was read, with its texts replaced, in the encoding of the file.

    If it changes and `lang` is given, its attributes name this language.
    """
    suffix = file_suffix(name)
    if suffix == ".epub":
        return document.fill(translations, lang)  # type: ignore[call-arg, return-value]
    filled = document.fill(translations)
    if isinstance(filled, bytes):
        return filled
    mark, encoding, text = decode(content, suffix)
    if lang and filled != text:
        filled = with_language(filled, suffix, lang)
    try:  # UTF-8 and UTF-16 have all characters
        return mark + filled.encode(encoding, "xmlcharrefreplace" if suffix in _REFERENCES else "strict")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the translation has characters that {encoding} does not have: convert the file to UTF-8"
        ) from error


def uncompressed(name: str) -> str:
    """Return a file name without the suffix of a compression."""
    return re.sub(r"\.(gz|bz2|xz|zst)$", "", name, flags=re.IGNORECASE)


def file_suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, with its dot; empty if it has none."""
    _, dot, suffix = os.path.basename(name).rpartition(".")
    return f".{suffix}".lower() if dot else ""
