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


def fairseq_sinusoids(count: int, dim: int, first: int = 0) -> np.ndarray:
    """Return fairseq's positions (count, dim), from number `first` on: sines, then cosines."""
    half = dim // 2
    step = np.float32(-math.log(10_000) / max(1, half - 1))
    frequency = np.exp(np.arange(half, dtype=np.float32) * step)
    angle = np.arange(first, first + count, dtype=np.float32)[:, None] * frequency
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    return np.pad(table, ((0, 0), (0, dim % 2)))


def bucket_biases(distances: np.ndarray, heads: int, *, is_causal: bool, weight: np.ndarray) -> np.ndarray:
    """Return T5's biases (heads, labels)."""
    starts = BucketBias.starts(is_causal)
    far = np.maximum(-distances, 0) if is_causal else np.abs(distances)
    bucket = np.searchsorted(starts, far, side="right")
    if not is_causal:
        bucket += (distances > 0) * (1 + len(starts))
    return weight[bucket].T


def slope_biases(distances: np.ndarray, heads: int, *, is_causal: bool = False) -> np.ndarray:
    """Return ALiBi's biases (heads, labels)."""
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return -slopes.astype(np.float32)[:, None] * np.abs(distances).astype(np.float32)


def vector_terms(distances: np.ndarray, *, u: np.ndarray, v: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return Transformer-XL's terms (heads, labels, head_dim + 1): vectors for products with q + u, and a bias."""
    heads, _, head_dim = u.shape
    projected = sinusoids(-distances, weight.shape[1]) @ weight.T
    vectors = projected.reshape(-1, heads, head_dim).swapaxes(0, 1)
    biases = ((v - u) * vectors).sum(2, keepdims=True) / head_dim**0.5
    return np.concatenate([vectors, biases], axis=2)
