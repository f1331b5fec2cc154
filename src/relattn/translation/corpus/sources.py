"""Where the pairs of a corpus come from: files of the user's, or a known corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from relattn.translation.corpus import fetch, test_sets
from relattn.translation.corpus.catalog import KNOWN, HeldOutText, Known
from relattn.translation.data.text_files import ParallelFiles, read_lines, read_parallel, text_digest
from relattn.translation.errors import InputError, reading, require

Pair = tuple[str, str]
_BATCH = 1000  # rows of Parquet that are text at once


@dataclass(frozen=True)
class Source:
    """A corpus that lies here.

    Attributes:
        total: pairs.
        pairs: they, from the one with this index on.
        held_out: lines, of either side, that training text must have nothing of.
        beside: files to be written beside the training text, and their lines.
        origin: what was fetched, as a preparation that goes on needs it.
    """

    total: int
    pairs: Callable[[int], Iterator[Pair]]
    held_out: list[str]
    beside: dict[str, list[str]]
    origin: dict[str, Any]


@dataclass(frozen=True)
class OwnFiles:
    """Two parallel files of the user's, plain or .gz.

    Attributes:
        src: source lines.
        tgt: target lines.
        languages: of source and target.
        exclude: files of held-out lines.
    """

    src: str
    tgt: str
    languages: tuple[str, str]
    exclude: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes it this corpus; to tell, it is read once, and its sides are held to each other.

        Raises:
            InputError: as `corpora.read_parallel`.
        """
        for path in (self.src, self.tgt, *self.exclude):
            special = Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir())
            require(
                not special, f"{path} must be a regular file, because it is read more than once, got a pipe or a device"
            )
        files = ParallelFiles(self.src, self.tgt)
        total = sum(1 for _ in files)
        digests = dict(zip(("src", "tgt"), files.digests(), strict=True))
        paths = {"src": self.src, "tgt": self.tgt}
        for number, path in enumerate(self.exclude, start=1):
            name = f"excluded {number}"
            paths[name], digests[name] = path, text_digest(path)
        names = {key: os.fsencode(Path(path).name).decode("utf-8", "backslashreplace") for key, path in paths.items()}
        text = {key: {"file": name, "sha256": digests[key]} for key, name in names.items()}
        return {"pairs": total, "text": text}

    def open(self, origin: dict[str, Any] | None = None) -> Source:
        """The corpus."""
        held_out = [line for path in self.exclude for line in read_lines(path)]
        return Source(self.identity["pairs"], self._pairs, held_out, {}, {})

    def _pairs(self, start: int) -> Iterator[Pair]:
        return islice(read_parallel(self.src, self.tgt), start, None)


@dataclass(frozen=True)
class KnownCorpus:
    """A corpus that is known by name, one of KNOWN."""

    name: str

    @property
    def languages(self) -> tuple[str, str]:
        """Of source and target."""
        return KNOWN[self.name].src_lang, KNOWN[self.name].tgt_lang

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this corpus."""
        return {"corpus": self.name}

    def open(self, origin: dict[str, Any] | None = None) -> Source:
        """The corpus, fetched as far as it is not here.

        Args:
            origin: of a preparation that has begun, which stays at its commit; None: the newest.

        Raises:
            InputError: it cannot be fetched, or is not as it is said to be.
        """
        corpus = KNOWN[self.name]
        if origin is None:
            files = fetch.listed(corpus.repository)
        else:
            files = [fetch.RemoteFile(**file) for file in origin["files"]]
        train = [file for file in files if file.name.startswith(corpus.train)]
        if not train:
            raise InputError(f"{corpus.repository}: the data set has no file {corpus.train}…")
        beside: dict[str, list[str]] = {}
        used = list(train)
        for text in corpus.held_out:
            used += [file for file in files if file.name == text.file]
            for language, lines in zip(self.languages, _held_out(corpus, text, files), strict=True):
                beside[f"{text.name}.{language}{text.suffix}"] = lines
        paths = [fetch.fetched(file) for file in train]
        counts = [_count(path) for path in paths]

        def pairs(start: int) -> Iterator[Pair]:
            for path, count in zip(paths, counts, strict=True):
                if start < count:
                    yield from _rows(path, corpus, start)
                start = max(0, start - count)

        held_out = [line for lines in beside.values() for line in lines]
        return Source(sum(counts), pairs, held_out, beside, {"files": [asdict(file) for file in used]})


def _held_out(corpus: Known, text: HeldOutText, files: list[fetch.RemoteFile]) -> tuple[list[str], list[str]]:
    """The lines of a test set, source and target."""
    if text.sacrebleu:
        pairs = test_sets.pairs_of(text.sacrebleu, corpus.src_lang, corpus.tgt_lang)
    else:
        file = next((file for file in files if file.name == text.file), None)
        if file is None:
            raise InputError(f"{corpus.repository}: the data set has no file {text.file}")
        pairs = list(_rows(fetch.fetched(file), corpus, 0))
    src, tgt = ([" ".join(pair[side].split()) for pair in pairs] for side in (0, 1))
    return src, tgt


def _count(path: Path) -> int:
    if path.suffix != ".parquet":
        return sum(1 for _ in read_lines(path))
    from pyarrow import parquet

    with reading(path, "not Parquet"):
        return int(parquet.read_metadata(path).num_rows)


def _rows(path: Path, corpus: Known, start: int) -> Iterator[Pair]:
    """The pairs of a file of a known corpus, from one on; a side that is missing is empty."""
    sides = corpus.src_lang, corpus.tgt_lang
    if path.suffix != ".parquet":
        for line in islice(read_lines(path), start, None):
            with reading(path, "not pairs as JSON lines"):
                row = json.loads(line)
                src, tgt = (str(row[side] or "") for side in sides)
            yield src, tgt
        return
    from pyarrow import parquet

    with reading(path, "not pairs in Parquet"), parquet.ParquetFile(path) as file:
        groups = list(range(file.num_row_groups))
        while groups and start >= file.metadata.row_group(groups[0]).num_rows:
            start -= file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(_BATCH, row_groups=groups, columns=["translation"]):
            src, tgt = (batch.column("translation").field(side).to_pylist() for side in sides)
            for a, b in islice(zip(src, tgt, strict=True), start, None):
                yield a or "", b or ""
            start = max(0, start - len(batch))
