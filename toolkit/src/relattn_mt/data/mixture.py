"""Mixtures: train on several corpora, each with a share of an epoch.

A list of corpora is a text file with one corpus per line: source file, target file and an optional weight, separated by
tabs. Paths are relative to the directory of the list, and lines that start with # are comments. In a list for a model
of several languages, each line ends with the codes of the source and the target language.

With n pairs and weight w per corpus and a temperature T, an epoch has Σ n·w pairs, and a corpus has a share of them
proportional to (n·w)^(1/T). With T = 1, a corpus is passed over w times; a higher T favors small corpora (Arivazhagan
et al. 2019, section 4.2). Whole passes have all pairs; the rest of an epoch is drawn, with each pair at most once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relattn_mt.config import MOST_WEIGHT
from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.support.files import require_regular
from relattn_mt.support.types import LanguagePair
from relattn_mt.text.patterns import has_text
from relattn_mt.tokens.text_files import read_lines

_CODE = re.compile(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*")  # of a language, such as de, zh-Hant or deu_Latn


class CorpusFiles(NamedTuple):
    """A corpus of a list.

    Attributes:
        src: Source file.
        tgt: Target file.
        weight: Weight in a mixture.
        languages: Codes of the source and the target language; None if the list does not name them.
    """

    src: str
    tgt: str
    weight: float = 1.0
    languages: LanguagePair | None = None


def read_corpus_list(path: str, *, weighted: bool = True, languages: bool = False) -> list[CorpusFiles]:
    """Return the corpora of a list, which may have weights, and whose lines end with two codes if it has languages.

    Raises:
        InputError: The list cannot be read, has no corpus or has an invalid line.
    """
    require_regular(path)
    folder = Path(path).parent
    corpora = []
    for number, line in enumerate(read_lines(path), start=1):
        if not has_text(line) or line.startswith("#"):
            continue
        where = f"{path}, line {number}"
        pair = None
        try:
            if languages:
                line, src_lang, tgt_lang = line.rsplit("\t", 2)
                pair = src_lang, tgt_lang
            src, tgt, *rest = line.split("\t")
            (weight,) = map(float, rest or ("1",))
            valid = src and tgt and 0 < weight <= MOST_WEIGHT
        except ValueError:
            valid = False
        if not valid:
            ending = ", and the codes of both languages" if languages else ""
            raise InputError(
                f"{where}: must be a source file, a target file and perhaps a weight, above 0 and at most "
                f"{MOST_WEIGHT:,}{ending}, separated by tabs, got '{one_line(line, 60)}'"
            )
        require(weighted or not rest, f"{where}: validation text must have no weight, got {rest}")
        if pair is not None:
            codes = " and ".join(repr(code[:40]) for code in pair)
            valid = pair[0] != pair[1] and all(map(_CODE.fullmatch, pair))
            require(valid, f"{where}: must end with the codes of two languages, got {codes}")
        corpora.append(CorpusFiles(str(folder / src), str(folder / tgt), weight, pair))
    require(corpora, f"{path}: must list at least one corpus")
    return corpora


@dataclass(frozen=True)
class Mixture:
    """Corpora that are stored one after the other, and their number of pairs per epoch.

    Attributes:
        sizes: Number of pairs of each corpus, at least 1.
        draws: Number of pairs of each corpus in an epoch.
    """

    sizes: tuple[int, ...]
    draws: tuple[int, ...]

    @classmethod
    def weighted(cls, sizes: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> Mixture:
        """Return the mixture of weighted corpora. Every corpus with a weight has at least one pair in an epoch."""
        weighted_sizes = [size * weight for size, weight in zip(sizes, weights, strict=True)]
        tempered_sizes = [size ** (1 / temperature) for size in weighted_sizes]
        total = sum(weighted_sizes)
        draws = []
        for tempered_size in tempered_sizes:
            least = int(tempered_size > 0)
            draws.append(max(least, round(total * tempered_size / sum(tempered_sizes))))
        return cls(tuple(sizes), tuple(draws))

    def epoch(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return the pairs of an epoch, (pairs,) indices in no particular order. None means each pair once."""
        if self.draws == self.sizes:
            return None
        random = np.random.default_rng([seed, epoch, 1])
        indices = []
        for start, size, draws in zip(accumulate(self.sizes, initial=0), self.sizes, self.draws, strict=False):
            passes, remainder = divmod(draws, size)
            indices += [np.arange(start, start + size, dtype=np.int32)] * passes
            indices.append(start + random.permutation(size).astype(np.int32)[:remainder])
        return np.concatenate(indices)
