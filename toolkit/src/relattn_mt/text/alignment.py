"""Word alignment: the source word that cross-attention looks at most while a target word is generated.

The model reads the whole translation again. The attention weights are those of one decoder layer, averaged over its
first heads, as the configuration of the model says (`ModelConfig.alignment`). Words are separated by spaces. The weight
of a target word on a source word is the sum over the pieces of both, and the largest weight gives the link. A target
word has no link if the special tokens around the source, mostly its end, have more weight than every word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn_mt.data.tokenizer import SpecialTokens, word_indices

Links = list[tuple[int, int]]  # (source word, target word), counted from 0, ordered by target word


def links(weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], special: SpecialTokens) -> Links:
    """Return the links between words, from weights (target pieces and the end, source pieces with special tokens)."""
    source, target = word_indices(src_pieces), word_indices(tgt_pieces)
    no_word = len(source)
    columns = [None] * len(special.src_begin) + list(source) + [None] * len(special.src_end)
    words = [no_word if word is None else word for word in columns]
    totals = np.zeros((max((word for word in target if word is not None), default=-1) + 1, no_word + 1))
    for row, word in zip(weights, target, strict=False):
        if word is not None:
            np.add.at(totals[word], words, row)
    best = totals.argmax(1) if totals.size else np.empty(0, dtype=int)
    return [(int(word), at) for at, word in enumerate(best) if word < no_word]
