"""Tests of docs/compared.md, one per row of its table: our operator next to PyTorch's attention."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn import RelativeAttention, RelativeSelfAttention, backends, relation_attention, relative_attention

TABLE = Path(__file__).parents[1] / "docs" / "compared.md"
BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def lower(queries: int, keys: int, diagonal: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


def test_every_row_of_the_table_has_a_test():
    lines = [line.split("|")[1].strip() for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    rows = {"test_" + name.replace(" ", "_").replace("-", "_") for name in lines if name}
    assert rows | {"test_every_row_of_the_table_has_a_test"} == {name for name in globals() if name[:5] == "test_"}


def test_layout():
    query, key, value = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    want = F.scaled_dot_product_attention(query, key, value)
    close(relative_attention(query, key, value), want)
    close(relative_attention(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value))), want)
    assert nn.MultiheadAttention(8, 2)(*[normal(5, 2, 8)] * 3)[0].shape == (5, 2, 8)


def test_grouped_query_attention():
    query, key, value = normal(2, 6, 5, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 4, seed=2)
    close(relative_attention(query, key, value), F.scaled_dot_product_attention(query, key, value, enable_gqa=True))
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(query, key, value)


def test_value_dimension():
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 4, seed=1), normal(2, 3, 5, 7, seed=2)
    close(relative_attention(query, key, value), F.scaled_dot_product_attention(query, key, value))


def test_scale():
    query, rel_key = normal(1, 1, 3, 16), normal(3, 16, seed=1)
    by_default = relative_attention(query, query, query, rel_key)
    close(by_default, relative_attention(query, query, query, rel_key, scale=0.25))
    close(by_default, relative_attention(query / 2, query, query, rel_key, scale=0.5))
    close(relative_attention(query, query, query), F.scaled_dot_product_attention(query, query, query, scale=0.25))


def test_causal_mask():
    query, key = normal(1, 2, 3, 4), normal(1, 2, 5, 4, seed=1)
    ours = relative_attention(query, key, key, is_causal=True)
    close(ours, F.scaled_dot_product_attention(query, key, key, lower(3, 5, 2)))
    top_left = relative_attention(query, key, key, is_causal=True, query_offset=0)
    close(top_left, F.scaled_dot_product_attention(query, key, key, is_causal=True))
    with pytest.raises(RuntimeError, match="attn_mask"):
        nn.MultiheadAttention(8, 2)(*[normal(5, 2, 8)] * 3, is_causal=True)


def test_query_positions():
    query, key = normal(2, 2, 1, 4), normal(2, 2, 5, 4, seed=1)
    ours = relative_attention(query, key, key, is_causal=True, query_offset=torch.tensor([4, 1]))
    close(ours[0], F.scaled_dot_product_attention(query, key, key)[0])
    close(ours[1], F.scaled_dot_product_attention(query, key[:, :, :2], key[:, :, :2])[1])


def test_boolean_mask():
    query, mask = normal(1, 2, 5, 4), lower(5, 5, 1)
    close(relative_attention(query, query, query, mask=mask), F.scaled_dot_product_attention(query, query, query, mask))
    layer, x = nn.MultiheadAttention(4, 1, bias=False, batch_first=True), normal(1, 5, 4)
    projected = F.linear(x, layer.in_proj_weight).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
    want = layer.out_proj(relative_attention(*projected, mask=mask).squeeze(1))
    close(layer(x, x, x, attn_mask=~mask, need_weights=False)[0], want)


def test_additive_mask():
    """A table of one column with a `rel_query` of ones is a bias. `scale` multiplies the bias too."""
    query, key, value = (normal(1, 2, 5, 4, seed=seed) for seed in range(3))
    relations, biases = torch.randint(0, 3, (1, 1, 5, 5), generator=torch.Generator().manual_seed(3)), normal(3, seed=4)
    options = {"rel_query": torch.ones(1, 2, 5, 1), "scale": 0.5}
    ours = relation_attention(query, key, value, relations, biases[:, None], **options)
    close(ours, F.scaled_dot_product_attention(query, key, value, 0.5 * biases[relations]))
    with pytest.raises(ValueError, match=r"mask must have dtype.*float32"):
        relative_attention(query, key, value, mask=biases[relations])


def test_padding():
    query, key, lengths = normal(2, 2, 5, 4), normal(2, 2, 5, 4, seed=1), torch.tensor([5, 2])
    mask = (torch.arange(5) < lengths[:, None])[:, None, None]
    plain = F.scaled_dot_product_attention(query, key, key, mask)
    close(relative_attention(query, key, key, lengths=lengths), plain.masked_fill(~mask.mT, 0.0))
    close(relative_attention(query, key, key, key_lengths=lengths), plain)
    query_lengths = torch.tensor([3, 5])
    both = relative_attention(query, key, key, key_lengths=lengths, query_lengths=query_lengths)
    close(both, plain.masked_fill((torch.arange(5) >= query_lengths[:, None])[:, None, :, None], 0.0))
    seven, three = normal(2, 2, 7, 4, seed=2), key[:, :, :3]
    full = {"key_lengths": torch.tensor([3, 3]), "is_causal": True, "query_offset": 0}
    ours = relative_attention(seven, three, three, **full)
    close(ours, F.scaled_dot_product_attention(seven, three, three, is_causal=True))
    for queries, options in ((5, {"key_lengths": lengths}), (5, {"query_lengths": lengths}), (4, {})):
        with pytest.raises(ValueError, match="lengths"):
            relative_attention(query[:, :, :queries], key, key, lengths=lengths, **options)


def test_padding_queries():
    query = normal(2, 2, 5, 4).requires_grad_()
    output = relative_attention(query, query, query, query_lengths=torch.tensor([5, 2]))
    assert not output[1, :, 2:].any()
    (gradient,) = torch.autograd.grad(output[1, :, 2:].sum(), query)
    assert not gradient.any()


def test_fully_masked_queries():
    query, mask = normal(1, 2, 5, 4).requires_grad_(), torch.ones(5, 5, dtype=torch.bool)
    mask[3] = False
    output, lse = relative_attention(query, query, query, mask=mask, return_lse=True)
    assert not output[:, :, 3].any()
    assert lse[:, :, 3].isneginf().all()
    (gradient,) = torch.autograd.grad(output[:, :, 3].sum(), query)
    assert not gradient.any()
    assert not F.scaled_dot_product_attention(query, query, query, mask)[:, :, 3].any()
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), normal(1, 5, 8)
    assert layer(x, x, x, attn_mask=~mask)[0][:, 3].isnan().all()


def test_dropout():
    x = torch.ones(2, 3, 7, 4)
    assert (relative_attention(x, x, x, dropout_p=0.5) != 1).any()
    assert (F.scaled_dot_product_attention(x, x, x, dropout_p=0.5) != 1).any()
    attention = RelativeAttention(4, 2, tables="neither", dropout=0.5)
    assert (attention(x, x, x) != 1).any()
    close(attention.eval()(x, x, x), x)


@BACKENDS
def test_log_sum_exp(backend):
    query = normal(1, 2, 5, 4).requires_grad_()
    _, lse = relative_attention(query, query, query, dropout_p=0.5, return_lse=True, backend=backend)
    close(lse, (query @ query.mT * 0.5).logsumexp(-1))
    assert not lse.requires_grad


@BACKENDS
def test_padding_values(backend):
    """Gradients and infinity: `test_content_of_padding_changes_nothing` in test_functional.py."""
    query, is_valid = normal(1, 2, 5, 4), torch.arange(5) < 3
    nan, options = query.masked_fill(~is_valid[:, None], torch.nan), {"lengths": torch.tensor([3]), "backend": backend}
    close(relative_attention(nan, nan, nan, **options), relative_attention(query, query, query, **options))
    assert F.scaled_dot_product_attention(query, nan, nan, is_valid[None])[:, :, :3].isnan().any()


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
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, key, key), (query,), (query,))


def dual(function, x: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        return function(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.parametrize("backend", ["native", "dense"])  # the interpreter of Triton runs programs in order
def test_deterministic_gradients(backend):
    inputs = [normal(2, 2, 23, 4, seed=seed).requires_grad_() for seed in range(3)]
    inputs += [normal(9, 4, seed=seed).requires_grad_() for seed in (3, 4)]
    first, second = (torch.autograd.grad(relative_attention(*inputs, backend=backend).sum(), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_meta_tensors():
    query = torch.empty(2, 3, 5, 4, device="meta", requires_grad=True)
    table = torch.empty(5, 4, device="meta", requires_grad=True)
    options = {"is_causal": True, "key_lengths": torch.empty(2, dtype=torch.int64, device="meta"), "dropout_p": 0.1}
    output = relative_attention(query, query, query, table, table, **options)
    assert output.is_meta
    assert torch.autograd.grad(output.sum(), table)[0].shape == (5, 4)
    layer = RelativeSelfAttention(8, 2, 3, device="meta")
    assert layer(torch.empty(2, 5, 8, device="meta")).shape == (2, 5, 8)
    assert F.scaled_dot_product_attention(query, query, query).is_meta
