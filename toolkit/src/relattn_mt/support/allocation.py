"""Memory that is freed: training keeps it for the next steps, and a quantized model returns it to the system."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# parameters of mallopt(3)
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_NEVER = -1
_NO_MAPPING = 0
_DEFAULT_TRIM_THRESHOLD = 128 * 1024
_DEFAULT_MMAP_MAX = 65536


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc. Others have no such settings, and nothing changes there."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Make the C library keep freed memory instead of returning it to the system.

    A training step allocates and frees the same large tensors again and again, such as the logits. By default, glibc
    maps each of them anew, and the system clears every page at its first use, which can take as long as the step's
    computations. Kept memory becomes fragmented, so `return_freed_memory` must be called from time to time.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, _NO_MAPPING)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        library.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        return_freed_memory()


def return_freed_memory() -> None:
    """Return all freed memory to the system, as if it had not been kept."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)
