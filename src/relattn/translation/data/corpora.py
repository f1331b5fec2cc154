"""Parallel text in files: line i of one file translates line i of the other.

Files are UTF-8, plain or gzipped (by their name's .gz), and are read as a stream, so their size does not matter.
Whatever is wrong with one is said in one line that names the file and the place.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, cast

from relattn.translation.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file, without their ends (``\\n`` or ``\\r\\n``); a leading byte order mark is dropped.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, truncated or damaged gzip, or not UTF-8
            (with the offset of the first bad byte, counted after decompression).
    """
    try:
        with _open(Path(path)) as stream:
            yield from _decoded(stream, path)
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


def read_parallel(src_path: str | Path, tgt_path: str | Path) -> Iterator[tuple[str, str]]:
    """The sentence pairs of two parallel files, streaming.

    Raises:
        InputError: as `read_lines`; or the files differ in length, found when the shorter one ends.
    """
    counts = [0, 0]
    for pair in zip_longest(read_lines(src_path), read_lines(tgt_path)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if counts[0] == counts[1]:
            yield cast(tuple[str, str], pair)
    if counts[0] != counts[1]:
        raise InputError(
            f"the two sides differ in length: {src_path} has {counts[0]} lines, {tgt_path} has {counts[1]}"
        )


@dataclass(frozen=True)
class ParallelFiles:
    """Two parallel files, read afresh by each loop over them, as `read_parallel` does."""

    src: str
    tgt: str

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return read_parallel(self.src, self.tgt)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _decoded(stream: BinaryIO, path: str | Path) -> Iterator[str]:
    offset = 0
    for raw in stream:
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
