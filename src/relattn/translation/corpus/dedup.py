"""Which pairs occurred before, by their digests, in 8 bytes a pair at rest and at most 24 at any time.

A digest has 64 bits, so among n different pairs one is taken for another with a probability of about n² / 2⁶⁵: for
forty million, as in WMT14 English–French, 4 · 10⁻⁵.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def digest(src: bytes, tgt: bytes) -> bytes:
    """Eight bytes for a pair of lines without line ends, by BLAKE2b."""
    return blake2b(src + b"\n" + tgt, digest_size=8).digest()


class Seen:
    """Digests in sorted runs, each more than twice as long as the next, so that any is looked for in few of them."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, digests: np.ndarray) -> np.ndarray:
        """Take in digests, uint64 (n,); returns which of them were new, bool (n,), of equal ones the first."""
        distinct, first = np.unique(digests, return_index=True)
        known = np.zeros(len(distinct), dtype=bool)
        for run in self._runs:
            places = np.searchsorted(run, distinct)
            known |= run[np.minimum(places, len(run) - 1)] == distinct
        new = np.zeros(len(digests), dtype=bool)
        new[first[~known]] = True
        if not known.all():
            self._runs.append(distinct[~known])
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")  # which merges runs that are sorted
            self._runs.append(merged)
        return new
