"""Kernels of products of 8-bit integers, as in `int8.h`, and the one that a processor uses."""

import ctypes

from relattn.extension import levels
from relattn.extension.loader import FEATURES, Kernels

FLOAT, GENERIC, PAIRS, DOTS = range(4)
INT8_KERNELS = {
    GENERIC: "with products of 16 or 32 bits",
    PAIRS: "with products of pairs",
    DOTS: "with dot products",
}
GROUP = 16  # inputs are padded to a multiple of this
LARGEST, LARGEST_IMPORTED = 63, 127  # integers of weights: those that PAIRS supports, and those of 8 bits


def best_kernel(kernels: Kernels) -> int:
    """Return the best kernel of an object file on this processor. All kernels give the same numbers."""
    available = kernels.library.relattn_int8_kernels()
    if not FEATURES & levels.INT8_DOTS:
        available &= ~(1 << DOTS)
    return max(kernel for kernel in INT8_KERNELS if available >> kernel & 1)


def panel_of(kernels: Kernels) -> int:
    """Return the number of outputs of a panel."""
    return ctypes.c_int32.in_dll(kernels.library, "relattn_panel").value
