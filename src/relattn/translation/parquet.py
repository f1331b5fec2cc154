"""Parquet files to translate (see `bulk.py`)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from relattn.translation.batch_translator import new_columns, require_column, require_text
from relattn.translation.bulk import PART, BulkSource
from relattn.translation.errors import reading
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.prepare import require_readable
from relattn.translation.translate.translation import Translation


class ParquetSource(BulkSource):
    """A Parquet file, to which columns are added."""

    def __init__(self, path: Path, options: TranslateOptions, column: str) -> None:
        super().__init__(path, options)
        self.column = column
        with self.reading():
            self.file = pq.ParquetFile(path)
        self.schema = self.file.schema_arrow
        require_column(self.schema.names, column, options, str(path))

    def reading(self) -> Any:
        return reading(self.path, "damaged, or not a Parquet file")

    def check(self) -> tuple[int, str]:
        number = 0
        with self.reading():
            for batch in self.file.iter_batches(PART, columns=[self.column]):
                for number, value in enumerate(batch.column(0).to_pylist(), start=number + 1):  # noqa: B020
                    require_text(value, f"{self.path}: row {number}", self.column)
                    require_readable(value, f"{self.path}: row {number}")
            with self.path.open("rb") as file:
                return number, hashlib.file_digest(file, "sha256").hexdigest()

    def parts(self, first: int) -> Iterator[pa.Table]:
        rest, skipped = self.schema.empty_table(), first * PART
        for group in range(self.file.num_row_groups):
            rows = self.file.metadata.row_group(group).num_rows
            if skipped >= rows:
                skipped -= rows
                continue
            for batch in self.file.iter_batches(PART, row_groups=[group]):
                rest = pa.concat_tables([rest, pa.Table.from_batches([batch.slice(skipped)])])
                skipped = max(0, skipped - len(batch))
                while len(rest) >= PART:
                    yield rest.slice(0, PART)
                    rest = rest.slice(PART)
        if len(rest):
            yield rest

    def lines(self, part: pa.Table) -> list[str]:
        return part[self.column].to_pylist()

    def encode(self, part: pa.Table, first_line: int, translations: list[list[Translation]]) -> bytes:
        file = io.BytesIO()
        pq.write_table(self.with_columns(part, [best for best, *_ in translations]), file)
        return file.getvalue()

    def with_columns(self, table: pa.Table, translations: Sequence[Translation]) -> pa.Table:
        """Return a table with the new columns."""
        for name, values in new_columns(translations, self.options).items():
            kind = pa.float64() if name in ("score", "confidence") else pa.string()
            table = table.append_column(name, pa.array(values, kind))
        metadata = dict(table.schema.metadata or {})
        metadata.pop(b"huggingface", None)  # it lists the columns, and datasets refuses others
        return table.replace_schema_metadata(metadata)

    def join(self, parts: Sequence[Path], file: BinaryIO) -> None:
        schema = self.with_columns(self.schema.empty_table(), []).schema
        with pq.ParquetWriter(file, schema) as writer:
            for path in parts:
                writer.write_table(pq.ParquetFile(path).read())
