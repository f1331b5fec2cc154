"""Store encoded sentence pairs as an Arrow stream, which is written row by row and read through a memory map.

A file has two columns of integer lists, ``src`` and ``tgt``. Opening it does not read it, so a corpus may be larger
than memory. ``datasets.Dataset.from_file`` opens it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from relattn_mt.support.errors import reading
from relattn_mt.support.files import putting

_ROWS_PER_CHUNK = 100_000


class IdColumn:
    """A column of id lists. Each row is a view (pieces,) of the mapped file.

    Args:
        column: Arrow column of integer lists.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        # pairs of (values, offsets), not copied: row r of a chunk is values[offsets[r] : offsets[r + 1]]
        self._chunks = [(chunk.values.to_numpy(), chunk.offsets.to_numpy()) for chunk in column.chunks]
        self._starts = np.cumsum([0, *(len(offsets) - 1 for _, offsets in self._chunks)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self) -> np.ndarray:
        """(rows,) number of pieces of each row, int32."""
        return np.concatenate([np.diff(offsets) for _, offsets in self._chunks])

    def __getitem__(self, index: int, /) -> np.ndarray:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        values, offsets = self._chunks[chunk]
        row = index - self._starts[chunk]
        return values[offsets[row] : offsets[row + 1]]


class Pairs(NamedTuple):
    """Content of a file.

    Attributes:
        src: Pieces of the source sentences.
        tgt: Pieces of the target sentences.
    """

    src: IdColumn
    tgt: IdColumn

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces of the source and of the target of a row."""
        return self.src[row], self.tgt[row]


def write_pairs(path: Path, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, vocab_size: int) -> None:
    """Write encoded pairs to a file, which is then complete or absent. Raise InputError if it cannot be written.

    Ids take two bytes for at most 65,536 pieces, otherwise four.
    """
    ids = pa.list_(pa.uint16() if vocab_size <= 1 << 16 else pa.int32())
    schema = pa.schema({"src": ids, "tgt": ids})
    rows = iter(pairs)
    with putting(path) as aside, open(aside, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        while chunk := list(islice(rows, _ROWS_PER_CHUNK)):
            writer.write_batch(pa.record_batch(list(zip(*chunk, strict=True)), schema=schema))


def open_pairs(path: Path, rows: int | None = None) -> Pairs:
    """Open a file that `write_pairs` wrote.

    Raises:
        InputError: The file is missing, truncated or damaged, or has another number of rows than `rows`.
    """
    with reading(path, "truncated or damaged"), pa.memory_map(str(path)) as file:
        table = pa.ipc.open_stream(file).read_all()
        table.validate(full=True)
        if rows is not None and len(table) != rows:
            raise ValueError(f"it must have {rows:,} pairs, got {len(table):,}")
    return Pairs(IdColumn(table.column("src")), IdColumn(table.column("tgt")))
