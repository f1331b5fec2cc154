"""Encoded sentence pairs on disk, as a Hugging Face data set: written as a stream, read memory-mapped.

A file has two columns of integer lists, ``src`` and ``tgt``. It is opened without being read: a column is a view of
the mapped file, so a corpus larger than memory trains as well as a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

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


def write_pairs(path: Path, pairs: Iterable[tuple[list[int], list[int]]]) -> None:
    """Write encoded pairs to path, which is then whole or absent. Raises InputError when it cannot be written."""
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features({"src": List(Value("int32")), "tgt": List(Value("int32"))})
    with putting(path) as aside:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ArrowWriter(features=features, path=str(aside), writer_batch_size=_ROWS_A_CHUNK) as writer:
            for src, tgt in pairs:
                writer.write({"src": src, "tgt": tgt})
            writer.finalize()


def open_pairs(path: Path) -> tuple[IdColumn, IdColumn]:
    """The source and target columns of a file that `write_pairs` wrote."""
    from datasets import Dataset

    table = Dataset.from_file(str(path)).data
    src, tgt = (IdColumn([_views(chunk) for chunk in table.column(side).chunks]) for side in ("src", "tgt"))
    return src, tgt


def _views(chunk: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values and offsets of an Arrow list array, not copied."""
    return chunk.values.to_numpy(zero_copy_only=True), chunk.offsets.to_numpy(zero_copy_only=True)
