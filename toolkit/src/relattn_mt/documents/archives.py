"""Zip archives: their members, and OpenDocument files and EPUB books, whose members are XML."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence

from relattn_mt.documents.encodings import decode
from relattn_mt.documents.formulas import Comparisons
from relattn_mt.documents.html import Markup, Rules
from relattn_mt.documents.languages import with_language
from relattn_mt.support.errors import InputError, reading, require
from relattn_mt.text.marked import Marked

_OPEN_DOCUMENT = Rules(
    paragraphs=frozenset({"text:p", "text:h"}),
    inline=frozenset({"text:span", "text:a", "text:meta"}),
    breaks=frozenset({"text:tab", "text:line-break"}),
    spaces=frozenset({"text:s"}),
    skipped=frozenset({"text:tracked-changes", "text:ruby-text", "office:annotation-end"}),
)
_CONTENTS = Rules(paragraphs=frozenset({"text", "ncx:text"}))  # of navLabel and docTitle
_BOOK = re.compile(r"\.(xhtml|html?|ncx)$", re.IGNORECASE)
_KINDS = {".odt": "text", ".odp": "presentation", ".ods": "spreadsheet"}  # of OpenDocument
_TYPES = {".epub": "epub+zip", **{suffix: f"vnd.oasis.opendocument.{kind}" for suffix, kind in _KINDS.items()}}


class Archive:
    """Zip archive whose members can be replaced.

    Args:
        content: Bytes of the archive.
        unpacked: Maximum number of bytes of its members, whatever sizes it declares.

    Attributes:
        members: Content of each member by its name.
        left: Number of bytes that archives in it may unpack to.

    Raises:
        InputError: The archive cannot be read, has two members of the same name, or is too large.
    """

    def __init__(self, content: bytes, unpacked: int) -> None:
        self._content = content
        self.members: dict[str, bytes] = {}
        self.left = unpacked
        with reading("the file", "not a zip archive"), zipfile.ZipFile(io.BytesIO(content)) as archive:
            self._entries = archive.infolist()
            self._comment = archive.comment
            for entry in self._entries:
                parts = []
                with archive.open(entry) as file:
                    while chunk := file.read(min(self.left + 1, 1 << 20)):
                        self.left -= len(chunk)
                        require(self.left >= 0, f"the contents of the file must have at most {unpacked:,} bytes")
                        parts.append(chunk)
                self.members[entry.filename] = b"".join(parts)
        require(len(self.members) == len(self._entries), "the names in a zip archive must be different")

    def with_members(self, changed: Mapping[str, bytes]) -> bytes:
        """Return the archive with other contents of some members. Order, names, dates and compression stay."""
        if all(self.members[name] == content for name, content in changed.items()):
            return self._content
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.comment = self._comment
            for entry in self._entries:
                archive.writestr(entry, changed.get(entry.filename, self.members[entry.filename]))
        return out.getvalue()


class XmlArchive:
    """OpenDocument file or EPUB book whose texts can be replaced.

    Args:
        archive: The file.
        suffix: ".odt", ".odp", ".ods" or ".epub".

    Attributes:
        texts: Texts to translate.
        kept: Texts that stay, because formulas and filters compare cells with them.

    Raises:
        InputError: The file is not of that kind, is encrypted, or `Markup` refuses a member.
    """

    def __init__(self, archive: Archive, suffix: str) -> None:
        declared = archive.members.get("mimetype", b"").strip()
        require(declared == f"application/{_TYPES[suffix]}".encode(), f"the file must be {suffix[1:]}, as it is named")
        self._archive = archive
        self._members: list[tuple[str, bytes, str, Markup]] = []  # name, byte order mark, encoding, texts
        for name, is_xhtml, rules in _members(archive, suffix):
            try:
                mark, encoding, text = decode(archive.members[name], ".xml")
            except InputError as error:
                raise InputError("the XML in the file cannot be read; it may be encrypted") from error
            markup = Markup(text, rules, is_xml=is_xhtml)
            self._members.append((name, mark, encoding, markup))
        compared = _comparisons(self._members) if suffix == ".ods" else Comparisons()
        self._texts: list[tuple[Marked, bool]] = []  # with whether it stays
        for *_, markup in self._members:
            self._texts += [(text, text.text in compared) for text in markup.texts]
        self.texts = [text for text, stays in self._texts if not stays]
        self.kept = [text.text for text, stays in self._texts if stays]

    def fill(self, translations: Sequence[Marked], lang: str = "") -> bytes:
        """Return the file with its texts replaced. If `lang` is given, pages that change name this language."""
        given = iter(translations)
        remaining = iter([text if stays else next(given) for text, stays in self._texts])
        changed = {}
        for name, mark, encoding, markup in self._members:
            texts = [next(remaining) for _ in markup.texts]
            filled = markup.fill(texts)
            if lang and texts != markup.texts:
                filled = with_language(filled, name[name.rindex(".") :].lower(), lang)
            changed[name] = mark + filled.encode(encoding, "xmlcharrefreplace")
        return self._archive.with_members(changed)


def _comparisons(members: Sequence[tuple[str, bytes, str, Markup]]) -> Comparisons:
    """Return the texts that the formulas, conditions and filters of a spreadsheet compare with cells."""
    compared = Comparisons()
    for *_, markup in members:
        for name, value in markup.attributes():
            if name in ("table:formula", "table:condition", "style:condition"):
                compared.add_formula(value)
            elif name == "table:value":  # of a filter
                compared.add(value)
    return compared


def _members(archive: Archive, suffix: str) -> Iterator[tuple[str, bool, Rules | None]]:
    """Yield the name of each member with texts, whether it is XHTML, and the rules of other XML."""
    for name in archive.members:
        if suffix == ".epub" and _BOOK.search(name):
            is_contents = name.lower().endswith(".ncx")
            yield name, not is_contents, _CONTENTS if is_contents else None
        elif suffix != ".epub" and name in ("content.xml", "styles.xml"):
            yield name, False, _OPEN_DOCUMENT
