"""Tests of the table in docs/arguments.md: our operator next to PyTorch's attention, derivatives, and meta tensors."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn import RelativeSelfAttention, backends, relative_attention

BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def lower(queries: int, keys: int, diagonal: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


def test_options_equal_those_of_plain_attention():
    query, key, value = normal(2, 6, 5, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 7, seed=2)
    plain = partial(F.scaled_dot_product_attention, enable_gqa=True)
    close(relative_attention(query, key, value), plain(query, key, value))
    close(relative_attention(query, key, value, scale=0.25), plain(query, key, value, scale=0.25))
    strided = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value))
    close(relative_attention(*strided), plain(query, key, value))
    few = query[:, :, :3]
    close(relative_attention(few, key, value, is_causal=True), plain(few, key, value, lower(3, 5, 2)))
    top_left = relative_attention(few, key, value, is_causal=True, query_offset=0)
    close(top_left, plain(few, key, value, is_causal=True))
    mask = lower(5, 5, 1)
    close(relative_attention(query, key, value, mask=mask), plain(query, key, value, mask))
    layer, x = nn.MultiheadAttention(4, 1, bias=False, batch_first=True), normal(1, 5, 4)
    projected = F.linear(x, layer.in_proj_weight).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
    want = layer.out_proj(relative_attention(*projected, mask=mask).squeeze(1))
    close(layer(x, x, x, attn_mask=~mask, need_weights=False)[0], want)


def test_padding_equals_a_mask():
    query, key, lengths = normal(2, 2, 5, 4), normal(2, 2, 5, 4, seed=1), torch.tensor([5, 2])
    mask = (torch.arange(5) < lengths[:, None])[:, None, None]
    plain = F.scaled_dot_product_attention(query, key, key, mask)
    close(relative_attention(query, key, key, lengths=lengths), plain.masked_fill(~mask.mT, 0.0))
    close(relative_attention(query, key, key, key_lengths=lengths), plain)
    last = query[:, :, :1]
    ours = relative_attention(last, key, key, is_causal=True, query_offset=torch.tensor([4, 1]))
    close(ours, F.scaled_dot_product_attention(last, key, key, mask))


def test_fully_masked_queries_are_zeros_without_a_gradient():
    query, mask = normal(1, 2, 5, 4).requires_grad_(), torch.ones(5, 5, dtype=torch.bool)
    mask[3] = False
    output, lse = relative_attention(query, query, query, mask=mask, return_lse=True)
    assert not output[:, :, 3].any()
    assert lse[:, :, 3].isneginf().all()
    (gradient,) = torch.autograd.grad(output[:, :, 3].sum(), query)
    assert not gradient.any()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of PyTorch, in its forward mode
@BACKENDS
def test_derivatives(backend):
    query, key, rel_key = normal(1, 2, 5, 4), normal(1, 2, 5, 4, seed=1), normal(3, 4, seed=2)

    def summed(x: Tensor) -> Tensor:
        return relative_attention(x, key, key, rel_key, backend=backend).square().sum()

    leaf = query.clone().requires_grad_()
    (want,) = torch.autograd.grad(summed(leaf), leaf)
    stacked = torch.func.vmap(torch.func.grad(summed))(torch.stack([query, 2 * query]))
    close(stacked[0], want)
    options = {"backend": backend}
    by_length = torch.func.vmap(lambda n: relative_attention(query, key, key, rel_key, key_lengths=n, **options))
    want = relative_attention(query, key, key, rel_key, key_lengths=torch.tensor([3]), **options)
    close(by_length(torch.tensor([[5], [3]]))[1], want)
    others = [
        lambda: torch.func.grad(lambda x: torch.func.grad(summed)(x).sum())(query),
        lambda: torch.func.jvp(summed, (query,), (query,))[-1],
        lambda: torch.func.hessian(summed)(query),
        lambda: dual(summed, query),
    ]
    refused = pytest.raises(NotImplementedError, match=rf"'reference'.*{backend}")
    for derivative in others:
        with nullcontext() if backend == "reference" else refused:
            assert derivative().isfinite().all()


def dual(function, x: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        return function(torch.autograd.forward_ad.make_dual(x, x))


def test_meta_tensors():
    query = torch.empty(2, 3, 5, 4, device="meta", requires_grad=True)
    table = torch.empty(5, 4, device="meta", requires_grad=True)
    options = {"is_causal": True, "key_lengths": torch.empty(2, dtype=torch.int64, device="meta"), "dropout_p": 0.1}
    output = relative_attention(query, query, query, table, table, **options)
    assert output.is_meta
    assert torch.autograd.grad(output.sum(), table)[0].shape == (5, 4)
    layer = RelativeSelfAttention(8, 2, 3, device="meta")
    assert layer(torch.empty(2, 5, 8, device="meta")).shape == (2, 5, 8)
