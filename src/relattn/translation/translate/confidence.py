"""How sure a model is of a translation, as a number in (0, 1).

What it says of itself is the mean log-probability of its pieces, the end counted. On validation data that is brought
to the scale of what translations are worth, the chrF of sentences: σ(bias + slope · mean), fitted by cross-entropy, as
a logistic regression whose targets are shares (Platt 1999). Without a calibration it is exp(mean), the geometric mean
of the probabilities.
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
_MOST = 30.0  # of bias and slope, either way: from there on all is 0 or 1


def confidence(mean: float, calibration: Calibration) -> float:
    """The confidence in a translation of this mean log-probability."""
    if calibration.bias is None or calibration.slope is None:
        return math.exp(min(mean, 0.0))
    return 1 / (1 + math.exp(-np.clip(calibration.bias + calibration.slope * mean, -_MOST, _MOST)))


def fit(means: Sequence[float], qualities: Sequence[float]) -> Calibration:
    """The calibration by which confidences are nearest to the qualities, by Newton's method.

    Args:
        means: log-probabilities a piece, of at least two translations.
        qualities: of the same, in [0, 1].
    """
    x = np.stack([np.ones(len(means)), np.asarray(means, dtype=np.float64)], axis=1)
    y = np.clip(np.asarray(qualities, dtype=np.float64), 0.001, 0.999)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -_MOST, _MOST)))
        curvature = (x.T * (p * (1 - p))) @ x + 1e-6 * np.eye(2)  # where all means are alike, the slope stays 0
        weights = np.clip(weights + np.linalg.solve(curvature, x.T @ (y - p) - 1e-6 * weights), -_MOST, _MOST)
    return Calibration(bias=round(float(weights[0]), 6), slope=round(float(weights[1]), 6))


def calibrate(translations: Sequence[Translation], references: Sequence[str]) -> Calibration | None:
    """Return the calibration that fits the best translations of some lines; blank lines are left out.

    It is None if all translations have the same mean log-probability.
    """
    kept = [(one, reference) for one, reference in zip(translations, references, strict=True) if one.tokens]
    means = [one.mean_log_prob for one, _ in kept]
    if len(set(means)) < 2:
        return None
    qualities = sentence_chrf([one.text for one, _ in kept], [reference for _, reference in kept])
    return fit(means, [quality / 100 for quality in qualities])
