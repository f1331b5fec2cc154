"""The kernels' corners, smoothed: empty pieces, hidden rows, and shares of a larger whole."""

import pytest
import torch

from relattn.backends import flash
from relattn.merge import merge
from relattn.testing import error

KINDS = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.006}


def make(queries, keys, *, batch=2, heads=6, key_heads=3, dim=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(queries + keys)
    sizes = [(heads, queries), (key_heads, keys), (key_heads, keys), (heads, queries)]
    return [torch.randn(batch, *size, dim, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


def equations(query, key, value, bias, scale):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * scale + (0.0 if bias is None else bias)
    empty = scores.isneginf().all(-1, keepdim=True)
    weights = (scores - scores.detach().amax(-1, keepdim=True).masked_fill(empty, 0.0)).exp()
    mass = weights.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    lse = mass.log() + scores.detach().amax(-1, keepdim=True)
    return weights @ value / mass, lse.squeeze(-1)


def hidden(dtype):
    bias = torch.zeros(2, 1, 1, 7, dtype=dtype)
    bias[0, ..., 4:] = -torch.inf
    bias[1] = -torch.inf
    return bias


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("restricted", [False, True])
def test_output_and_log_sum_exp_are_the_equations(dtype, restricted):
    query, key, value, _ = make(11, 7, dtype=dtype)
    bias = hidden(dtype) if restricted else None
    output, lse = flash.attend(query, key, value, bias, 0.7)
    exact = [None if x is None else x.double() for x in (query, key, value, bias)]
    want, want_lse = equations(*exact, 0.7)
    assert error(output.double(), want) < KINDS[dtype]
    assert error(lse, want_lse) < KINDS[dtype]
    assert output.dtype == dtype
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    assert lse[1].isneginf().all() == restricted


@pytest.mark.parametrize("restricted", [False, True])
def test_a_part_given_the_whole_returns_its_share_of_the_gradients(restricted):
    query, key, value, grad = make(11, 7)
    _, more_key, more_value, _ = make(11, 5)
    bias = hidden(torch.float64) if restricted else None
    leaves = [x.requires_grad_() for x in (query, key, value)]
    parts = [equations(query, key, value, bias, 0.7), equations(query, more_key, more_value, None, 0.7)]
    whole, whole_lse = merge(*zip(*parts, strict=True))
    _, d_key, d_value = torch.autograd.grad(whole, leaves, grad)
    with torch.no_grad():
        got = flash.attend_backward(grad, query, key, value, whole, whole_lse, bias, 0.7)
    assert error(got[1], d_key) < 1e-13
    assert error(got[2], d_value) < 1e-13


def test_log_sum_exp_of_nothing_passes_no_gradient():
    query, key, value, grad = make(11, 7)
    output, lse = flash.attend(query, key, value, None, 0.7)
    lse[1] = -torch.inf
    d_query, d_key, d_value = flash.attend_backward(grad, query, key, value, output, lse, None, 0.7)
    assert not d_query[1].any()
    assert not d_key[1].any()
    assert not d_value[1].any()
    assert d_query[0].all()


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_pieces_are_not_launched(batch, queries, keys):
    query, key, value, grad = make(queries, keys, batch=batch)
    output, lse = flash.attend(query, key, value, None, 0.7)
    assert output.shape == query.shape
    assert not output.any()
    assert lse.isneginf().all()
    gradients = flash.attend_backward(grad, query, key, value, output, lse, None, 0.7)
    assert [x.shape for x in gradients] == [query.shape, key.shape, value.shape]
    assert not any(x.any() for x in gradients)


NAMES = ["flash_attention_for_cpu", "flash_attention", "efficient_attention"]


@pytest.mark.parametrize("name", [f"_scaled_dot_product_{name}{way}" for name in NAMES for way in ("", "_backward")])
def test_the_private_calls_have_the_arguments_they_are_given(name):
    arguments = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    backward = name.endswith("_backward")
    first = ["grad_out_" if "efficient" in name else "grad_out"] if backward else []
    assert arguments[: len(first) + 3] == [*first, "query", "key", "value"]
    tail = ["logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
    random = ["philox_seed", "philox_offset"]
    after = {
        "flash_attention_for_cpu": ["out", "logsumexp", "dropout_p", "is_causal", "attn_mask", "scale"],
        "flash_attention": ["out", *tail, *random, "scale"],
        "efficient_attention": [
            *("attn_bias", "out", "logsumexp", *random, "dropout_p", "grad_input_mask", "is_causal", "scale")
        ],
    }
    if backward:
        assert arguments[4:] == after[name.removeprefix("_scaled_dot_product_").removesuffix("_backward")]
