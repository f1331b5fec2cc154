"""Derivatives of the operator, and meta tensors."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from relattn import RelativeSelfAttention, backends, relative_attention

BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


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
