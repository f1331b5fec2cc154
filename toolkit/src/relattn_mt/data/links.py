"""Word alignment of the encoded training text, which is stored beside it for guided alignment."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from relattn_mt.data.storage import EncodedPairs, write_pairs
from relattn_mt.support.errors import require
from relattn_mt.support.types import IdPair, VocabSizes
from relattn_mt.text.aligner import Aligner, Sentences

LINKS = "data/links.pairs"
_CELLS = 30_000_000  # source pieces × target pieces of the sentence pairs that the aligner learns from
_ROWS = 50_000  # sentence pairs that are aligned at once
_log = logging.getLogger(__name__)


def write_links(path: Path, pairs: EncodedPairs, given: int, vocab_sizes: VocabSizes) -> None:
    """Align encoded pairs, and write their links: positions in the source, and positions in the target.

    The aligner learns from all pairs, or from a part that is spread evenly.

    Args:
        path: File to write.
        pairs: Encoded pairs.
        given: Number of tokens before the text of each source, which have no links.
        vocab_sizes: Number of pieces in the vocabulary of each side.

    Raises:
        InputError: No piece has a link, as in a text of very few pairs.
    """

    def sides(rows: range) -> tuple[Sentences, Sentences]:
        return [pairs.src[row][given:] for row in rows], [pairs.tgt[row] for row in rows]

    rows = range(len(pairs.src))
    src_lengths, tgt_lengths = (side.lengths().astype(np.int64) for side in pairs)
    aligner = Aligner(*sides(rows[:: 1 + int(src_lengths @ tgt_lengths) // _CELLS]), vocab_sizes)
    linked = 0

    def links() -> Iterator[IdPair]:
        nonlocal linked
        for start in range(0, len(rows), _ROWS):
            for src, tgt in aligner.links(*sides(rows[start : start + _ROWS])):
                linked += len(np.unique(tgt))
                yield (src + given).tolist(), tgt.tolist()

    write_pairs(path, links(), vocab_size=int(max(src_lengths.max(), tgt_lengths.max())))
    require(linked > 0, "train.guided_alignment requires more training text: no word of it could be aligned")
    _log.info(f"guided alignment: {linked / tgt_lengths.sum():.0%} of the target tokens have links")
