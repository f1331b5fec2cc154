"""Tests of memory that training keeps."""

import platform
import resource
from pathlib import Path

import numpy as np
import pytest

from relattn.translation.training.allocation import freed_memory_kept, return_freed_memory

SIZE = 256 << 20  # bytes
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has such settings")


def allocate() -> int:
    """Write to new memory, free it, and return the number of pages that the system had to provide."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(SIZE, dtype=np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@glibc
def test_freed_memory_is_used_again_and_returned_at_the_end():
    return_freed_memory()  # of earlier tests
    before = resident()
    with freed_memory_kept():
        allocate()
        assert resident() - before > SIZE / 2
        assert allocate() < 20
    assert resident() - before < SIZE / 2
    assert allocate() > 20
