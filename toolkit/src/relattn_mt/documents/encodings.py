"""Encodings of text files: a byte order mark, what the file declares, or UTF-8."""

from __future__ import annotations

import codecs
import re

from relattn_mt.support.errors import InputError, require
from relattn_mt.tokens.text_files import require_no_nul, wide_encoding

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_HTML = re.compile(rb"<meta[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_PO = re.compile(rb"Content-Type:[^\n]*?charset=([\w.:-]+)", re.IGNORECASE)
_ASCII = "<..>"  # unlike a charset of files, codecs such as idna, punycode, base64 and cp037 change it or refuse it
_DECLARATIONS = {
    **dict.fromkeys((".html", ".htm"), _HTML),
    **dict.fromkeys((".xml", ".xhtml", ".xlf", ".xliff"), _XML),
    **dict.fromkeys((".po", ".pot"), _PO),
}


def decode(content: bytes, suffix: str) -> tuple[bytes, str, str]:
    """Return the byte order mark, encoding and text of a file. The suffix says how it may declare its encoding.

    Raises:
        InputError: The encoding is unknown, the file is not in it, or it has NUL.
    """
    mark, encoding = _encoding(content, suffix)
    try:
        text = content.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        problem = f"the file must be text in {encoding}, which byte {error.start + 1} is not: convert it to UTF-8"
        raise InputError(problem) from error
    require_no_nul(text, "the file")
    return mark, encoding, text


def _encoding(content: bytes, suffix: str) -> tuple[bytes, str]:
    wide = wide_encoding(content)
    has_utf16_mark = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if wide and not (has_utf16_mark and wide.startswith("UTF-16")):
        supported = f"got {wide}; convert it with `iconv -f {wide} -t UTF-8`"
        raise InputError(f"the file must be UTF-8, or UTF-16 with a byte order mark, {supported}")
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return mark, encoding
    declaration = _DECLARATIONS.get(suffix)
    declared = declaration.search(content[:1024]) if declaration else None
    if declared is None or declared[1] == b"CHARSET":  # as in the template of a .po file
        return b"", "utf-8"
    label = declared[1].decode().lower()
    try:
        encoding = codecs.lookup(label).name
        # As in the Encoding Standard: a declaration that can be read is not in UTF-16, and Latin-1 is windows-1252.
        if encoding.startswith(("utf-8", "utf-16")):
            encoding = "utf-8"  # also for utf-8-sig, which would add a byte order mark
        is_charset = _ASCII.encode(encoding) == _ASCII.encode()
    except (LookupError, UnicodeError):
        is_charset = False
    require(is_charset, f"the file declares an unknown charset: {label[:40]}")
    latin = {"ascii": "cp1252", "iso8859-1": "cp1252"} if declaration is _HTML else {}
    return b"", latin.get(encoding, encoding)
