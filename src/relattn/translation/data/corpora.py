"""Parallel text in files: line i of one file translates line i of the other.

Files are UTF-8, plain or gzipped (by their name's .gz), and are read as a stream, so their size does not matter.
Whatever is wrong with one is said in one line that names the file and the place.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from relattn.translation.errors import InputError


class Digest(Protocol):
    """What is told the bytes of a file, such as a hash."""

    def update(self, data: bytes, /) -> None: ...


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | Path, digest: Digest | None = None) -> Iterator[str]:
    """The lines of a text file, without their ends (``\\n`` or ``\\r\\n``); a leading byte order mark is dropped.

    Args:
        path: the file.
        digest: told every byte that was read, after decompression.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, truncated or damaged gzip, or not UTF-8
            (with the offset of the first bad byte, counted after decompression).
    """
    try:
        with _open(Path(path)) as stream:
            yield from _decoded(stream, path, digest)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a directory, not a text file") from error
    except EOFError as error:
        raise InputError(f"{path}: the gzip file is truncated") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a gzip file, or a damaged one: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


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
            for _ in self:
                pass
        assert self._digests is not None
        return self._digests


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _decoded(stream: BinaryIO, path: str | Path, digest: Digest | None) -> Iterator[str]:
    offset = 0
    for raw in stream:
        if digest is not None:
            digest.update(raw)
        line = raw.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else raw
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            at = offset + len(raw) - len(line) + error.start
            raise InputError(f"{path}: not UTF-8 at byte {at}: {error.reason}") from error
        yield text.removesuffix("\n").removesuffix("\r")
        offset += len(raw)
    if offset == 0:
        raise InputError(f"{path}: the file is empty")
