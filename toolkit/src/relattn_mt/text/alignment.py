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

from relattn_mt.tokens.tokenizer import BYTE, SpecialTokens, word_indices

# instead of the word of a piece; the columns of both come after those of the words
_SPACE = -2
_NOT_COUNTED = -1
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


def align_words(
    weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], special: SpecialTokens
) -> WordAlignment:
    """Return the alignment of words.

    Args:
        weights: Attention weights (target pieces and the end, source pieces with special tokens).
        src_pieces: Pieces of the source.
        tgt_pieces: Pieces of the translation.
        special: The special tokens.
    """
    source = [_SPACE] * len(special.src_begin) + _counted_words(src_pieces) + [_SPACE] * len(special.src_end)
    target = np.array(_counted_words(tgt_pieces), np.int64)
    count = max([-1, *source]) + 1
    width = count + 2
    rows = np.flatnonzero(target >= 0)
    if not len(rows):
        return WordAlignment([], [None] * count)
    cells = target[rows, None] * width + np.array(source) % width
    totals = np.bincount(cells.ravel(), weights[rows].ravel(), (target.max() + 1) * width).reshape(-1, width)
    best = totals[:, : count + 1].argmax(1).tolist()
    links = [(word, at) for at, word in enumerate(best) if word < count]
    likeliest: list[int | None] = []
    for column in totals[:, :count].T:
        target_word = int(column.argmax())
        likeliest.append(target_word if column[target_word] >= LEAST_WEIGHT else None)
    return WordAlignment(links, likeliest)


def _counted_words(pieces: Sequence[str]) -> list[int]:
    """Return the word of each piece, or a negative number for a space, and for punctuation that does not count.

    Punctuation does not count in a word that has letters or digits.
    """
    words = word_indices(pieces)
    have_letters = list(map(_has_letter, pieces))
    with_letters = {word for word, has_letter in zip(words, have_letters, strict=True) if has_letter}
    counted = []
    for word, has_letter in zip(words, have_letters, strict=True):
        if word is None:
            counted.append(_SPACE)
        elif has_letter or word not in with_letters:
            counted.append(word)
        else:
            counted.append(_NOT_COUNTED)
    return counted


@lru_cache(1 << 16)
def _has_letter(piece: str) -> bool:
    """Return whether a piece has a letter, a digit, or a mark such as a vowel of Hindi. Those of bytes may have one."""
    return bool(BYTE.fullmatch(piece)) or any(unicodedata.category(each)[0] in "LNM" for each in piece)
