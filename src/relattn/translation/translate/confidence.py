"""Confidence in a translation: a number in (0, 1), computed from the mean log-probability of its pieces and the end.

A calibration maps the mean to the expected quality, the sentence's chrF: σ(bias + slope · mean), fitted to validation
data by cross-entropy. This is a logistic regression with fractions as targets (Platt 1999). Without a calibration, the
confidence is exp(mean), the geometric mean of the probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relattn.translation.config import Calibration
from relattn.translation.evaluation import sentence_chrf

if TYPE_CHECKING:
    from relattn.translation.translate.pipeline import Translation

_STEPS = 50
_LARGEST = 30.0  # of bias and slope; beyond it every confidence is 0 or 1


def confidence(mean: float, calibration: Calibration) -> float:
    """Return the confidence in a translation with the given mean log-probability, in nats."""
    if calibration.bias is None or calibration.slope is None:
        return math.exp(min(mean, 0.0))
    return 1 / (1 + math.exp(-np.clip(calibration.bias + calibration.slope * mean, -_LARGEST, _LARGEST)))


def fit(means: Sequence[float], qualities: Sequence[float]) -> Calibration:
    """Return the calibration whose confidences are nearest to the qualities. The method is Newton's.

    Args:
        means: mean log-probabilities per piece of at least two translations.
        qualities: qualities of these translations, in [0, 1].
    """
    x = np.stack([np.ones(len(means)), np.asarray(means, dtype=np.float64)], axis=1)
    y = np.clip(np.asarray(qualities, dtype=np.float64), 0.001, 0.999)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -_LARGEST, _LARGEST)))
        curvature = (x.T * (p * (1 - p))) @ x + 1e-6 * np.eye(2)  # if all means are equal, the slope stays 0
        weights = np.clip(weights + np.linalg.solve(curvature, x.T @ (y - p) - 1e-6 * weights), -_LARGEST, _LARGEST)
    return Calibration(bias=round(float(weights[0]), 6), slope=round(float(weights[1]), 6))


def calibrate(translations: Sequence[Translation], references: Sequence[str]) -> Calibration | None:
    """Return the calibration for the best translations of some lines, without blank lines.

    It is None if all translations have the same mean log-probability.
    """
    kept = [(one, reference) for one, reference in zip(translations, references, strict=True) if one.tokens]
    means = [one.mean_log_prob for one, _ in kept]
    if len(set(means)) < 2:
        return None
    qualities = sentence_chrf([one.text for one, _ in kept], [reference for _, reference in kept])
    return fit(means, [quality / 100 for quality in qualities])
