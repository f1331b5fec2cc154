"""The terms of position schemes in the compiled engine, compared with the modules of the model."""

import numpy as np
import pytest
import torch
from relattn_mt.engine import terms
from relattn_mt.model.positions import absolute
from relattn_mt.model.positions.distance_terms import Buckets, Slopes
from relattn_mt.search.types import MOST_POSITIONS

DISTANCES = np.arange(-MOST_POSITIONS, MOST_POSITIONS + 1)


@pytest.mark.parametrize("is_causal", [False, True])
def test_buckets(is_causal):
    module = Buckets(2, is_causal=is_causal)
    weight = module.weight.detach().normal_(generator=torch.Generator().manual_seed(1)).numpy()
    expected = module(torch.from_numpy(DISTANCES)).detach()
    assert np.array_equal(terms.bucket_biases(DISTANCES, 2, is_causal=is_causal, weight=weight), expected)


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_slopes(heads):
    expected = Slopes(heads)(torch.from_numpy(DISTANCES))
    np.testing.assert_allclose(terms.slope_biases(DISTANCES, heads), expected, rtol=1e-6)


@pytest.mark.parametrize("dim", [2, 38, 64, 512])
def test_sinusoids(dim):
    angles = absolute.angles(torch.from_numpy(DISTANCES), dim).numpy()
    np.testing.assert_allclose(terms.angles(DISTANCES, dim), angles, rtol=1e-6)
    found = terms.sinusoids(DISTANCES, dim)
    for i, part in enumerate((np.sin, np.cos)):
        exact = part(terms.angles(DISTANCES, dim).astype(np.float64))
        np.testing.assert_allclose(found[:, i::2], exact, rtol=1e-6, atol=1e-7)
    some = np.random.default_rng(1).permutation(DISTANCES)[:777]
    assert np.array_equal(terms.sinusoids(some, dim), found[some + MOST_POSITIONS])
