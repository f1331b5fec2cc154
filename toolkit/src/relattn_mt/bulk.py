"""Translate a file of text, or a column of a table, into a file. The files may be larger than memory.

    out-00003-of-00008.jsonl             third of eight shards, complete or absent; without shards, it is out.jsonl
    .out-00003-of-00008.jsonl.relattn/   settings.json: what is translated, and how; while it is translated, the parts

A part is a number of consecutive rows, which are translated in the same batches whatever the shards are. A shard is a
number of consecutive parts. So the shards together are the output of one run, byte by byte, and an interrupted run
continues after its last complete part. In Parquet, a part is a row group.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO

from relattn_mt.batch_translator import new_columns, require_column, require_text
from relattn_mt.config import differences
from relattn_mt.data.text_files import read_lines
from relattn_mt.support.console import progress_bar, shows_progress
from relattn_mt.support.errors import one_line, reading, require, require_installed
from relattn_mt.support.files import putting, remove, require_regular, write_atomically
from relattn_mt.support.locking import locked
from relattn_mt.text.marked import Marked
from relattn_mt.translate import Format
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.output_formats import format_lines, header_lines
from relattn_mt.translate.prepare import Sentence, require_readable
from relattn_mt.translate.translation import Translation
from relattn_mt.translate.translator import Translator

PART = 4096  # rows that are translated at once, and lost if the process is killed
_log = logging.getLogger(__name__)


class BulkSource(ABC):
    """A file to translate.

    Args:
        path: The file.
        options: Options of translating.

    Raises:
        InputError: The file cannot be read.
    """

    def __init__(self, path: Path, options: TranslateOptions) -> None:
        self.path, self.options = path, options

    @abstractmethod
    def check(self) -> tuple[int, str]:
        """Read the whole file, and return its number of rows and its digest.

        Raises:
            InputError: a row cannot be translated.
        """

    @abstractmethod
    def parts(self, first: int) -> Iterator[Any]:
        """Yield parts, from that of the given index on."""

    @abstractmethod
    def lines(self, part: Any) -> list[str]:
        """Return the text of a part."""

    @abstractmethod
    def encode(self, part: Any, first_line: int, translations: list[list[Translation]]) -> bytes:
        """Return the content of the output for a part, whose first row has the number `first_line`."""

    def join(self, parts: Sequence[Path], file: BinaryIO) -> None:
        """Write the output that consists of the given parts."""
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, file)


class TextSource(BulkSource):
    """Text, one sentence per line. The output has lines in a format, or in that of n-best lists."""

    def __init__(self, path: Path, options: TranslateOptions, style: Format = "text", n_best: bool = False) -> None:
        super().__init__(path, options)
        self.style, self.n_best = style, n_best

    def check(self) -> tuple[int, str]:
        digest, number = hashlib.sha256(), 0
        for number, line in enumerate(read_lines(self.path, digest.update), start=1):
            self.check_line(line, f"{self.path}: line {number}")
        return number, digest.hexdigest()

    def check_line(self, line: str, where: str) -> None:
        """Raise an InputError, which begins with `where`, if a line cannot be translated."""
        require_readable(line, where)

    def parts(self, first: int) -> Iterator[list[str]]:
        rest = islice(read_lines(self.path), first * PART, None)
        return iter(lambda: list(islice(rest, PART)), [])

    def lines(self, part: list[str]) -> list[str]:
        return part

    def encode(self, part: list[str], first_line: int, translations: list[list[Translation]]) -> bytes:
        align = self.options.align
        lines = header_lines(self.style, align=align) if first_line == 1 else []
        for number, each in enumerate(translations, start=first_line):
            lines += format_lines(self.style, number, each, n_best=self.n_best, align=align)
        return "".join(f"{line}\n" for line in lines).encode()


class JsonSource(TextSource):
    """JSON Lines: an object per line, to which columns are added. All else stays as it is, byte by byte."""

    def __init__(self, path: Path, options: TranslateOptions, column: str) -> None:
        super().__init__(path, options)
        self.column = column

    def check_line(self, line: str, where: str) -> None:
        with reading(where, "must be a JSON object"):
            row = json.loads(line)
        require(isinstance(row, dict), f"{where} must be a JSON object, got {one_line(line, 40)!r}")
        require_column(list(row), self.column, self.options, where)
        require_text(row[self.column], where, self.column)
        require_readable(row[self.column], where)

    def lines(self, part: list[str]) -> list[str]:
        return [json.loads(line)[self.column] for line in part]

    def encode(self, part: list[str], first_line: int, translations: list[list[Translation]]) -> bytes:
        added = new_columns([best for best, *_ in translations], self.options)
        rows = [dict(zip(added, values, strict=True)) for values in zip(*added.values(), strict=True)]
        objects = [line.rstrip().removesuffix("}").rstrip() for line in part]
        pairs = zip(objects, rows, strict=True)
        return "".join(f"{line}, {json.dumps(row, ensure_ascii=False)[1:]}\n" for line, row in pairs).encode()


class ParquetSource(BulkSource):
    """A Parquet file, to which columns are added."""

    def __init__(self, path: Path, options: TranslateOptions, column: str) -> None:
        super().__init__(path, options)
        import pyarrow.parquet  # which other files do not need

        self.column, self.pyarrow = column, pyarrow
        with self.reading():
            self.file = self.pyarrow.parquet.ParquetFile(path)
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

    def parts(self, first: int) -> Iterator[Any]:
        rest, skipped = self.schema.empty_table(), first * PART
        for group in range(self.file.num_row_groups):
            rows = self.file.metadata.row_group(group).num_rows
            if skipped >= rows:
                skipped -= rows
                continue
            for batch in self.file.iter_batches(PART, row_groups=[group]):
                rest = self.pyarrow.concat_tables([rest, self.pyarrow.Table.from_batches([batch.slice(skipped)])])
                skipped = max(0, skipped - len(batch))
                while len(rest) >= PART:
                    yield rest.slice(0, PART)
                    rest = rest.slice(PART)
        if len(rest):
            yield rest

    def lines(self, part: Any) -> list[str]:
        return part[self.column].to_pylist()

    def encode(self, part: Any, first_line: int, translations: list[list[Translation]]) -> bytes:
        file = io.BytesIO()
        self.pyarrow.parquet.write_table(self.with_columns(part, [best for best, *_ in translations]), file)
        return file.getvalue()

    def with_columns(self, table: Any, translations: Sequence[Translation]) -> Any:
        """Return a table with the new columns."""
        for name, values in new_columns(translations, self.options).items():
            kind = self.pyarrow.float64() if name in ("score", "confidence") else self.pyarrow.string()
            table = table.append_column(name, self.pyarrow.array(values, kind))
        metadata = dict(table.schema.metadata or {})
        metadata.pop(b"huggingface", None)  # it lists the columns, and datasets refuses others
        return table.replace_schema_metadata(metadata)

    def join(self, parts: Sequence[Path], file: BinaryIO) -> None:
        schema = self.with_columns(self.schema.empty_table(), []).schema
        with self.pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for path in parts:
                writer.write_table(self.pyarrow.parquet.ParquetFile(path).read())


def source_of(
    path: Path, out: Path, options: TranslateOptions, *, column: str = "", style: Format = "text", n_best: bool = False
) -> BulkSource:
    """Return the reader of a file, which its name decides: .jsonl, also compressed, .parquet, or else text.

    Args:
        path: The file.
        out: The output.
        options: How to translate.
        column: Column of a table.
        style: Output format of text.
        n_best: Whether the output of text is an n-best list.

    Raises:
        InputError: The file cannot be read, or its format does not fit the output or the options.
    """
    require(path.exists(), f"{path}: no such file")
    require_regular(path)
    kind = re.sub(r"\.(gz|bz2|xz|zst)$", "", path.name.lower()).rpartition(".")[2]
    if kind not in ("jsonl", "parquet"):
        require(not column, f"--column requires a table, .jsonl or .parquet, got {path}")
        fits = out.suffix.lower() not in (".parquet", ".gz", ".bz2", ".xz", ".zst")
        require(fits, f"{out}: the output must be text, as the input, and not compressed")
        return TextSource(path, options, style, n_best)
    require(out.suffix.lower() == f".{kind}", f"{out}: the output must be .{kind}, as the input")
    require(style == "text" and not n_best, "--format and --n_best do not work with a table")
    if kind == "jsonl":
        return JsonSource(path, options, column or "text")
    require_installed("pyarrow", extra="translation")
    return ParquetSource(path, options, column or "text")


def parse_shard(shard: str) -> tuple[int, int]:
    """Return i and n of a shard "i/n". Raises InputError unless 1 ≤ i ≤ n."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard, re.ASCII)
    i, n = map(int, match.groups()) if match else (0, 0)
    require(1 <= i <= n, f"shard must be i/n with 1 ≤ i ≤ n, such as 3/8, got {one_line(shard, 40)!r}")
    return i, n


