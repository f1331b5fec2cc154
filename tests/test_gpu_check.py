"""Tests that the checks of `benchmarks.gpu` find wrong kernels."""

from dataclasses import replace
from itertools import count

import pytest
import torch
import torch.nn.functional as F

from benchmarks import gpu_check
from relattn.backends import dense, triton
from tests.support.numerics import equations_keeping


@pytest.mark.parametrize("check", [gpu_check.within_budget, gpu_check.deterministic])
def test_a_wrong_kernel_is_seen(monkeypatch, check):
    """A kernel that adds noise is not within the tolerance, and never returns the same."""

    def noisy(call, return_lse):
        output, lse = dense.attend(call, return_lse)
        output.data += torch.rand_like(output)
        return output, lse

    monkeypatch.setattr(triton, "attend", noisy)
    with pytest.raises(AssertionError, match="output"):
        check(gpu_check.Check(17, "float32", dim=8, k=3), "cpu")


@pytest.mark.whole
def test_a_compiler_that_changes_results_is_seen(monkeypatch):
    def compiler(operator, **_):
        return lambda **given: (operator(**given)[0] + 1.0, operator(**given)[1])

    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(AssertionError, match="differ from eager"):
        gpu_check.compiled(gpu_check.Check(17, "float32", dim=8, k=3), "cpu")


NUMBERS = count()


def explicit(seeds, back, dropped, scaled):
    """Return a replacement of the kernels by the equations; `seeds` maps the seed forward, and `back` backward."""

    def attend(call, return_lse):
        seed = int(torch.randint(2**31, ()))

        def keeping(number):
            generator = torch.Generator().manual_seed(number)
            kept = torch.rand(*call.query.shape[:3], call.query.shape[2], generator=generator) >= dropped
            unused = (0, 0, 0, call.left - call.right)  # rows for later keys, where the call is causal
            tables = {name: F.pad(getattr(call, name), unused) for name in ("rel_key", "rel_value")}
            return equations_keeping(kept, **{**call._asdict(), **tables}, clip=call.left)

        (output, lse), (other, _) = keeping(seeds(seed)), keeping(back(seed))
        return scaled * (output.detach() + other - other.detach()), lse if return_lse else None

    return attend


def given(seed):
    return seed


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, None),
        ({"back": lambda seed: seed + 1}, "d query off by .* d value off by .* d rel_value off by"),
        ({"seeds": lambda _: next(NUMBERS)}, "one seed keeps other pairs the next time"),
        ({"seeds": lambda _: 0, "back": lambda _: 0}, "another seed keeps the same pairs"),
        ({"dropped": 0.5}, "of the pairs are kept, not 0.7"),
        ({"scaled": 0.7}, "output off by"),
    ],
    ids=("right", "backward", "forward", "seed", "share", "scale"),
)
@pytest.mark.parametrize("causal", [False, True])
def test_wrong_dropout_is_seen(monkeypatch, change, seen, causal):
    kernels = explicit(**{"seeds": given, "back": given, "dropped": 0.3, "scaled": 1.0} | change)
    monkeypatch.setattr(triton, "attend", kernels)
    case = gpu_check.Check(33, "float32", dim=8, k=3, causal=causal)
    if seen is None:
        gpu_check.dropout(case, "cpu")
        return
    with pytest.raises(AssertionError, match=seen):
        gpu_check.dropout(case, "cpu")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", gpu_check.CHECKS, ids=str)
def test_checks_are_calls_that_can_be_made(case):
    if case.n > 300:
        case = replace(case, n=300)
    operator = gpu_check.relation_attention if case.relations else gpu_check.relative_attention
    assert operator(**case.inputs("cpu"), **case.options("cpu"), backend="dense").isfinite().all()
