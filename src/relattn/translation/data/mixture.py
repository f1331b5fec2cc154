"""Several corpora as one: which there are, and how many pairs of each an epoch has.

A list of corpora is a text file, a line a corpus: source file, target file and, where it is not 1, a weight, with tabs
between; paths are from the list's own directory, and lines that begin with # are remarks. With n pairs, weight w and a
temperature T, a corpus has a share of (n·w)^(1/T) in an epoch of Σ n·w pairs: passed over w times where T is 1, and
small ones more often above that (Arivazhagan et al. 2019, section 4.2). What is more than whole passes is drawn afresh
for every epoch, each pair at most once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from relattn.translation.data.text_files import read_lines
from relattn.translation.errors import InputError, one_line

MOST_WEIGHT = 1000  # passes over a corpus per epoch


@dataclass(frozen=True)
class Listed:
    """A line of a list of corpora.

    Attributes:
        src: the source's file.
        tgt: the target's.
        weight: of the corpus.
    """

    src: str
    tgt: str
    weight: float = 1.0


def read_list(path: str, *, weighted: bool = True) -> list[Listed]:
    """Return the corpora of a list; only a `weighted` list may have weights.

    Raises:
        InputError: it cannot be read, names no corpus, or a line is not as it should be.
    """
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            src, tgt, *rest = line.split("\t")
            (weight,) = map(float, rest or ("1",))
            if not (src and tgt and 0 < weight <= MOST_WEIGHT):
                raise ValueError
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: must be a source file, a target file and perhaps a weight, above 0 and at "
                f"most {MOST_WEIGHT:,}, separated by tabs, got '{one_line(line, 60)}'"
            ) from error
        if rest and not weighted:
            raise InputError(f"{path}, line {number}: a validation set has no weight, got {rest[0]}")
        folder = Path(path).parent
        found.append(Listed(str(folder / src), str(folder / tgt), weight))
    if not found:
        raise InputError(f"{path}: lists no corpus")
    return found


@dataclass(frozen=True)
class Mixture:
    """Corpora that lie one behind the other, and how many pairs of each make an epoch.

    Attributes:
        sizes: pairs of each corpus.
        draws: pairs of each that an epoch has.
    """

    sizes: tuple[int, ...]
    draws: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> Mixture:
        """Of corpora of such sizes. One that has pairs has one in every epoch at least."""
        wanted = [size * weight for size, weight in zip(sizes, weights, strict=True)]
        shares = [count ** (1 / temperature) for count in wanted]
        each = [sum(wanted) * share / sum(shares) for share in shares]
        return cls(tuple(sizes), tuple(max(round(n), size > 0) for n, size in zip(each, sizes, strict=True)))

    def epoch(self, seed: int, epoch: int) -> np.ndarray | None:
        """The pairs of an epoch, (pairs,) indices, in no order that matters; None: each pair once."""
        if self.draws == self.sizes:
            return None
        random = np.random.default_rng([seed, epoch, 1])
        found = []
        for start, size, draws in zip(accumulate(self.sizes, initial=0), self.sizes, self.draws, strict=False):
            passes, rest = divmod(draws, size) if size else (0, 0)
            every = np.arange(start, start + size, dtype=np.int32)
            found += [every] * passes + [start + random.permutation(size).astype(np.int32)[:rest]]
        return np.concatenate(found)

    def corpus(self, index: int) -> int:
        """Which corpus a pair is of."""
        return bisect_right(list(accumulate(self.sizes)), index)
