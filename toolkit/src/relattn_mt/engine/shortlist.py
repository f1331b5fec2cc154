"""Lexical shortlist: for each source, the target pieces that may be generated, which makes the output layer small.

The file is Marian's binary one: uint64 magic, checksum of what follows, `first`, `best`, number of offsets, number of
ids; offsets in uint64; ids in uint32. Piece p may become the ids from offset p to offset p + 1. The `first` pieces of
the target are always there, and with one vocabulary of both sides also the pieces of the source.

Marian joins the lists of all sources of a batch. Here each source has its own, so that a translation does not depend
on the batch; Marian has the same pieces in a batch of one line.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from relattn_mt.support.errors import require
from relattn_mt.support.types import IdRows, VocabSizes

SHORTLIST = "shortlist.bin"  # file in a bundle
_MAGIC = bytes.fromhex("f5173401d5481af1")
_HEADER = struct.Struct("<8x5Q")
_MULTIPLE = 8  # Marian adds pieces up to a multiple of this


class Shortlist:
    """The target pieces of each source piece.

    Args:
        content: Content of the file.
        vocab_sizes: Number of source and of target pieces that Marian knows.
        is_shared: Whether both sides have the same vocabulary.
        checked_digest: SHA-256 of a file whose checksum was right before. It is not computed again, which takes long.

    Attributes:
        size, is_shared: Number of target pieces, and the argument.

    Raises:
        InputError: The file is damaged or belongs to other vocabularies.
    """

    def __init__(self, content: bytes, vocab_sizes: VocabSizes, is_shared: bool, checked_digest: str = "") -> None:
        self.content = content
        self.size = vocab_sizes[1]
        self.is_shared = is_shared
        self.digest = hashlib.sha256(content).hexdigest()
        is_shortlist = len(content) >= _HEADER.size and content.startswith(_MAGIC)
        require(is_shortlist, "not a binary shortlist of Marian")
        checksum, first, _, offsets, ids = _HEADER.unpack_from(content)
        size = _HEADER.size + 8 * offsets + 4 * ids
        require(len(content) == size, f"a shortlist must have {size:,} bytes, got {len(content):,}")
        is_whole = self.digest == checked_digest or checksum == _checksum(content[16:])
        require(is_whole, "the checksum of the shortlist is wrong: it is damaged")
        sources = vocab_sizes[0]
        require(offsets == sources + 1, f"the shortlist must be for {sources:,} source pieces, got {offsets - 1:,}")
        self._first = min(first, self.size)
        self._offsets = np.frombuffer(content, "<u8", offsets, _HEADER.size).astype(np.int64)
        self._ids = np.frombuffer(content, "<u4", ids, _HEADER.size + 8 * offsets)
        rises = (np.diff(self._offsets, prepend=0) >= 0).all()
        require(rises and self._offsets[-1] == ids, "the offsets of the shortlist must rise to the number of its ids")
        largest = int(self._ids.max(initial=0))
        require(largest < self.size, f"the shortlist must be for {self.size:,} target pieces, got id {largest:,}")

    def pieces(self, src_ids: Sequence[int], needed: Sequence[int], banned: Sequence[int]) -> np.ndarray:
        """Return the ids that may be generated for a source, in rising order."""
        mask = np.zeros(max(self.size, 1 + max([*needed, *banned])), np.bool_)
        known = [piece for piece in {*src_ids} if piece < len(self._offsets) - 1]
        mask[: self._first] = True
        if self.is_shared:
            mask[known] = True
        for piece in known:
            mask[self._ids[self._offsets[piece] : self._offsets[piece + 1]]] = True
        absent = np.flatnonzero(~mask[self._first : self.size])[: -np.count_nonzero(mask) % _MULTIPLE]
        mask[absent + self._first] = True
        mask[list(banned)] = False
        mask[list(needed)] = True
        return np.flatnonzero(mask)


def packed(lists: IdRows, first: int, best: int) -> bytes:
    """Return the content of a file with the target ids of each source id, of at most `best` each."""
    offsets = np.cumsum([0, *map(len, lists)])
    ids = np.concatenate(lists)
    header = struct.pack("<4Q", first, best, len(offsets), len(ids))
    rest = header + offsets.astype("<u8").tobytes() + ids.astype("<u4").tobytes()
    return _MAGIC + struct.pack("<Q", _checksum(rest)) + rest


def _checksum(content: bytes) -> int:
    """Return Marian's hash of numbers in uint64, as it combines them. A rest of less than 8 bytes does not count."""
    seed = 0
    most = (1 << 64) - 1
    for number in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        seed ^= (number + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & most
    return seed
