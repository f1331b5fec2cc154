"""Weights in 8 bits in the form of the kernels."""

import numpy as np

from relattn.extension.int8 import GROUP, PAIRS


def pack(codes: np.ndarray, panel: int, kernel: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (outputs, inputs) in panels, and the numbers for each output or panel, as `int8.h` describes."""
    outputs, inputs = codes.shape
    codes = np.pad(codes, ((0, -outputs % panel), (0, -inputs % GROUP)))
    fours = codes.view(np.int32).reshape(-1, panel, codes.shape[1] // 4).swapaxes(1, 2)
    panels = np.ascontiguousarray(fours).view(np.int8).reshape(len(fours), -1, 8 * panel)  # (…, inputs / 8, bytes)
    if kernel != PAIRS:
        return panels, codes.sum(1, dtype=np.int32) * np.int32(-128)
    pairs = codes.view(np.int16)
    low, high = pairs << 8 >> 8, pairs >> 8
    sums = (low + high).reshape(len(codes), -1, 2, 2, 2)
    squares = (low * low + high * high).reshape(len(codes), -1, 4, 2)
    offsets = 128 * sums.sum(3, dtype=np.int16).cumsum(2, dtype=np.int16)  # (outputs, inputs / 16, 2, 2)
    offsets = offsets.reshape(len(panels), panel, -1, 2).swapaxes(1, 2)
    offsets = np.ascontiguousarray(offsets).view(np.int8).reshape(*panels.shape[:2], -1)
    largest = squares.sum(2, dtype=np.int16).reshape(len(panels), -1).max(1)
    return np.concatenate([panels, offsets], axis=2), largest.astype(np.int32)
