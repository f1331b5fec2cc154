"""Merging is exact, empty parts included; attention itself is merged in test_functional.py."""

import pytest
import torch

from relattn.merge import merge


def attend(scores, values):
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().nan_to_num(0.0) @ values, lse


def test_parts_give_the_whole_and_its_gradients():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 11, dtype=torch.float64, generator=generator, requires_grad=True)
    values = torch.randn(2, 11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    whole = attend(scores, values)
    parts = [attend(scores[..., a:b], values[:, a:b]) for a, b in ((0, 1), (1, 4), (4, 11))]
    merged = merge(*zip(*parts, strict=True))
    for got, want in zip(merged, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
    of_whole = torch.autograd.grad(whole[0].sin().sum() + whole[1].cos().sum(), (scores, values))
    of_merged = torch.autograd.grad(merged[0].sin().sum() + merged[1].cos().sum(), (scores, values))
    for got, want in zip(of_merged, of_whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_empty_parts_weigh_nothing():
    output, lse = torch.randn(2, 3, 5), torch.randn(2, 3)
    empty, nothing = torch.zeros(2, 3, 5), torch.full((2, 3), -torch.inf)
    for outputs, lses in (([output, empty], [lse, nothing]), ([empty, output], [nothing, lse]), ([output], [lse])):
        merged, merged_lse = merge(outputs, lses)
        assert torch.equal(merged, output)
        torch.testing.assert_close(merged_lse, lse)


def test_a_whole_of_empty_parts_is_empty_and_passes_no_gradient():
    empty = torch.zeros(2, 3, 5, requires_grad=True)
    nothing = torch.full((2, 3), -torch.inf)
    merged, lse = merge([empty, empty], [nothing, nothing])
    assert not merged.any()
    assert lse.isneginf().all()
    (gradient,) = torch.autograd.grad(merged.sum(), empty)
    assert not gradient.any()


def test_scores_far_apart_do_not_overflow():
    output = torch.ones(1, 1)
    merged, lse = merge([output, 3 * output], [torch.tensor([900.0]), torch.tensor([-900.0])])
    assert merged.item() == 1.0
    assert lse.item() == 900.0


def test_mismatched_parts():
    with pytest.raises(ValueError, match="1 outputs and 2 log-sum-exps"):
        merge([torch.zeros(2, 3)], [torch.zeros(2), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"output \(2, 3\) with log-sum-exp \(3,\)"):
        merge([torch.zeros(2, 3)], [torch.zeros(3)])
    with pytest.raises(ValueError, match="0 outputs"):
        merge([], [])
