"""Overlap of training text with held-out text, by the n-grams of words that they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_SHORTEST = 4  # words; shorter held-out lines, such as "thank you", are ignored


class HeldOutText:
    """N-grams of the words of held-out lines.

    Brown et al. (2020, appendix C) use 13-grams. A held-out line of fewer than n words, but at least 4, overlaps only
    with a line of the same words.

    Args:
        lines: Words of each held-out line.
        n: Number of consecutive words.
    """

    def __init__(self, lines: Iterable[list[str]], n: int) -> None:
        self.n = n
        # Three words of each n-gram. Most lines share none of them, and looking these up is faster than joining words.
        self._keys: set[tuple[str, ...]] = set()
        self._texts: set[str] = set()
        for words in lines:
            if _SHORTEST <= len(words) < n:
                self._texts.add(" ".join(words))
            for gram in _ngrams(words, n):
                self._keys.add((gram[0], gram[n // 2], gram[-1]))
                self._texts.add(" ".join(gram))

    def overlaps(self, words: list[str]) -> bool:
        """Return whether a line of these words shares an n-gram with a held-out line, or equals a short one."""
        if len(words) < self.n:
            return len(words) >= _SHORTEST and " ".join(words) in self._texts
        if self._keys.isdisjoint(zip(words, words[self.n // 2 :], words[self.n - 1 :], strict=False)):
            return False
        return any(" ".join(gram) in self._texts for gram in _ngrams(words, self.n))


def _ngrams(words: list[str], n: int) -> Iterator[list[str]]:
    return (words[start : start + n] for start in range(len(words) - n + 1))
