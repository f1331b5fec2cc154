"""Sources of sentence pairs for a preparation: files of the user, and what they have in common with synthetic text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from relattn_mt.corpus.filter_pool import ScoredPair
from relattn_mt.data.text_files import ParallelFiles, read_parallel, text_digest
from relattn_mt.support.files import require_regular


class Source(Protocol):
    """Text to prepare: files, or synthetic text."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Paths of files of held-out lines."""

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and target languages."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the pairs depend on, as values for JSON: `pairs`, their number, and `text`, digests by role.

        Raises:
            InputError: A file cannot be read.
        """

    @property
    def origin(self) -> dict[str, Any]:
        """Names of what the pairs are made from, which may change, as values for JSON."""

    def pairs(self, start: int) -> Iterator[ScoredPair]:
        """Yield the pairs from an index on, in order."""


def file_names(roles: dict[str, str], *paths: str) -> dict[str, str]:
    """Return the names of files, by role, as text that can be stored."""
    names = [os.fsencode(Path(path).name).decode("utf-8", "backslashreplace") for path in paths]
    return dict(zip(roles, names, strict=True))


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
        """Number of pairs, and checksums."""
        require_regular(self.src, self.tgt, *self.exclude)
        files = ParallelFiles(self.src, self.tgt)
        total = sum(1 for _ in files)
        src, tgt = files.digests()
        excluded = {f"excluded {number}": text_digest(path) for number, path in enumerate(self.exclude, start=1)}
        return {"pairs": total, "text": {"src": src, "tgt": tgt, **excluded}}

    @property
    def origin(self) -> dict[str, Any]:
        """Names of the files."""
        return {"files": file_names(self.identity["text"], self.src, self.tgt, *self.exclude)}

    def pairs(self, start: int) -> Iterator[ScoredPair]:
        """Yield the pairs from an index on, in order."""
        return islice(read_parallel(self.src, self.tgt), start, None)
