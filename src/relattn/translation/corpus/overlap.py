"""Whether training text has been seen in held-out text: by words in a row that they have in common."""

from __future__ import annotations

from collections.abc import Iterable

from relattn.translation.corpus.words import words

_SHORTEST = 4  # words of a held-out line that none may equal; "thank you" is no overlap


class HeldOut:
    """The n-grams of words of held-out lines, of both sides alike.

    Brown et al. (2020, appendix C) look for 13-grams. A held-out line of fewer words than n, but at least 4, overlaps
    with a line that has the same words and no others.

    Args:
        lines: held out.
        n: words in a row.
    """

    def __init__(self, lines: Iterable[str], n: int) -> None:
        self.n = n
        self._three: set[tuple[str, ...]] = set()  # words of each n-gram, looked for first: it takes little time
        self._whole: set[str] = set()
        for line in lines:
            found = words(line)
            if _SHORTEST <= len(found) < n:
                self._whole.add(" ".join(found))
            for gram in _grams(found, n):
                self._three.add((gram[0], gram[n // 2], gram[-1]))
                self._whole.add(" ".join(gram))

    def overlaps(self, found: list[str]) -> bool:
        """Whether a line of these words has an n-gram of a held-out line, or is a short one."""
        if len(found) < self.n:
            return len(found) >= _SHORTEST and " ".join(found) in self._whole
        if self._three.isdisjoint(zip(found, found[self.n // 2 :], found[self.n - 1 :], strict=False)):
            return False
        return any(" ".join(gram) in self._whole for gram in _grams(found, self.n))


def _grams(found: list[str], n: int) -> Iterable[list[str]]:
    return (found[start : start + n] for start in range(len(found) - n + 1))
