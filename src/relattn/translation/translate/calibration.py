"""Fit of confidences to the quality of translations: the sentence's chrF, on validation data, by cross-entropy.

This is a logistic regression with fractions as targets (Platt 1999).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn.translation.config import Calibration
from relattn.translation.evaluation import sentence_chrf
from relattn.translation.translate.confidence import LIMIT
from relattn.translation.translate.pipeline import Translation

_STEPS = 50


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
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -LIMIT, LIMIT)))
        curvature = (x.T * (p * (1 - p))) @ x + 1e-6 * np.eye(2)  # if all means are equal, the slope stays 0
        weights = np.clip(weights + np.linalg.solve(curvature, x.T @ (y - p) - 1e-6 * weights), -LIMIT, LIMIT)
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
