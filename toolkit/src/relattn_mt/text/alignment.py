"""Word alignment: the source word that cross-attention looks at most while a target word is generated.

The model reads the whole translation again. The attention weights are those of one decoder layer, averaged over its
first heads, as the configuration of the model says (`ModelConfig.alignment`). Words are separated by spaces. The weight
of a target word on a source word is the sum over the pieces of both, and the largest weight gives the link. In a word
that has letters or digits, pieces of punctuation alone do not count: their attention is on the end of the sentence or
on other punctuation. A target word has no link if the special tokens around the source, mostly its end, have more
weight than every word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from relattn_mt.data.tokenizer import BYTE, SpecialTokens, word_indices

LEAST_WEIGHT = 0.05  # of a target word on a source word, so that it may be its translation
Links = list[tuple[int, int]]  # (source word, target word), counted from 0, ordered by target word


class WordAlignment(NamedTuple):
    """Alignment of the words of a sentence and its translation.

    Attributes:
        links: The links, at most one per target word.
        likeliest: For each source word, the target word that looks at it most, if any does.
    """

    links: Links
    likeliest: list[int | None]


def links(weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], special: SpecialTokens) -> Links:
    """Return the links between words, from weights (target pieces and the end, source pieces with special tokens)."""
    return align_words(weights, src_pieces, tgt_pieces, special).links


def align_words(
    weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], special: SpecialTokens
) -> WordAlignment:
    """Return the alignment of words. Arguments are those of `links`."""
    source, target = word_indices(src_pieces), word_indices(tgt_pieces)
    no_word = len(source)
    columns = [no_word] * len(special.src_begin)
    columns += [no_word if word is None else word for word in source]
    columns += [no_word] * len(special.src_end)
    factors = np.ones(len(columns))
    factors[len(special.src_begin) :][: len(source)] = _are_counted(src_pieces, source)
    are_counted = _are_counted(tgt_pieces, target)
    rows = [row for row, word in enumerate(target) if are_counted[row] and word is not None]
    totals = np.zeros((max((word for word in target if word is not None), default=-1) + 1, no_word + 1))
    words = np.array([target[row] for row in rows], dtype=int)
    np.add.at(totals, (words[:, None], np.array(columns, dtype=int)), weights[rows] * factors)
    count = max((word for word in source if word is not None), default=-1) + 1
    if not len(totals):
        return WordAlignment([], [None] * count)
    best = [(int(word), at) for at, word in enumerate(totals.argmax(1)) if word < no_word]
    looking = zip(totals[:, :count].argmax(0).tolist(), totals[:, :count].max(0).tolist(), strict=True)
    return WordAlignment(best, [target if weight >= LEAST_WEIGHT else None for target, weight in looking])


def _are_counted(pieces: Sequence[str], words: Sequence[int | None]) -> list[bool]:
    """Return whether each piece counts: not if it is punctuation, and its word has letters or digits."""
    with_letters = {word for piece, word in zip(pieces, words, strict=True) if _has_letter(piece)}
    return [_has_letter(piece) or word not in with_letters for piece, word in zip(pieces, words, strict=True)]


@lru_cache(1 << 16)
def _has_letter(piece: str) -> bool:
    """Return whether a piece has a letter, a digit, or a mark such as a vowel of Hindi. Those of bytes may have one."""
    return bool(BYTE.fullmatch(piece)) or any(unicodedata.category(each)[0] in "LNM" for each in piece)
