"""Translate a file of text, or a column of a table, into a file. The files may be larger than memory.

    out-00003-of-00008.jsonl             third of eight shards, complete or absent; without shards, it is out.jsonl
    .out-00003-of-00008.jsonl.relattn/   settings.json: what is translated, and how; while it is translated, the parts

A part is a number of consecutive rows, which are translated in the same batches whatever the shards are. A shard is a
number of consecutive parts. So the shards together are the output of one run, byte by byte, and an interrupted run
continues after its last complete part.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from relattn_mt.config import differences
from relattn_mt.documents.read import FORMATS, file_suffix, uncompressed
from relattn_mt.support.console import progress_bar, shows_progress
from relattn_mt.support.errors import one_line, reading, require
from relattn_mt.support.files import putting, remove, require_regular, write_atomically
from relattn_mt.support.locking import locked
from relattn_mt.text.marked import Marked
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.translate import Format
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.output_formats import columns, format_lines, header_lines
from relattn_mt.translate.prepare import Sentence, require_readable
from relattn_mt.translate.translation import Translation
from relattn_mt.translate.translator import Translator

PART = 4096  # rows that are translated at once, and lost if the process is killed
_log = logging.getLogger(__name__)


class TextSource:
    """A file of text, one sentence per line. The output has lines in a format, or in that of n-best lists."""

    def __init__(self, path: Path, options: TranslateOptions, style: Format = "text", n_best: bool = False) -> None:
        self.path = path
        self.options = options
        self.style = style
        self.n_best = n_best

    def check(self, translator: Translator) -> tuple[int, str]:
        """Read the whole file, and return its number of lines and its digest.

        Raises:
            InputError: The file cannot be read, or lines cannot be translated.
        """
        digest = hashlib.sha256()
        count = 0

        def texts() -> Iterator[str]:
            nonlocal count
            for count, line in enumerate(read_lines(self.path, digest.update), start=1):
                yield self.checked_text(line, f"{self.path}: line {count}")

        translator.require_short(texts(), self.options, str(self.path))
        return count, digest.hexdigest()

    def checked_text(self, line: str, where: str) -> str:
        """Return what is translated of a line. Raise an InputError, which begins with `where`, if nothing can be."""
        require_readable(line, where)
        return line

    def parts(self, first: int) -> Iterator[list[str]]:
        """Yield the lines of each part, from that of the given index on."""
        rest = islice(read_lines(self.path), first * PART, None)
        return iter(lambda: list(islice(rest, PART)), [])

    def text(self, line: str) -> str:
        """Return what is translated of a line."""
        return line

    def encode(self, part: list[str], first_line: int, translations: list[list[Translation]]) -> bytes:
        """Return the output for a part, whose first line has the number `first_line`."""
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

    def checked_text(self, line: str, where: str) -> str:
        with reading(where, "must be a JSON object"):
            row = json.loads(line)
        require(isinstance(row, dict), f"{where} must be a JSON object, got {one_line(line, 40)!r}")
        given = one_line(", ".join(row) or "none", 200)
        name = one_line(self.column, 40)
        require(self.column in row, f"{where} must have a column {name!r}, got {given}")
        taken = [key for key in columns(Translation("", 0.0, []), align=self.options.align) if key in row]
        require(not taken, f"{where} must not have a column {', '.join(taken)}, because translations add it; rename it")
        value = row[self.column]
        kind = "null" if value is None else type(value).__name__
        require(isinstance(value, str), f"{where}: column {name!r} must be text, got {kind}")
        require_readable(value, where)
        return str(value)

    def text(self, line: str) -> str:
        return json.loads(line)[self.column]

    def encode(self, part: list[str], first_line: int, translations: list[list[Translation]]) -> bytes:
        rows = [columns(best, align=self.options.align) for best, *_ in translations]
        objects = [line.rstrip().removesuffix("}").rstrip() for line in part]
        pairs = zip(objects, rows, strict=True)
        return "".join(f"{line}, {json.dumps(row, ensure_ascii=False)[1:]}\n" for line, row in pairs).encode()


def source_of(
    path: Path, out: Path, options: TranslateOptions, *, column: str = "", style: Format = "text", n_best: bool = False
) -> TextSource:
    """Return the reader of a file, which its name decides: .jsonl, also compressed, or else text.

    Raises:
        InputError: The file cannot be read, or its format does not fit the output or the options.
    """
    require(path.exists(), f"{path}: no such file")
    require_regular(path)
    kind = file_suffix(uncompressed(path.name))
    if kind != ".jsonl":
        require(not column, f"--column requires a table, .jsonl, got {path}")
        fits = out.suffix.lower() not in {".gz", ".bz2", ".xz", ".zst", *FORMATS} - {".txt", ".jsonl"}
        require(fits, f"{out}: the output must be text, as the input, and neither a document nor compressed")
        return TextSource(path, options, style, n_best)
    require(out.suffix.lower() == kind, f"{out}: the output must be {kind}, as the input")
    require(style == "text" and not n_best, "--format and --n_best do not work with a table")
    return JsonSource(path, options, column or "text")


def parse_shard(shard: str) -> tuple[int, int]:
    """Return i and n of a shard "i/n". Raises InputError unless 1 ≤ i ≤ n."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard, re.ASCII)
    i, n = map(int, match.groups()) if match else (0, 0)
    require(1 <= i <= n, f"shard must be i/n with 1 ≤ i ≤ n, such as 3/8, got {one_line(shard, 40)!r}")
    return i, n


