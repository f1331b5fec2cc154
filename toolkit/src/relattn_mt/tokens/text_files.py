"""Read lines of text from files and from standard input.

Text is UTF-8 without NUL. A file may be compressed with gzip, bzip2, xz or zstd, which is detected from the first
bytes; other formats are named in the message. Text is streamed, so a file may be larger than memory. Line i of one
parallel file translates line i of the other.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import lzma
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BufferedIOBase, BufferedReader
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from relattn_mt.support.errors import InputError, reading, require, require_installed
from relattn_mt.support.types import AnyPath, SentencePair

_BLOCK = 1 << 16  # bytes per read, the capacity of a pipe on Linux
_CHUNK = 1024  # lines that `stream_lines` yields at once
_LONGEST_LINE = 1 << 26  # bytes
_CONTROL = rb"[\0-\x08\x0e-\x1a\x1c-\x1f]"  # not in UTF-8 text; upper bytes of many scripts
_ENCODINGS = {  # patterns of the first bytes of text: a byte order mark, or two characters
    "UTF-32LE": rb"\xff\xfe\0\0|(?!\0{4})(..[\0-\x03]\0){2}",
    "UTF-32BE": rb"\0\0\xfe\xff|(?!\0{4})(\0[\0-\x03]..){2}",
    "UTF-16LE": rb"\xff\xfe|(?!\0)(.%b){2}" % _CONTROL,
    "UTF-16BE": rb"\xfe\xff|(%b(?!\0).){2}" % _CONTROL,
}
_START = 16  # bytes that these patterns need at most
_REMEDY = "convert UTF-16 or UTF-32 to UTF-8 with iconv, or remove NUL with `tr -d '\\000'`"
_FORMATS = {  # patterns of the first bytes of files that are not text
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",  # or a frame that is skipped, which pzstd writes first
    "lz4": rb"\x04\x22\x4d\x18",
    "zip": rb"PK(\x03\x04|\x05\x06)",
    "7z": rb"7z\xbc\xaf\x27\x1c",
    "Parquet": rb"PAR1",
}


def wide_encoding(start: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 that a text with these first bytes is in; None for UTF-8 and all else."""
    return _matching(_ENCODINGS, start)


def require_no_nul(text: str, name: str) -> None:
    """Raise an InputError, which begins with `name`, if a text has a NUL character."""
    if "\0" in text:
        raise InputError(f"{name} must be text without NUL characters; {_REMEDY}")


def read_lines(
    path: AnyPath, update: Callable[[bytes], object] | None = None, *, accepts_nul: bool = False
) -> Iterator[str]:
    """Yield the lines of a text file without their ends (``\n`` or ``\r\n``) and without a byte order mark.

    Args:
        path: The file.
        update: Function that gets each block of decompressed bytes.
        accepts_nul: Whether lines may have NUL, for callers that drop such lines.

    Raises:
        InputError: The file cannot be read, is empty or damaged, or has a line that is longer than 64 MiB, has NUL or
            is not UTF-8. Offsets in messages count decompressed bytes.
    """
    lists = _lines(blocks(path, update), path, accepts_nul)
    first = next(lists, None)
    if first is None:
        raise InputError(f"{path}: the file is empty")
    yield from first
    yield from chain.from_iterable(lists)


def stream_lines(descriptor: int) -> Iterator[list[str]]:
    """Yield lists of lines as they arrive on a pipe, a terminal or a file with this descriptor.

    A read returns the bytes that are available and waits only if there are none. So a program that writes one line gets
    it answered at once, and a file is read in large blocks. Lines are the same as those of `read_lines`.

    Raises:
        InputError: The descriptor cannot be read, or a line is too long, has NUL or is not UTF-8. All lines before it
            have been yielded.
    """
    name = "standard input"
    with reading(name, "cannot be read"):
        for lines in _lines(iter(lambda: os.read(descriptor, _BLOCK), b""), name):
            for start in range(0, len(lines), _CHUNK):
                yield lines[start : start + _CHUNK]