def translate_file(
    translator: Translator,
    source: BulkSource,
    out: Path,
    settings: dict[str, Any],
    shard: tuple[int, int] | None = None,
) -> Path:
    """Translate a file, or continue after an interruption, and return the path of the output.

    Args:
        translator: The model.
        source: What to translate, and how.
        out: Path of the output. That of a shard i of n is made from it: out-0000i-of-0000n.
        settings: All else that the output depends on, as values for JSON.
        shard: i and n.

    Raises:
        InputError: a row cannot be translated; the input cannot be read or was changed; the output exists and was made
            with other settings or by another program, is being written by another process, or cannot be written.
    """
    i, n = shard or (1, 1)
    if shard:
        out = out.with_name(f"{out.stem}-{i:05}-of-{n:05}{out.suffix}")
    rows, digest = source.check()
    settings = {**settings, "input": digest, "shard": f"{i}/{n}", "rows per part": PART}
    settings = json.loads(json.dumps(settings))
    parts = -(-rows // PART)
    first, last = parts * (i - 1) // n, parts * i // n
    work = out.with_name(f".{out.name}.relattn")
    with locked(work, "writing this output"):
        record = work / "settings.json"
        require(record.exists() or not out.exists(), f"{out}: exists, and another program made it; choose another name")
        if out.exists() or any(work.glob("part-*")):
            with reading(record, "not a record of an output"):
                before = json.loads(record.read_bytes())
            changes = "; ".join(differences(before, settings))
            require(not changes, f"{out}: was made from other text or with other options: {changes}; use another name")
        if out.exists():
            _log.info("%s is complete", out)
            remove_parts(work)
            return out
        paths = [work / f"part-{index:06}" for index in range(first, last)]
        done = sum(1 for _ in takewhile(Path.exists, paths))
        total, initial = (min(rows, index * PART) - first * PART for index in (last, first + done))
        with progress_bar(total, "row", shown=shows_progress(), initial=initial) as advance:
            for index, part in zip(range(first + done, last), source.parts(first + done), strict=False):
                lines, first_line = source.lines(part), 1 + PART * index
                sentences = [Sentence(Marked(line), source.options) for line in lines]
                results = translator.translate_sentences(sentences, first_line, advance)
                if index == first:
                    write_atomically(record, json.dumps(settings).encode())
                write_atomically(paths[index - first], source.encode(part, first_line, results))
        if not paths:
            write_atomically(record, json.dumps(settings).encode())
        require(all(map(Path.exists, paths)), f"{source.path}: must have {rows:,} rows as before; it was changed")
        with putting(out) as aside, aside.open("wb") as file:
            source.join(paths, file)
        remove_parts(work)
    return out


def remove_parts(work: Path) -> None:
    """Remove the parts of a complete output."""
    for path in work.glob("part-*"):
        remove(path)