def translate_file(
    translator: Translator,
    source: TextSource,
    out: Path,
    settings: dict[str, Any],
    shard: tuple[int, int] | None = None,
) -> Path:
    """Translate a file, or continue after an interruption, and return the path of the output.

    That of a shard i of n is made from `out`: out-0000i-of-0000n. `settings` is all else that the output depends on, as
    values for JSON.

    Raises:
        InputError: a row cannot be translated; the input cannot be read or was changed; the output exists and was made
            with other settings or by another program, is being written by another process, or cannot be written.
    """
    i, n = shard or (1, 1)
    if shard:
        out = out.with_name(f"{out.stem}-{i:05}-of-{n:05}{out.suffix}")
    rows, digest = source.check(translator)
    settings = {**settings, "input": digest, "shard": f"{i}/{n}", "rows per part": PART}
    settings = json.loads(json.dumps(settings))
    parts = -(-rows // PART)
    first = parts * (i - 1) // n
    last = parts * i // n
    work = out.with_name(f".{out.name}.relattn")
    with locked(work, "writing this output"):
        record = work / "settings.json"
        require(record.exists() or not out.exists(), f"{out}: exists, and another program made it; choose another name")
        if out.exists() or any(work.glob("part-*")):
            with reading(record, "not a record of an output"):
                before = json.loads(record.read_bytes())
                size = before.pop("bytes", -1)
            changes = "; ".join(differences(before, settings))
            require(not changes, f"{out}: was made from other text or with other options: {changes}; use another name")
        if out.exists():
            require(
                out.stat().st_size == size, f"{out}: was complete with {size:,} bytes, and changed later; remove it"
            )
            _log.info("%s is complete", out)
            remove_parts(work)
            return out
        paths = [work / f"part-{index:06}" for index in range(first, last)]
        done = sum(1 for _ in takewhile(Path.exists, paths))
        total, initial = (min(rows, index * PART) - first * PART for index in (last, first + done))
        with progress_bar(total, "row", shown=shows_progress(), initial=initial) as advance:
            for index, part in zip(range(first + done, last), source.parts(first + done), strict=False):
                first_line = 1 + PART * index
                sentences = [Sentence(Marked(source.text(line)), source.options) for line in part]
                results = translator.translate_sentences(sentences, source.options, first_line, advance)
                if index == first:
                    write_atomically(record, json.dumps(settings).encode())
                write_atomically(paths[index - first], source.encode(part, first_line, results))
        require(all(map(Path.exists, paths)), f"{source.path}: must have {rows:,} rows as before; it was changed")
        size = sum(path.stat().st_size for path in paths)
        write_atomically(record, json.dumps({**settings, "bytes": size}).encode())
        with putting(out) as aside, aside.open("wb") as file:
            for path in paths:
                with path.open("rb") as part_file:
                    shutil.copyfileobj(part_file, file)
        remove_parts(work)
    return out


def remove_parts(work: Path) -> None:
    """Remove the parts of a complete output."""
    for path in work.glob("part-*"):
        remove(path)
