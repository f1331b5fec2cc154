"""Make a lexical shortlist: for each source piece, the target pieces that it is likeliest translated with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.engine.shortlist import Shortlist, packed
from relattn_mt.support.errors import require
from relattn_mt.support.types import PathPair
from relattn_mt.text.aligner import Aligner
from relattn_mt.tokens.text_files import ParallelFiles

# pieces that are always there, and of each source piece, as in Firefox's models
_FIRST = 50
_BEST = 50
_CELLS = 20_000_000  # source pieces × target pieces of the sentence pairs that are aligned


def make_shortlist(bundle: Bundle, files: PathPair, sizes: Sequence[int]) -> Shortlist:
    """Return the shortlist of the likeliest target pieces of each source piece.

    Args:
        bundle: The bundle whose tokenizer has the pieces.
        files: Sentences and their translations, of which a part that is spread evenly is used if they are long.
        sizes: Number of source and of target pieces that Marian knows.

    Raises:
        InputError: A file cannot be read, or no piece occurs twice with the same other one.
    """
    aligner = _aligner(bundle, files)
    keys = aligner.keys[:-1]
    probabilities = aligner.tables[0][:-1]
    require(len(keys) > 0, f"{files[0]}: a shortlist requires more text: no two pieces are twice in the same pair")
    keys = keys[np.lexsort((-probabilities, keys >> 32))]  # the likeliest targets of each source first
    sources = keys >> 32
    ranks = np.arange(len(keys)) - np.searchsorted(sources, sources)
    keys = keys[ranks < _BEST]
    ends = np.searchsorted(keys >> 32, np.arange(sizes[0]), side="right")
    targets = np.split(keys & 0xFFFFFFFF, ends)[: sizes[0]]
    lists = [sorted(part.tolist()) for part in targets]
    is_shared = bundle.tokenizer.vocabularies[0] == bundle.tokenizer.vocabularies[1]
    return Shortlist(packed(lists, _FIRST, _BEST), (sizes[0], sizes[-1]), is_shared)


def _aligner(bundle: Bundle, files: PathPair) -> Aligner:
    """Return an aligner that has learned from a part of the text."""
    encoded = bundle.tokenizer.encode_pairs(list(ParallelFiles(*files)))
    pairs = [(np.array(src), np.array(tgt)) for src, tgt in encoded if src and tgt]
    require(pairs, f"{files[0]}: must have sentences with translations, got none")
    cells = sum(len(src) * len(tgt) for src, tgt in pairs)
    sources, targets = zip(*pairs[:: 1 + cells // _CELLS], strict=True)
    return Aligner(sources, targets, bundle.tokenizer.vocab_sizes)
