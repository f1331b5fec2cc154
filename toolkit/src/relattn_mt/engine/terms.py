"""Position encodings, distance buckets and biases in NumPy, as the modules in `model/positions` compute them."""

from __future__ import annotations

import math

import numpy as np

from relattn_mt.config.positions import BucketBias

TERMS = 64  # number of distances whose terms are computed at once


def angles(positions: np.ndarray, dim: int) -> np.ndarray:
    """Return the angles p / 10,000^(2m / dim), (length, dim / 2), of positions p (length,)."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) * np.float32(-math.log(10_000.0) / dim)
    return positions.astype(np.float32)[:, None] * np.exp(exponents.astype(np.float64)).astype(np.float32)


def sinusoids(positions: np.ndarray, dim: int) -> np.ndarray:
    """Return sines and cosines of the angles in turn, (length, dim)."""
    angle = angles(positions, dim)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(len(positions), dim)


def buckets(distances: np.ndarray, *, is_causal: bool) -> np.ndarray:
    """Return T5's bucket of each distance. Logarithms in float64 give all processors the same buckets."""
    count = BucketBias.buckets if is_causal else BucketBias.buckets // 2  # per direction
    exact = count // 2
    far = np.maximum(-distances, 0) if is_causal else np.abs(distances)
    share = np.log(np.maximum(far, 1) / exact).astype(np.float32) / np.float32(math.log(BucketBias.farthest / exact))
    wide = np.minimum(exact + (share * np.float32(count - exact)).astype(np.int64), count - 1)
    return np.where(far < exact, far, wide) + (0 if is_causal else (distances > 0) * count)


def slope_biases(distances: np.ndarray, heads: int) -> np.ndarray:
    """Return ALiBi's biases (heads, labels)."""
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return -slopes.astype(np.float32)[:, None] * np.abs(distances).astype(np.float32)
