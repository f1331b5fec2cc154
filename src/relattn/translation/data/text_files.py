"""Lines of text, from files and from standard input; in parallel files, line i of one translates line i of the other.

Text is UTF-8, plain or compressed by gzip or bzip2, which its first bytes tell. It is read as a stream, so its size
does not matter. An error names the file and the place in one line.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from itertools import chain, zip_longest
from pathlib import Path
from typing import Protocol, cast

from relattn.translation.errors import InputError, reading

_READ = 1 << 16  # bytes asked for at once: what a pipe holds on Linux
_LONGEST_LINE = 1 << 26  # bytes


class Digest(Protocol):
    """What is told the bytes of a file, such as a hash."""

    def update(self, data: bytes, /) -> None: ...


def read_lines(path: str | Path, digest: Digest | None = None) -> Iterator[str]:
    """The lines of a text file, without their ends (``\\n`` or ``\\r\\n``); a leading byte order mark is dropped.

    Args:
        path: the file.
        digest: told every byte that was read, after decompression.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, truncated or damaged gzip, or a line is longer
            than 64 MiB or not UTF-8 (with its number, and the offset of the bad byte, counted after decompression).
    """
    with _opened(Path(path)) as stream:

        def read() -> bytes:
            piece = stream.read1(_READ)
            if digest is not None:
                digest.update(piece)
            return piece

        chunks = _lines(iter(read, b""), path)
        first = next(chunks, None)
        if first is None:
            raise InputError(f"{path}: the file is empty")
        yield from first
        yield from chain.from_iterable(chunks)


def stream_lines(descriptor: int, *, chunk: int = 1024, name: str = "standard input") -> Iterator[list[str]]:
    """Lists of at least one and at most `chunk` lines, as they arrive on a pipe, a terminal or a file.

    Reading a descriptor returns what is there and waits only when nothing is. So someone who types a line has it
    answered at once, a program that writes a line and waits for its translation gets it, and a file is read in large
    pieces. Lines are as those of `read_lines`, but there may be none; `name` stands for the source in messages.

    Raises:
        InputError: a line is too long or not UTF-8, as in `read_lines`, or the descriptor cannot be read. Lines before
            it have been given out.
    """
    with reading(name, "cannot be read"):
        yield from _lines(iter(lambda: os.read(descriptor, _READ), b""), name, chunk=chunk)


def read_parallel(
    src_path: str | Path, tgt_path: str | Path, digests: Sequence[Digest | None] = (None, None)
) -> Iterator[tuple[str, str]]:
    """The sentence pairs of two parallel files, streaming. `digests` of the sides are told their bytes.

    Raises:
        InputError: as `read_lines`; or the files differ in length, found when the shorter one ends.
    """
    counts = [0, 0]
    for pair in zip_longest(read_lines(src_path, digests[0]), read_lines(tgt_path, digests[1])):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if counts[0] == counts[1]:
            yield cast(tuple[str, str], pair)
    if counts[0] != counts[1]:
        raise InputError(
            f"the two sides differ in length: {src_path} has {counts[0]} lines, {tgt_path} has {counts[1]}"
        )


class ParallelFiles:
    """Two parallel files, read afresh by each loop over them, as `read_parallel` does."""

    def __init__(self, src: str, tgt: str) -> None:
        self.src, self.tgt = src, tgt
        self._digests: tuple[str, str] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        src, tgt = hashlib.sha256(), hashlib.sha256()
        yield from read_parallel(self.src, self.tgt, (src, tgt))
        self._digests = src.hexdigest(), tgt.hexdigest()

    def digests(self) -> tuple[str, str]:
        """SHA-256 of the two sides' bytes, after decompression: of the last loop that came to the end, or read now."""
        if self._digests is None:
            self._digests = text_digest(self.src), text_digest(self.tgt)
        return self._digests


def text_digest(path: str | Path) -> str:
    """SHA-256 of a text file's bytes, after decompression. Raises InputError when it cannot be read."""
    with _opened(Path(path)) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    """A text file's bytes, decompressed; whatever is wrong with it is an InputError."""
    with reading(path, "cannot be read"):
        try:
            with path.open("rb") as file:
                yield _decompressed(file, path)
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file") from error
        except IsADirectoryError as error:
            raise InputError(f"{path}: is a directory, not a text file") from error
        except EOFError as error:
            raise InputError(f"{path}: the compressed file is truncated") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: not a gzip file, or a damaged one: {error}") from error


def _decompressed(file: BufferedReader, path: Path) -> BufferedIOBase:
    """Return the decompressed bytes of a file that was just opened."""
    first = file.peek(10)
    if path.suffix == ".gz" or first.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if re.match(rb"BZh[1-9]1AY&SY", first) else file


def _lines(reads: Iterator[bytes], name: str | Path, *, chunk: int = 256) -> Iterator[list[str]]:
    """Lists of at most `chunk` lines of what is read in pieces, each given out before the next piece is asked for."""
    rest, number, offset = bytearray(), 0, 0  # what has no end yet, lines before it, bytes before it
    for read in chain(reads, [b""]):
        *ended, last = read.split(b"\n")
        rest += ended[0] if ended else last
        if len(rest) > _LONGEST_LINE:
            raise InputError(f"{name}: line {number + 1} is longer than {_LONGEST_LINE >> 20} MiB; is this text?")
        if ended:
            ended[0], rest = bytes(rest), bytearray(last)
        elif not read and rest:
            ended = [bytes(rest)]
        lines: list[str] = []
        for raw in ended:
            number += 1
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                raw, offset = raw.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
            try:
                lines.append(raw.removesuffix(b"\r").decode("utf-8"))
            except UnicodeDecodeError as error:
                if lines:
                    yield lines
                place = f"byte {offset + error.start}, in line {number}"
                raise InputError(f"{name}: not UTF-8 at {place}: 0x{raw[error.start]:02x}") from error
            offset += len(raw) + 1
            if len(lines) == chunk:
                yield lines
                lines = []
        if lines:
            yield lines
