"""The loader of compiled kernels, for packages that add kernels of their own. It does not import PyTorch.

`relattn.translation` uses it for its compiled decoder.
"""

from relattn.extension.int8 import (
    DOTS,
    FLOAT,
    GENERIC,
    GROUP,
    INT8_KERNELS,
    LARGEST,
    LARGEST_IMPORTED,
    PAIRS,
    best_kernel,
    panel_of,
)
from relattn.extension.loader import SUPPORTED, Kernels, Source, load_best

__all__ = [
    "DOTS",
    "FLOAT",
    "GENERIC",
    "GROUP",
    "INT8_KERNELS",
    "LARGEST",
    "LARGEST_IMPORTED",
    "PAIRS",
    "SUPPORTED",
    "Kernels",
    "Source",
    "best_kernel",
    "load_best",
    "panel_of",
]
