"""Confidence in a translation: a number in (0, 1), computed from the mean log-probability of its pieces and the end.

A calibration maps the mean to the expected quality: σ(bias + slope · mean). `calibration.py` fits it. Without one, the
confidence is exp(mean), the geometric mean of the probabilities.
"""

from __future__ import annotations

import math

from relattn.translation.config import Calibration

LIMIT = 30.0  # largest absolute value of bias and slope; beyond it every confidence is 0 or 1


def confidence(mean: float, calibration: Calibration) -> float:
    """Return the confidence in a translation with the given mean log-probability, in nats."""
    if calibration.bias is None or calibration.slope is None:
        return math.exp(min(mean, 0.0))
    logit = calibration.bias + calibration.slope * mean
    return 1 / (1 + math.exp(-max(-LIMIT, min(LIMIT, logit))))