@dataclass
class ParallelFiles:
    """Sentence pairs of two parallel files. Each loop reads the files again.

    A loop raises an InputError as `read_lines`, or at its end if the files have different numbers of lines. The meaning
    of `accepts_nul` is that of `read_lines`.
    """

    src: AnyPath
    tgt: AnyPath
    accepts_nul: bool = field(default=False, kw_only=True)
    _digests: tuple[str, str] | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[SentencePair]:
        src_digest = hashlib.sha256()
        tgt_digest = hashlib.sha256()
        src_lines = tgt_lines = 0
        sources = read_lines(self.src, src_digest.update, accepts_nul=self.accepts_nul)
        targets = read_lines(self.tgt, tgt_digest.update, accepts_nul=self.accepts_nul)
        for src, tgt in zip_longest(sources, targets):
            src_lines += src is not None
            tgt_lines += tgt is not None
            if src_lines == tgt_lines:
                yield src, tgt
        counts = f"got {src_lines} and {tgt_lines}"
        require(src_lines == tgt_lines, f"{self.src} and {self.tgt} must have the same number of lines, {counts}")
        self._digests = src_digest.hexdigest(), tgt_digest.hexdigest()

    def digests(self) -> tuple[str, str]:
        """Return the `text_digest` of both files, as of the last complete loop. Read them if there was none."""
        if self._digests is None:
            self._digests = text_digest(self.src), text_digest(self.tgt)
        return self._digests


def text_digest(path: AnyPath) -> str:
    """Return the SHA-256 of a text file's decompressed bytes. Raise InputError if it cannot be read."""
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()


def blocks(path: AnyPath, update: Callable[[bytes], object] | None = None) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file."""
    with reading(path, "cannot be read"):
        try:
            with Path(path).open("rb") as file:
                for block in _decompressed(file, path):
                    if update is not None:
                        update(block)
                    yield block
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file") from error


def _decompressed(file: BufferedReader, path: AnyPath) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file that was just opened."""
    kind = _matching(_FORMATS, file.peek(10))
    if kind in ("bzip2", "xz"):
        yield from _streams(
            file, bz2.BZ2Decompressor if kind == "bzip2" else partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
        )
        return
    stream: BufferedIOBase = file
    if kind == "gzip" or (kind is None and Path(path).suffix == ".gz"):
        stream = gzip.GzipFile(fileobj=file)
    elif kind == "zstd":
        require_installed("files")
        import pyarrow

        stream = BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), _BLOCK)
    while block := stream.read1(_BLOCK):
        yield block


def _streams(file: BufferedReader, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file of streams and padding. The standard library drops what is neither."""
    stream = None
    while data := file.read(_BLOCK):
        while data := data if stream else data.lstrip(b"\0"):
            stream = stream or decompressor()
            while data or not (stream.eof or stream.needs_input):
                if block := stream.decompress(data, _BLOCK):
                    yield block
                data = b""
            data = stream.unused_data
            stream = None if stream.eof else stream
    if stream:
        raise EOFError("Compressed file ended before the end of its last stream")


def _matching(patterns: Mapping[str, bytes], start: bytes) -> str | None:
    """Return the name of the first pattern that matches."""
    return next((name for name, pattern in patterns.items() if re.match(pattern, start, re.DOTALL)), None)


def _require_text(start: bytes, name: AnyPath) -> None:
    """Raise an InputError if a file with these first bytes is not text in UTF-8."""
    if encoding := wide_encoding(start):
        raise InputError(f"{name}: must be UTF-8, got {encoding}; convert it with `iconv -f {encoding} -t UTF-8`")
    if kind := _matching(_FORMATS, start):
        supported = "text is UTF-8, and may be compressed with gzip, bzip2, xz or zstd"
        raise InputError(f"{name}: must be text, got {kind}; {supported}")


def _lines(blocks: Iterator[bytes], name: AnyPath, accepts_nul: bool = False) -> Iterator[list[str]]:
    """Yield the lines that end in each block, before the next block is read. `name` is for messages."""
    unfinished = bytearray()  # the start of a line that continues in the next block
    start = b""  # of the text
    number = offset = 0  # lines and bytes before the current line
    for block in chain(blocks, [b""]):
        start += block[: _START - len(start)]
        if not block and unfinished:
            block = b"\n"  # ends the last line
        first, *following = block.split(b"\n")
        unfinished += first
        if len(unfinished) > _LONGEST_LINE:
            raise InputError(f"{name}: line {number + 1} must have at most {_LONGEST_LINE >> 20} MiB; is this text?")
        if not following:
            continue
        complete = [bytes(unfinished), *following[:-1]]
        unfinished = bytearray(following[-1])
        lines: list[str] = []
        for raw in complete:
            number += 1
            if number == 1:
                _require_text(start, name)
                if raw.startswith(codecs.BOM_UTF8):
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                    offset = len(codecs.BOM_UTF8)
            try:
                line = raw.removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                if lines:
                    yield lines
                position = f"byte {offset + error.start}, in line {number}"
                raise InputError(f"{name}: not UTF-8 at {position}: 0x{raw[error.start]:02x}") from error
            if "\0" in line and not accepts_nul:
                if lines:
                    yield lines
                require_no_nul(line, f"{name}: line {number}")
            lines.append(line)
            offset += len(raw) + 1
        yield lines
