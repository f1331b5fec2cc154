"""Sources of sentence pairs: the user's files, or a corpus that is known by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from relattn_mt.corpus.catalog import CATALOG, CatalogEntry
from relattn_mt.corpus.fetch import RemoteFile, download, list_files, sacrebleu_pairs
from relattn_mt.corpus.filter_pool import ScoredPair
from relattn_mt.data.text_files import ParallelFiles, read_lines, read_parallel, text_digest
from relattn_mt.support.errors import reading, require
from relattn_mt.support.files import require_regular

_BATCH = 1000  # rows of a Parquet file that are decoded at once


@dataclass(frozen=True)
class OpenCorpus:
    """A corpus whose files are on this machine.

    Attributes:
        total: Number of pairs.
        pairs: Function that returns the pairs from an index on, in order.
        held_out: Lines of either language that training text must not overlap with.
        test_sets: Lines of the files to write next to the training text.
        origin: Files that it is made from, as values for JSON.
    """

    total: int
    pairs: Callable[[int], Iterator[ScoredPair]]
    held_out: list[str]
    test_sets: dict[str, list[str]]
    origin: dict[str, Any]


def file_name(path: str) -> str:
    """Return the name of a file as text that can be stored."""
    return os.fsencode(Path(path).name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class OwnFiles:
    """Two parallel files of the user, plain or compressed.

    Attributes:
        src: Path of the source lines.
        tgt: Path of the target lines.
        languages: Codes of the source and target languages.
        exclude: Paths of files of held-out lines.
    """

    src: str
    tgt: str
    languages: tuple[str, str]
    exclude: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Number of pairs and checksums, for which the files are read once.

        Raises:
            InputError: a file cannot be read more than once, or as `read_parallel`.
        """
        require_regular(self.src, self.tgt, *self.exclude)
        files = ParallelFiles(self.src, self.tgt)
        total = sum(1 for _ in files)
        src, tgt = files.digests()
        excluded = {f"excluded {number}": text_digest(path) for number, path in enumerate(self.exclude, start=1)}
        return {"pairs": total, "text": {"src": src, "tgt": tgt, **excluded}}

    def open(self, origin: dict[str, Any] | None = None) -> OpenCorpus:
        """Return the corpus. `origin` is ignored: files may be renamed."""
        held_out = [line for path in self.exclude for line in read_lines(path)]
        roles, paths = self.identity["text"], (self.src, self.tgt, *self.exclude)
        origin = {"files": dict(zip(roles, map(file_name, paths), strict=True))}

        def pairs(start: int) -> Iterator[ScoredPair]:
            return islice(read_parallel(self.src, self.tgt), start, None)

        return OpenCorpus(self.identity["pairs"], pairs, held_out, {}, origin)


@dataclass(frozen=True)
class KnownCorpus:
    """A corpus of the catalog."""

    name: str

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and target languages."""
        return CATALOG[self.name].src_lang, CATALOG[self.name].tgt_lang

    @property
    def identity(self) -> dict[str, Any]:
        """Name of the corpus, as a value for JSON."""
        return {"corpus": self.name}

    def open(self, origin: dict[str, Any] | None = None) -> OpenCorpus:
        """Return the corpus, whose missing files are downloaded.

        Args:
            origin: Files of a preparation that has begun, which stays at their commit. None takes the newest commit.

        Raises:
            InputError: a file cannot be downloaded, or is missing in the data set.
        """
        entry = CATALOG[self.name]
        files = list_files(entry.repository) if origin is None else [RemoteFile(**file) for file in origin["files"]]
        train = _matching(files, entry, entry.train)
        used, test_sets = list(train), {}
        for held_out in entry.held_out:
            if held_out.sacrebleu:
                pairs = sacrebleu_pairs(held_out.sacrebleu, entry.src_lang, entry.tgt_lang)
            else:
                file, *_ = _matching(files, entry, held_out.file)
                used.append(file)
                pairs = list(_read_rows(download(file), entry))
            for side, language in enumerate(self.languages):
                lines = [" ".join(pair[side].split()) for pair in pairs]
                test_sets[f"{held_out.name}.{language}{held_out.suffix}"] = lines
        paths = [download(file) for file in train]
        return OpenCorpus(
            total=sum(map(_count_rows, paths)),
            pairs=lambda start: islice(chain.from_iterable(_read_rows(path, entry) for path in paths), start, None),
            held_out=list(chain(*test_sets.values())),
            test_sets=test_sets,
            origin={"files": [asdict(file) for file in used]},
        )


def _matching(files: list[RemoteFile], entry: CatalogEntry, prefix: str) -> list[RemoteFile]:
    """Return the files whose names begin with `prefix`; at least one must exist."""
    matching = [file for file in files if file.name.startswith(prefix)]
    require(bool(matching), f"{entry.repository}: the data set has no file {prefix}…")
    return matching


def _count_rows(path: Path) -> int:
    """Return the number of pairs of a downloaded file."""
    if path.suffix != ".parquet":
        return sum(1 for _ in read_lines(path))
    from pyarrow import parquet

    with reading(path, "not Parquet"):
        return int(parquet.read_metadata(path).num_rows)


def _read_rows(path: Path, entry: CatalogEntry) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a downloaded file. A missing side is empty."""
    sides = entry.src_lang, entry.tgt_lang
    if path.suffix != ".parquet":
        for line in read_lines(path):
            with reading(path, "not pairs as JSON lines"):
                row = json.loads(line)
                src, tgt = (str(row[side] or "") for side in sides)
            yield src, tgt
        return
    from pyarrow import parquet

    with reading(path, "not pairs in Parquet"), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=["translation"]):
            columns = [batch.column("translation").field(side).to_pylist() for side in sides]
            for src, tgt in zip(*columns, strict=True):
                yield src or "", tgt or ""
