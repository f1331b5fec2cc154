"""Duplicates against a set, and the memory that the search takes."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from relattn.translation.corpus.dedup import SeenPairs, digest


@pytest.mark.parametrize("seed", range(5))
def test_new_digests_match_a_set(seed):
    source = random.Random(seed)
    seen, known = SeenPairs(), set()
    for _ in range(200):
        batch = [source.randrange(3000) for _ in range(source.randrange(40))]
        expected = []
        for value in batch:
            expected.append(value not in known)
            known.add(value)
        assert seen.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        assert sum(map(len, seen._runs)) == len(known)


def test_a_digest_depends_on_the_boundary_between_the_sides():
    digests = {digest(*pair) for pair in [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"b", b"a"), (b"a", b"b")]}
    assert len(digests) == 4
    assert {len(d) for d in digests} == {8}


def test_memory_is_at_most_24_bytes_per_pair_and_8_at_rest():
    generator, count = np.random.default_rng(1), 1 << 20
    tracemalloc.start()
    try:
        seen = SeenPairs()
        for _ in range(count // 2048):
            seen.add(generator.integers(1 << 63, size=2048, dtype=np.uint64))
        rest, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    floor = 1 << 18
    assert sum(map(len, seen._runs)) == count
    assert len(seen._runs) <= 10  # after 512 calls
    assert rest < 8 * count + floor
    assert peak < 24 * count + floor
