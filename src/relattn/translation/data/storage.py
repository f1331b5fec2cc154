"""Encoded sentence pairs on disk, as an Arrow stream: written as they come, read memory-mapped.

A file has two columns of integer lists, ``src`` and ``tgt``, and one of integers, ``line``: where in its text a pair
stood, counted from 1. It is opened without being read: a column is a view of the mapped file, so a corpus larger than
memory trains as well as a small one. ``datasets.Dataset.from_file`` opens it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from relattn.translation.files import putting

_ROWS_A_CHUNK = 100_000


class IdColumn:
    """A column of id lists, each row a view (pieces,) of the mapped file.

    Args:
        chunks: pairs of (values, offsets): row r of a chunk is values[offsets[r] : offsets[r + 1]].
    """

    def __init__(self, chunks: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self._chunks = chunks
        self._starts = np.cumsum([0, *(len(offsets) - 1 for _, offsets in chunks)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self) -> np.ndarray:
        """(rows,) pieces of each row, int32."""
        return np.concatenate([np.diff(offsets) for _, offsets in self._chunks])

    def __getitem__(self, index: int, /) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        values, offsets = self._chunks[chunk]
        row = index - self._starts[chunk]
        return values[offsets[row] : offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        for values, offsets in self._chunks:
            for start, stop in pairwise(offsets.tolist()):
                yield values[start:stop]


class Pairs(NamedTuple):
    """What a file holds.

    Attributes:
        src: pieces of the source.
        tgt: pieces of the target.
        line: (rows,) where in its text each pair stood, an Arrow array.
    """

    src: IdColumn
    tgt: IdColumn
    line: pa.ChunkedArray


def write_pairs(path: Path, pairs: Iterable[tuple[Sequence[int], Sequence[int], int]], *, pieces: int) -> None:
    """Write encoded pairs to path, which is then whole or absent. Raises InputError when it cannot be written.

    Args:
        path: the file.
        pairs: source, target and line of each.
        pieces: that there are; of at most 65,536, each takes two bytes, and otherwise four.
    """
    ids = pa.list_(pa.uint16() if pieces <= 1 << 16 else pa.int32())
    schema = pa.schema({"src": ids, "tgt": ids, "line": pa.int32()})
    rows = iter(pairs)
    with putting(path) as aside:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_stream(str(aside), schema) as writer:
            while chunk := list(islice(rows, _ROWS_A_CHUNK)):
                writer.write_batch(pa.record_batch(list(zip(*chunk, strict=True)), schema=schema))


def open_pairs(path: Path) -> Pairs:
    """The columns of a file that `write_pairs` wrote."""
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_stream(file).read_all()
    src, tgt = (IdColumn([_views(chunk) for chunk in table.column(side).chunks]) for side in ("src", "tgt"))
    return Pairs(src, tgt, table.column("line"))


def _views(chunk: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values and offsets of an Arrow list array, not copied."""
    return chunk.values.to_numpy(zero_copy_only=True), chunk.offsets.to_numpy(zero_copy_only=True)
