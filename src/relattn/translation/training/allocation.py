"""Memory that training frees is kept for the next step."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_NEVER, _NO_MAPPING = -1, 0
_DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = 128 * 1024, 65536


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Make the C library keep freed memory instead of returning it to the system.

    A training step allocates and frees the same large tensors again and again, such as the logits. By default, glibc
    maps each of them anew, and the system clears every page at its first use, which can take as long as the step's
    computations. Other C libraries have no such settings, and nothing changes there.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, _NO_MAPPING)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        library.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        library.malloc_trim(0)
