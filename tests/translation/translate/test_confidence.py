"""Confidences, and calibrations compared with PyTorch's optimizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from relattn.translation.config import Calibration
from relattn.translation.translate.calibration import calibrate, fit
from relattn.translation.translate.confidence import confidence
from relattn.translation.translate.pipeline import Translation


def test_confidence_with_and_without_calibration():
    assert confidence(-0.5, Calibration()) == pytest.approx(math.exp(-0.5))
    assert confidence(0.0, Calibration()) == confidence(1e-7, Calibration()) == 1.0
    calibration = Calibration(bias=1.0, slope=2.0)
    assert confidence(-0.5, calibration) == 0.5
    assert confidence(-1e9, calibration) > 0.0
    assert confidence(-0.2, calibration) > confidence(-0.3, calibration)


def test_a_fit_minimizes_the_cross_entropy():
    """Compare with PyTorch's L-BFGS on the same loss."""
    source = np.random.default_rng(1)
    means = -source.gamma(2.0, 0.3, size=300)
    qualities = np.clip(0.9 + 0.5 * means + 0.1 * source.normal(size=300), 0, 1)
    found = fit(means.tolist(), qualities.tolist())
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-10)
    x, y = torch.from_numpy(means), torch.from_numpy(qualities.clip(0.001, 0.999))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(weights[0] + weights[1] * x, y)
        value.backward()
        return value

    optimizer.step(loss)
    assert (found.bias, found.slope) == pytest.approx(weights.tolist(), abs=1e-3)


@pytest.mark.parametrize("qualities", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
def test_a_fit_of_few_lines_is_finite(qualities):
    found = fit([-3.0, -2.0, -0.1], qualities)
    assert found.bias is not None
    assert abs(found.bias) <= 30.0
    confidences = [confidence(mean, found) for mean in (-3.0, -2.0, -0.1)]
    assert np.abs(np.array(confidences) - qualities).max() < 0.1


def test_equal_means_fit_the_average_quality():
    assert calibrate([Translation("x", -1.0, [5], -1.0)] * 2 + [Translation("", 0.0, [])], ["x"] * 3) is None
    found = fit([-1.0, -1.0, -1.0], [0.2, 0.4, 0.6])
    assert confidence(-1.0, found) == pytest.approx(0.4, abs=1e-3)
