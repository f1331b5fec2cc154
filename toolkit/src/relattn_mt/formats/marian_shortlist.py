"""Make a lexical shortlist: for each source piece, the target pieces that it is likeliest translated with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.engine.shortlist import Shortlist, packed
from relattn_mt.support.errors import require
from relattn_mt.text.aligner import Aligner
from relattn_mt.tokens.text_files import read_parallel

# pieces that are always there, and of each source piece, as in Firefox's models
_FIRST = 50
_BEST = 50
_CELLS = 20_000_000  # source pieces × target pieces of the sentence pairs that are aligned


def make_shortlist(bundle: Bundle, files: tuple[Path, Path], sizes: Sequence[int]) -> Shortlist:
    """Return the shortlist of the likeliest target pieces of each source piece.

    Args:
        bundle: The bundle whose tokenizer has the pieces.
        files: Sentences and their translations, of which a part that is spread evenly is used if they are long.
        sizes: Number of source and of target pieces that Marian knows.

    Raises:
        InputError: A file cannot be read, or no piece occurs twice with the same other one.
    """
    encoded = bundle.tokenizer.encode_pairs(list(read_parallel(*files)))
    pairs = [(np.array(src), np.array(tgt)) for src, tgt in encoded if src and tgt]
    cells = sum(len(src) * len(tgt) for src, tgt in pairs)
    pairs = pairs[:: 1 + cells // _CELLS]
    require(bool(pairs), f"{files[0]}: must have sentences with translations, got none")
    aligner = Aligner([src for src, _ in pairs], [tgt for _, tgt in pairs], bundle.tokenizer.vocab_sizes)
    keys = aligner.keys[:-1]
    require(len(keys) > 0, f"{files[0]}: a shortlist requires more text: no two pieces are twice in the same pair")
    order = np.lexsort((-aligner.tables[0][:-1], keys >> 32))
    sources = keys[order] >> 32
    targets = keys[order] & 0xFFFFFFFF
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    sources = sources[ranks < _BEST]
    targets = targets[ranks < _BEST]
    ends = np.searchsorted(sources, np.arange(sizes[0]), side="right")
    lists = [sorted(part.tolist()) for part in np.split(targets, ends)[: sizes[0]]]
    is_shared = bundle.tokenizer.vocabularies[0] == bundle.tokenizer.vocabularies[1]
    return Shortlist(packed(lists, _FIRST, _BEST), (sizes[0], sizes[-1]), is_shared)
