"""The pieces that a lexical shortlist allows, against sets, with one vocabulary for both sides and with two."""

import struct
from itertools import accumulate

import numpy as np
from relattn_mt.engine.shortlist import Shortlist

from tests.support.covering import pairwise

SOURCES = 20
CHECKED = struct.Struct("<4Q")


def content_of(lists: list[list[int]], first: int) -> bytes:
    """Return a file in which each source piece has a list of target pieces."""
    ids = [piece for each in lists for piece in each]
    offsets = [*accumulate(map(len, lists), initial=0)]
    rest = CHECKED.pack(first, 0, len(offsets), len(ids))
    rest += np.array(offsets, "<u8").tobytes() + np.array(ids, "<u4").tobytes()
    seed = 0
    for number in struct.unpack_from(f"<{len(rest) // 8}Q", rest):
        seed ^= (number + 0x9E3779B9 + (seed << 6) + (seed >> 2)) % 2**64
    return struct.pack("<2Q", 0xF11A48D5013417F5, seed) + rest


@pairwise(is_shared=[False, True], targets=[20, 31, 64], first=[0, 3, 90], source=[[], [5], [2, 2, 19, 7], [4, 20, 25]],
          needed=[(0,), (3, 30)], banned=[(), (1,), (7, 19)])  # fmt: skip
def test_allowed_pieces_are_those_of_the_source(is_shared, targets, first, source, needed, banned):
    """The first ones, those in the lists, with one vocabulary the source pieces too, and last ones up to eights."""
    draw = np.random.default_rng(targets)
    lists = [sorted({*draw.integers(0, targets, draw.integers(0, 4)).tolist()}) for _ in range(SOURCES)]
    shortlist = Shortlist(content_of(lists, first), (SOURCES, targets), is_shared)
    known = [piece for piece in source if piece < SOURCES]
    allowed = {*range(min(first, targets)), *(piece for each in known for piece in lists[each])}
    allowed |= {*known} if is_shared else set()
    for piece in range(min(first, targets), targets):
        if piece not in allowed and len(allowed) % 8 != 0:
            allowed.add(piece)
    assert shortlist.pieces(source, needed, banned).tolist() == sorted((allowed - {*banned}) | {*needed})
