"""Sources of sentence pairs for a preparation: files of the user, and what they have in common with synthetic text."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Protocol

from relattn_mt.corpus.filter_pool import ScoredPair
from relattn_mt.corpus.pair_files import read_pairs
from relattn_mt.support.errors import require
from relattn_mt.support.files import require_regular
from relattn_mt.support.types import Fields, LanguagePair, SentencePair
from relattn_mt.tokens.text_files import ParallelFiles, text_digest

_ESCAPED = re.compile(r"&(?:quot|apos|#91|#93|#124);| @-@ ")
_log = logging.getLogger(__name__)


class Source(Protocol):
    """Text to prepare: files, or synthetic text."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Paths of files of held-out lines."""

    @property
    def languages(self) -> LanguagePair:
        """Codes of the source and target languages."""

    @property
    def identity(self) -> Fields:
        """Everything that the pairs depend on, as values for JSON: `pairs`, their number, and `text`, digests by role.

        Raises:
            InputError: A file cannot be read.
        """

    @property
    def origin(self) -> Fields:
        """Names of what the pairs are made from, which may change, as values for JSON."""

    def pairs(self, start: int) -> Iterator[ScoredPair]:
        """Yield the pairs from an index on, in order."""


def by_role(role: str, paths: Iterable[str]) -> dict[str, str]:
    """Return paths by a role and a number, such as "excluded 1"."""
    return {f"{role} {number}": path for number, path in enumerate(paths, start=1)}


def file_names(paths: dict[str, str]) -> dict[str, str]:
    """Return the names of files, by role, as text that can be stored."""
    names = {role: os.fsencode(Path(path).name) for role, path in paths.items()}
    return {role: name.decode("utf-8", "backslashreplace") for role, name in names.items()}


@dataclass(frozen=True)
class OwnFiles:
    """Two parallel files of the user, or one file of pairs, plain or compressed.

    Attributes:
        src: Path of the source lines, or of the pairs.
        tgt: Path of the target lines; empty for a file of pairs.
        languages: Codes of the source and target languages.
        exclude: Paths of files of held-out lines.
    """

    src: str
    tgt: str
    languages: LanguagePair
    exclude: tuple[str, ...] = ()

    @property
    def paths(self) -> dict[str, str]:
        """Paths of all files, by role."""
        sides = {"src": self.src, "tgt": self.tgt} if self.tgt else {"pairs": self.src}
        return sides | by_role("excluded", self.exclude)

    @cached_property
    def identity(self) -> Fields:
        """Number of pairs, and checksums."""
        require_regular(*self.paths.values())
        total = tabs = escaped = 0
        for src, tgt in self._read():
            total += 1
            tabs += "\t" in src and "\t" in tgt
            escaped += _ESCAPED.search(src) is not None
        require(total > 0, f"{self.src}: must have at least one pair, got none")
        require(2 * tabs <= total, f"{self.src}: most lines have a tab; give columns of pairs by --pairs FILE.tsv")
        if 100 * escaped > total:
            _log.warning("%s: has entities or @-@ of Moses's tokenizer, which text to translate has not", self.src)
        digests = {role: text_digest(path) for role, path in self.paths.items()}
        is_same = "src" in digests and digests["src"] == digests["tgt"]
        require(
            not is_same,
            f"{self.src} and {self.tgt} must be two languages, got the same text; for one file with both, give --pairs",
        )
        return {"pairs": total, "text": digests}

    @property
    def origin(self) -> Fields:
        """Names of the files."""
        return {"files": file_names(self.paths)}

    def pairs(self, start: int) -> Iterator[ScoredPair]:
        """Yield the pairs from an index on, in order."""
        return islice(self._read(), start, None)

    def _read(self) -> Iterator[SentencePair]:
        """Yield all pairs. `filters` drops those with NUL, and counts them."""
        if self.tgt:
            return iter(ParallelFiles(self.src, self.tgt, accepts_nul=True))
        return read_pairs(self.src, self.languages)
