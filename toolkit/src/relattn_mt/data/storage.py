"""Store encoded sentence pairs in a file, which is written row by row and read through a memory map.

A file has these parts, in the byte order of the machine:

    values     pieces of the source and of the target of each row, uint16 or int32
    ends       0, and the number of values before the end of each source and each target, int64
    trailer    number of rows, number of values and bytes per value, int64

A corpus may be larger than memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np

from relattn_mt.support.errors import reading
from relattn_mt.support.files import putting

Sides = tuple[np.ndarray, np.ndarray]  # an array of the source, and one of the target
_TRAILER = 24  # bytes
_ROWS_PER_CHUNK = 100_000


@dataclass(frozen=True, eq=False)
class IdColumn:
    """A column of id lists. Each row is a view (pieces,) of the mapped file.

    Attributes:
        values: Pieces of all rows.
        begins: (rows,) number of values before each row.
        ends: (rows,) number of values before the end of each row.
    """

    values: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> np.ndarray:
        """(rows,) number of pieces of each row, int32."""
        return (self.ends - self.begins).astype(np.int32)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self.values[self.begins[index] : self.ends[index]]


class EncodedPairs(NamedTuple):
    """Content of a file.

    Attributes:
        src: Pieces of the source sentences.
        tgt: Pieces of the target sentences.
    """

    src: IdColumn
    tgt: IdColumn

    def row(self, row: int) -> Sides:
        """Return the pieces of the source and of the target of a row."""
        return self.src[row], self.tgt[row]

    def lengths(self) -> Sides:
        """Return (rows,) the number of pieces of each source and of each target, int32."""
        return self.src.lengths(), self.tgt.lengths()


def write_pairs(path: Path, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, vocab_size: int) -> None:
    """Write encoded pairs to a file, which is then complete or absent. Raise InputError if it cannot be written.

    Ids take two bytes for at most 65,536 pieces, otherwise four.
    """
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
    remaining = iter(pairs)
    rows = values = 0
    with putting(path) as aside, open(aside, "wb") as file, TemporaryFile(dir=aside.parent) as ends:
        ends.write(bytes(8))
        while chunk := list(islice(remaining, _ROWS_PER_CHUNK)):
            sides = list(chain.from_iterable(chunk))
            file.write(np.fromiter(chain.from_iterable(sides), dtype=dtype).tobytes())
            chunk_ends = values + np.cumsum([len(side) for side in sides])
            ends.write(chunk_ends.tobytes())
            rows += len(chunk)
            values = int(chunk_ends[-1])
        file.write(bytes(_padding(file.tell())))
        ends.seek(0)
        shutil.copyfileobj(ends, file)
        file.write(np.array([rows, values, np.dtype(dtype).itemsize], dtype=np.int64).tobytes())


def _padding(size: int) -> int:
    """Return the number of bytes between the values and the ends, which are aligned."""
    return -size % 8


def open_pairs(path: Path, rows: int | None = None) -> EncodedPairs:
    """Open a file that `write_pairs` wrote.

    Raises:
        InputError: The file is missing, truncated or damaged, or has another number of rows than `rows`.
    """
    with reading(path, "truncated or damaged"):
        if path.stat().st_size < _TRAILER:
            raise ValueError(f"it must have at least {_TRAILER} bytes, got {path.stat().st_size}")
        content = np.memmap(path, mode="r").view(np.ndarray)  # whose slices take less time
        count, total, size = content[-_TRAILER:].view(np.int64).tolist()
        begin = total * size + _padding(total * size)
        expected = begin + 8 * (2 * count + 1) + _TRAILER
        if size not in (2, 4) or min(count, total) < 0 or len(content) != expected:
            raise ValueError(f"it must have the size that it names, got {len(content):,} bytes")
        ends = content[begin:-_TRAILER].view(np.int64)
        is_in_order = (ends[:-1] <= ends[1:]).all()
        if not is_in_order or ends[0] != 0 or ends[-1] != total:
            raise ValueError(f"its rows must be in order, with {total:,} values")
        if rows is not None and count != rows:
            raise ValueError(f"it must have {rows:,} pairs, got {count:,}")
        values = content[: total * size].view(np.uint16 if size == 2 else np.int32)
    return EncodedPairs(IdColumn(values, ends[:-1:2], ends[1::2]), IdColumn(values, ends[1::2], ends[2::2]))
