"""Weights in 8 bits: integers, and a scale per output.

A weight W (outputs, inputs) becomes integers q and scales s with W ≈ s · q per row. A quantized model has q in place of
the weights of its linear layers, its embeddings and its output layer, and s under the same name with the suffix
`_scale`. Only the compiled engine runs such a model.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from relattn_mt.engine.library import LARGEST, LARGEST_IMPORTED
from relattn_mt.support.errors import require, require_at_most
from relattn_mt.weights import SCALE, LazyWeights, Tensors, is_quantizable

MAX_INPUTS = 1 << 17  # of a map, so that sums fit in 32 bits


def quantize(weights: Tensors, scales: Tensors | None = None) -> LazyWeights:
    """Return the weights of a model, quantized, by scales (outputs,) or so that the largest of each output becomes 63.

    Each is made when it is asked for. An InputError then says that it is not finite, or has too many inputs.
    """

    @lru_cache(maxsize=1)
    def made(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a weight and its scales, or one without any in float32 and nothing."""
        weight = np.asarray(weights[name], np.float32)
        require(np.isfinite(weight).all(), f"weights in int8 must be finite, got NaN or infinity in {name}")
        if not is_quantizable(name):
            return weight, weight[:0]
        require_at_most(MAX_INPUTS, weight.shape[1], f"{name} in int8", "inputs")
        if scales is None:
            largest = LARGEST
            scale = np.maximum(np.abs(weight.max(1)), np.abs(weight.min(1))) / np.float32(largest)
        else:
            largest = LARGEST_IMPORTED
            scale = scales[name]
        integers = weight / np.where(scale > 0, scale, np.float32(1))[:, None]
        np.rint(integers, out=integers)  # in place: a vocabulary of 256,000 pieces takes a gigabyte
        np.clip(integers, -largest, largest, out=integers)
        return integers.astype(np.int8), scale

    def make(name: str) -> np.ndarray:
        weight, scale = made(name.removesuffix(SCALE))
        return scale if name.endswith(SCALE) else weight

    return LazyWeights([*weights, *(f"{name}{SCALE}" for name in filter(is_quantizable, weights))], make)


def in_float32(weights: Tensors, name: str) -> np.ndarray:
    """Return a weight in float32: if it is in 8 bits, its integers times their scales, as `integers_of` reads them."""
    if f"{name}{SCALE}" not in weights:
        return np.asarray(weights[name], np.float32)
    integers, scale = integers_of(weights, name)
    return np.asarray(integers, np.float32) * scale[:, None]


def integers_of(weights: Tensors, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight in 8 bits and its scales in float32. Raises InputError if one is out of range."""
    integers = weights[name]
    scale = np.asarray(weights[f"{name}{SCALE}"], np.float32)
    least = int(integers.min())
    require(least >= -LARGEST_IMPORTED, f"{name} must be at least {-LARGEST_IMPORTED}, got {least}")
    require((np.isfinite(scale) & (scale >= 0)).all(), f"{name}{SCALE} must be finite and not negative")
    return integers, scale
