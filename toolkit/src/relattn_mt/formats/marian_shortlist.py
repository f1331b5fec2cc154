"""Make a lexical shortlist: for each source piece, the target pieces that it is likeliest translated with.

From parallel text, p(t | s) is that of IBM model 1 (Brown et al. 1993): each target piece t comes from one of the
source pieces s of its sentence, wherever it stands. Expectation maximization starts with equal probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.engine.shortlist import Shortlist, packed
from relattn_mt.support.errors import InputError, require
from relattn_mt.tokens.text_files import read_lines, read_parallel

# pieces that are always there, and of each source piece, as in Firefox's models
_FIRST = 50
_BEST = 50
_PASSES = 5  # of expectation maximization
_CELLS = 20_000_000  # source pieces × target pieces of the sentence pairs that are counted


class _Lexicon(NamedTuple):
    """Probabilities (entries,) of target pieces given source pieces."""

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray


def make_shortlist(bundle: Bundle, files: Sequence[Path], sizes: Sequence[int]) -> Shortlist:
    """Return the shortlist of the likeliest target pieces of each source piece.

    Args:
        bundle: The bundle whose tokenizer has the pieces.
        files: One file with lines of a target piece, a source piece and a probability; or two files, of sentences and
            their translations, of which a part that is spread evenly is used if they are long.
        sizes: Number of source and of target pieces that Marian knows.

    Raises:
        InputError: A file is malformed, or has no pieces of the vocabularies, or there are more than two.
    """
    require(len(files) in (1, 2), f"a shortlist must be made from one file or from two, got {len(files)}")
    lexicon = _read(bundle, files[0]) if len(files) == 1 else _learn(bundle, files)
    order = np.lexsort((-lexicon.probabilities, lexicon.sources))
    sources = lexicon.sources[order]
    targets = lexicon.targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    sources = sources[ranks < _BEST]
    targets = targets[ranks < _BEST]
    ends = np.searchsorted(sources, np.arange(sizes[0]), side="right")
    lists = [sorted(part.tolist()) for part in np.split(targets, ends)[: sizes[0]]]
    is_shared = bundle.tokenizer.vocabularies[0] == bundle.tokenizer.vocabularies[1]
    return Shortlist(packed(lists, _FIRST, _BEST), (sizes[0], sizes[-1]), is_shared)


def _read(bundle: Bundle, file: Path) -> _Lexicon:
    """Read lines "target source probability"."""
    src_ids, tgt_ids = ({piece: i for i, piece in enumerate(pieces)} for pieces in bundle.tokenizer.vocabularies)
    entries: dict[tuple[int, int], float] = {}
    for number, line in enumerate(read_lines(file), start=1):
        try:
            target, source, text = line.split(" ")
            probability = float(text)
        except ValueError as error:
            raise InputError(f"{file}: line {number} must be target, source, probability, got {line!r:.60}") from error
        is_valid = 0 <= probability <= 1
        require(is_valid, f"{file}: line {number} must have a probability in [0, 1], got {text!r:.60}")
        if source in src_ids and target in tgt_ids:
            entries[src_ids[source], tgt_ids[target]] = probability
    require(bool(entries), f"{file}: must have pieces of the vocabularies, got none")
    sources, targets = np.array([*entries]).T
    return _Lexicon(sources, targets, np.array([*entries.values()]))


def _learn(bundle: Bundle, files: Sequence[Path]) -> _Lexicon:
    """Learn probabilities from sentences and their translations."""
    pairs = []
    for src, tgt in bundle.tokenizer.encode_pairs(list(read_parallel(*files))):
        if src and tgt:
            pairs.append((np.unique(src), np.unique(tgt)))
    cells = sum(len(src) * len(tgt) for src, tgt in pairs)
    require(cells > 0, f"{files[0]}: must have sentences with translations, got none")
    return _probabilities(pairs[:: 1 + cells // _CELLS])


def _probabilities(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> _Lexicon:
    """Return the probabilities of IBM model 1 for the different pieces of sentences and of their translations."""
    # of each cell: its source and its target piece; the place of its target piece in the text
    keys = []
    columns = []
    count = 0
    for src, tgt in pairs:
        keys.append((src[:, None] << 32 | tgt).ravel())
        columns.append(np.tile(np.arange(count, count + len(tgt), dtype=np.int32), len(src)))
        count += len(tgt)
    entries, places = np.unique(np.concatenate(keys), return_inverse=True)
    place_of_target = np.concatenate(columns)
    sources = entries >> 32
    targets = entries & 0xFFFFFFFF
    probabilities = np.ones(len(entries))
    for _ in range(_PASSES):
        weights = probabilities[places]
        counts = np.bincount(places, weights / np.bincount(place_of_target, weights)[place_of_target])
        probabilities = counts / np.bincount(sources, counts)[sources]
    return _Lexicon(sources, targets, probabilities)
