"""Lexicon of a parallel text: words that are each other's best translation, to tell whether an alignment is right.

The association of a source word s and a target word t is the Dice coefficient of the sentence pairs that they are in,
2·c(s, t) / (c(s) + c(t)). A pair of words is in the lexicon if each is the other's best, in at least LEAST sentence
pairs, with an association of at least SURE. Words are separated by spaces; case and punctuation around them do not
count. A contraction such as "don't" is no word here. Scripts without spaces have few words or none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from relattn_mt.support.types import SentencePair
from relattn_mt.text.alignment import Links

LEAST = 5
SURE = 0.3
_WORD = re.compile("[^ ]+")
_AROUND = re.compile(r"^\W+|\W+$")
_CONTRACTED = re.compile(r"\w['’]\w")  # two words in one, as in "don't"


class Agreement(NamedTuple):
    """Number of words of translations whose source word a lexicon knows, by what an alignment links them to."""

    right: int = 0
    wrong: int = 0
    unlinked: int = 0

    @property
    def accuracy(self) -> float:
        """Share of the words that are linked to the right one; 0 without words."""
        return self.right / max(1, sum(self))


def words_of(line: str) -> list[str]:
    """Return the words of a line, in lower case and without punctuation around them."""
    return [_AROUND.sub("", word).lower() for word in _WORD.findall(line)]


def lexicon(pairs: Iterable[SentencePair]) -> dict[str, str]:
    """Return the source word of each target word whose translation is sure, from pairs of sentences."""
    pairs = list(pairs)
    if not pairs:
        return {}
    (sources, src_ids), (targets, tgt_ids) = map(_numbered, zip(*pairs, strict=True))
    ids, association = associations(src_ids, tgt_ids, LEAST)
    order = np.argsort(association, kind="stable")
    are_best = association >= SURE
    for side in ids:
        best = np.full(int(side.max(initial=0)) + 1, -1)
        best[side[order]] = order  # the last one stays
        are_best &= best[side] == np.arange(len(side))
    return {targets[t]: sources[s] for s, t in zip(ids[0][are_best], ids[1][are_best], strict=True)}


def _numbered(lines: Iterable[str]) -> tuple[list[str], list[np.ndarray]]:
    """Return the different words of lines, and the numbers of the different words of each line."""
    known: dict[str, int] = {}
    numbers = []
    for line in lines:
        words = dict.fromkeys(word for word in words_of(line) if word and not _CONTRACTED.search(word))
        numbers.append(np.array([known.setdefault(word, len(known)) for word in words], np.int64))
    return list(known), numbers


def agreement(sources: Mapping[str, str], pairs: Iterable[SentencePair], links: Iterable[Links]) -> Agreement:
    """Compare links with a lexicon, for the words that occur once on each side of their pair.

    Args:
        sources: Source word of each target word, as `lexicon` returns it.
        pairs: Sentences and their translations, of which words are separated by spaces.
        links: Word alignment of each pair.
    """
    counts: Counter[str] = Counter()
    for (source, target), own in zip(pairs, links, strict=True):
        source_words = words_of(source)
        target_words = words_of(target)
        linked = {target_index: source_words[source_index] for source_index, target_index in own}
        for index, word in enumerate(target_words):
            expected = sources.get(word)
            if expected is None or not source_words.count(expected) == 1 == target_words.count(word):
                continue
            if index not in linked:
                counts["unlinked"] += 1
            else:
                counts["right" if linked[index] == expected else "wrong"] += 1
    return Agreement(**counts)


def associations(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], least: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return pairs of ids that share sentence pairs, and their Dice coefficients, 2·c(s, t) / (c(s) + c(t)).

    Args:
        sources: Different ids of each source.
        targets: Different ids of its translation.
        least: Minimum number of sentence pairs that two ids share.

    Returns:
        (entries,) ids of the source side and of the target side, sorted, and (entries,) the coefficients.
    """
    together = [(src[:, None] << 32 | tgt).ravel() for src, tgt in zip(sources, targets, strict=True)]
    keys, counts = np.unique(np.concatenate(together), return_counts=True)
    is_kept = counts >= least
    keys = keys[is_kept]
    counts = counts[is_kept]
    ids = keys >> 32, keys & 0xFFFFFFFF
    src_counts, tgt_counts = (np.bincount(np.concatenate(side)) for side in (sources, targets))
    return ids, 2 * counts / (src_counts[ids[0]] + tgt_counts[ids[1]])
