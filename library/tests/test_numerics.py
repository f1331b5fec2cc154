"""Tests of the tolerances that other tests use: which errors they allow."""

import pytest
import torch
from relattn import relative_attention

from tests.support.numerics import SHAPES, assert_within_budget, error, make_inputs


def test_error_of_values_that_are_not_finite():
    one = torch.tensor([1.0, 2.0])
    assert error(one, one) == error(torch.empty(0), torch.empty(0)) == 0.0
    assert error(one + 0.5, one) == 0.5
    for bad in (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, -torch.inf]), one[:1]):
        assert error(bad, one) == error(one, bad) == float("inf")
    assert error(torch.tensor([1.0, -torch.inf]), torch.tensor([1.5, -torch.inf])) == 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("wrong", ["output", "lse", "rel_key", "rel_value", "query"])
def test_an_error_of_1e_4_exceeds_the_budget(dtype, wrong):
    """In one result, or in one element of the gradient of one input."""
    inputs = make_inputs(SHAPES["self"], dtype=dtype)

    def mistaken(backend, **arguments):
        if backend == "reference":
            return relative_attention(**arguments, backend=backend)
        if wrong in inputs:
            factor = torch.ones_like(inputs[wrong])
            factor.view(-1)[3] += 1e-4
            x = arguments[wrong]
            arguments[wrong] = x.detach() + factor * (x - x.detach())
        output, lse = relative_attention(**arguments, backend=backend)
        return output * (1 + 1e-4 * (wrong == "output")), lse * (1 + 1e-4 * (wrong == "lse"))

    with pytest.raises(AssertionError, match=wrong):
        assert_within_budget(mistaken, inputs, "dense", clip=4)
