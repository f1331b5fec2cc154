"""The learning rate against §5.3 of Vaswani et al. (2017)."""

import pytest

from relattn.translation.training.objective import learning_rate


@pytest.mark.parametrize(("dim", "warmup"), [(512, 4000), (7, 1), (128, 13)])
def test_it_rises_linearly_and_falls_as_the_root(dim, warmup):
    rates = [learning_rate(step, dim=dim, warmup_steps=warmup) for step in range(1, 4 * warmup + 1)]
    peak = (dim * warmup) ** -0.5
    assert max(rates) == pytest.approx(peak, rel=1e-12)
    assert rates[warmup - 1] == pytest.approx(peak, rel=1e-12)
    for step, rate in enumerate(rates, start=1):
        expected = peak * step / warmup if step <= warmup else peak * (warmup / step) ** 0.5
        assert rate == pytest.approx(expected, rel=1e-12)


def test_the_papers_base_model():
    """512^-0.5 · 4000^-0.5 at the end of warm-up, and the factor multiplies it."""
    assert learning_rate(4000, dim=512, warmup_steps=4000) == pytest.approx(6.9877e-4, rel=1e-4)
    assert learning_rate(9, dim=64, warmup_steps=4, factor=2.5) == pytest.approx(2.5 / 8 / 3)
