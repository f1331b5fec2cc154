"""The loader of compiled kernels, and a check before autograd functions, for packages that add kernels of their own.

`relattn.translation` uses it for its compiled decoder and its linear layers.
"""

from relattn.backends.autograd import is_transformed
from relattn.backends.native.int8 import (
    DOTS,
    FLOAT,
    GENERIC,
    INT8_KERNELS,
    LARGEST,
    LARGEST_IMPORTED,
    PAIRS,
    best_kernel,
    pack,
    panel_of,
)
from relattn.backends.native.library import SUPPORTED, Kernels, Source, load_best, name_of

__all__ = [
    "DOTS",
    "FLOAT",
    "GENERIC",
    "INT8_KERNELS",
    "LARGEST",
    "LARGEST_IMPORTED",
    "PAIRS",
    "SUPPORTED",
    "Kernels",
    "Source",
    "best_kernel",
    "is_transformed",
    "load_best",
    "name_of",
    "pack",
    "panel_of",
]
