"""Dropout whose masks are drawn from 16 bits per element."""

import pytest
import torch
from relattn_mt.model.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_elements_are_dropped_with_probability_p_and_scaled(p, dtype):
    torch.manual_seed(1)
    x = torch.full((1013, 997), 3.0, dtype=dtype, requires_grad=True)
    out = Dropout(p)(x)
    kept = out != 0
    assert kept.float().mean() == pytest.approx(1 - p, abs=2e-3)
    assert kept.float().mean(0).std() == pytest.approx((p * (1 - p) / 1013) ** 0.5, rel=0.1)  # elements are independent
    assert kept.float().mean(1).std() == pytest.approx((p * (1 - p) / 997) ** 0.5, rel=0.1)
    torch.testing.assert_close(
        out[kept], torch.full_like(out[kept], 3 / (1 - p)), rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=0
    )
    out.float().sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / 3)


def test_masks_depend_on_the_seed_only():
    dropout, x = Dropout(0.3), torch.ones(7, 5, 3)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_without_training_or_probability_nothing_changes():
    x = torch.randn(5, 3)
    assert torch.equal(Dropout(0.3).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
