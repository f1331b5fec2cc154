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

# instead of the word of a piece
_SPACE = -1
_NOT_COUNTED = -2
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
    source = _counted_words(src_pieces)
    target = _counted_words(tgt_pieces)
    count, rows_count = (max(words, default=-1) + 1 for words in (source, target))
    no_word = count
    not_counted = count + 1
    inner = [not_counted if word == _NOT_COUNTED else no_word if word == _SPACE else word for word in source]
    columns = [no_word] * len(special.src_begin) + inner + [no_word] * len(special.src_end)
    rows = [row for row, word in enumerate(target) if word >= 0]
    if not rows:
        return WordAlignment([], [None] * count)
    cells = np.array([target[row] for row in rows])[:, None] * (count + 2) + np.array(columns)
    totals = np.bincount(cells.ravel(), weights[rows].ravel(), rows_count * (count + 2)).reshape(rows_count, -1)
    best = [(word, at) for at, word in enumerate(totals[:, : count + 1].argmax(1).tolist()) if word < no_word]
    if not count:
        return WordAlignment(best, [])
    looking = zip(totals[:, :count].argmax(0).tolist(), totals[:, :count].max(0).tolist(), strict=True)
    return WordAlignment(best, [target if weight >= LEAST_WEIGHT else None for target, weight in looking])


def _counted_words(pieces: Sequence[str]) -> list[int]:
    """Return the word of each piece, or a negative number for a space, and for punctuation that does not count.

    Punctuation does not count in a word that has letters or digits.
    """
    words = word_indices(pieces)
    have_letters = list(map(_has_letter, pieces))
    if all(have_letters):
        return [_SPACE if word is None else word for word in words]
    with_letters = {word for word, has_letter in zip(words, have_letters, strict=True) if has_letter}
    return [
        _SPACE if word is None else word if has_letter or word not in with_letters else _NOT_COUNTED
        for word, has_letter in zip(words, have_letters, strict=True)
    ]


@lru_cache(1 << 16)
def _has_letter(piece: str) -> bool:
    """Return whether a piece has a letter, a digit, or a mark such as a vowel of Hindi. Those of bytes may have one."""
    return bool(BYTE.fullmatch(piece)) or any(unicodedata.category(each)[0] in "LNM" for each in piece)
