"""Tests of docs/compared.md, one per row of its table: our operator next to PyTorch's attention."""

import inspect
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relattn import RelativeAttention, RelativeSelfAttention, backends, relation_attention, relative_attention

TABLE = Path(__file__).parent.parent / "docs" / "compared.md"
BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)


def normal(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def lower(queries, keys, diagonal):
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


def test_every_row_of_the_table_has_a_test():
    lines = [line.split("|")[1].strip() for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    named = {"test_" + name.replace(" ", "_").replace("-", "_") for name in lines if name}
    here = {name for name, _ in inspect.getmembers(sys.modules[__name__], inspect.isfunction)}
    assert named == {name for name in here if name.startswith("test_")} - {"test_every_row_of_the_table_has_a_test"}


def test_layout():
    query, key, value = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    close(relative_attention(query, key, value), F.scaled_dot_product_attention(query, key, value))
    strided = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value))
    close(relative_attention(*strided), F.scaled_dot_product_attention(query, key, value))
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


@BACKENDS
def test_causal_mask(backend):
    query, key = normal(1, 2, 3, 4), normal(1, 2, 5, 4, seed=1)
    ours = relative_attention(query, key, key, is_causal=True, backend=backend)
    close(ours, F.scaled_dot_product_attention(query, key, key, lower(3, 5, 2)))
    top_left = relative_attention(query, key, key, is_causal=True, query_offset=0, backend=backend)
    close(top_left, F.scaled_dot_product_attention(query, key, key, is_causal=True))
    with pytest.raises(RuntimeError, match="attn_mask"):
        nn.MultiheadAttention(8, 2)(*[normal(5, 2, 8)] * 3, is_causal=True)


@BACKENDS
def test_query_positions(backend):
    query, key = normal(2, 2, 1, 4), normal(2, 2, 5, 4, seed=1)
    ours = relative_attention(query, key, key, is_causal=True, query_offset=torch.tensor([4, 1]), backend=backend)
    close(ours[0], F.scaled_dot_product_attention(query, key, key)[0])
    close(ours[1], F.scaled_dot_product_attention(query, key[:, :, :2], key[:, :, :2])[1])


@BACKENDS
def test_boolean_mask(backend):
    query, mask = normal(1, 2, 5, 4), lower(5, 5, 1)
    ours = relative_attention(query, query, query, mask=mask, backend=backend)
    close(ours, F.scaled_dot_product_attention(query, query, query, mask))
    layer, x = nn.MultiheadAttention(4, 1, bias=False, batch_first=True), normal(1, 5, 4)
    projected = F.linear(x, layer.in_proj_weight).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
    want = layer.out_proj(relative_attention(*projected, mask=mask, backend=backend).squeeze(1))
    close(layer(x, x, x, attn_mask=~mask, need_weights=False)[0], want)


@BACKENDS
def test_additive_mask(backend):
    """A table of one dim has the biases, and a `rel_query` of ones asks for them; both terms are scaled."""
    query, key, value = (normal(1, 2, 5, 4, seed=seed) for seed in range(3))
    relations, biases = torch.randint(0, 3, (1, 1, 5, 5), generator=torch.Generator().manual_seed(3)), normal(3, seed=4)
    asking = {"rel_query": torch.ones(1, 2, 5, 1), "scale": 0.5, "backend": backend}
    ours = relation_attention(query, key, value, relations, biases[:, None], **asking)
    close(ours, F.scaled_dot_product_attention(query, key, value, 0.5 * biases[relations]))
    with pytest.raises(ValueError, match="mask must have dtype"):
        relative_attention(query, key, value, mask=biases[relations])


@BACKENDS
def test_padding(backend):
    query, key, lengths = normal(2, 2, 5, 4), normal(2, 2, 5, 4, seed=1), torch.tensor([5, 2])
    mask = (torch.arange(5) < lengths[:, None])[:, None, None]
    plain = F.scaled_dot_product_attention(query, key, key, mask)
    both = relative_attention(query, key, key, lengths=lengths, backend=backend)
    close(both, plain.masked_fill(~mask.mT, 0.0))
    keys_alone = relative_attention(query, key, key, key_lengths=lengths, backend=backend)
    close(keys_alone, plain)
    for other in ("key_lengths", "query_lengths"):
        with pytest.raises(ValueError, match="lengths"):
            relative_attention(query, key, key, lengths=lengths, **{other: lengths})
    with pytest.raises(ValueError, match="lengths"):
        relative_attention(query[:, :, :4], key, key, lengths=lengths)
    said = {"key_lengths": lengths, "query_lengths": torch.tensor([3, 5]), "backend": backend}
    live = (torch.arange(5) < said["query_lengths"][:, None])[:, None, :, None]
    close(relative_attention(query, key, key, **said), plain.masked_fill(~live, 0.0))
    full = {"key_lengths": torch.tensor([3, 3]), "backend": backend}
    seven = normal(2, 2, 7, 4, seed=2)
    close(
        relative_attention(seven, key[:, :, :3], key[:, :, :3], **full, is_causal=True, query_offset=0),
        F.scaled_dot_product_attention(seven, key[:, :, :3], key[:, :, :3], is_causal=True),
    )


@BACKENDS
def test_padding_queries(backend):
    query = normal(2, 2, 5, 4).requires_grad_()
    output = relative_attention(query, query, query, query_lengths=torch.tensor([5, 2]), backend=backend)
    assert not output[1, :, 2:].any()
    (gradient,) = torch.autograd.grad(output[1, :, 2:].sum(), query)
    assert not gradient.any()


@BACKENDS
def test_fully_masked_queries(backend):
    query, mask = normal(1, 2, 5, 4).requires_grad_(), torch.ones(5, 5, dtype=torch.bool)
    mask[3] = False
    output, lse = relative_attention(query, query, query, mask=mask, return_lse=True, backend=backend)
    assert not output[:, :, 3].any()
    assert lse[:, :, 3].isneginf().all()
    (gradient,) = torch.autograd.grad(output[:, :, 3].sum(), query)
    assert not gradient.any()
    assert not F.scaled_dot_product_attention(query, query, query, mask)[:, :, 3].any()
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), normal(1, 5, 8)
    assert layer(x, x, x, attn_mask=~mask)[0][:, 3].isnan().all()


@pytest.mark.whole
@BACKENDS
def test_dropout(backend):
    x = torch.ones(4, 4, 16, 4)
    assert (relative_attention(x, x, x, dropout_p=0.5, backend=backend) != 1).any()
    assert (F.scaled_dot_product_attention(x, x, x, dropout_p=0.5) != 1).any()
    attention = RelativeAttention(4, 2, tables="neither", dropout=0.5, backend=backend)
    assert (attention(x, x, x) != 1).any()
    close(attention.eval()(x, x, x), x)


@BACKENDS
def test_log_sum_exp(backend):
    query = normal(1, 2, 5, 4).requires_grad_()
    _, lse = relative_attention(query, query, query, dropout_p=0.5, return_lse=True, backend=backend)
    close(lse, (query @ query.mT * 0.5).logsumexp(-1))
    assert not lse.requires_grad


@BACKENDS
@pytest.mark.parametrize("content", [torch.nan, torch.inf])
def test_padding_values(backend, content):
    query, key, value = (normal(2, 2, 5, 4, seed=seed) for seed in range(3))
    rel_key, rel_value, lengths = normal(3, 4, seed=3), normal(3, 4, seed=4), torch.tensor([5, 3])
    padding = (torch.arange(5) >= lengths[:, None])[:, None, :, None]

    def results(fill):
        filled = [x.masked_fill(padding, fill).requires_grad_() for x in (query, key, value)]
        inputs = [*filled, rel_key.clone().requires_grad_(), rel_value.clone().requires_grad_()]
        output = relative_attention(*inputs, lengths=lengths, backend=backend)
        return [output, *torch.autograd.grad(output, inputs, query)]

    for got, want in zip(results(content), results(0.0), strict=True):
        close(got, want)
    valid = (torch.arange(5) < 3)[None]
    broken = key[1:].masked_fill(padding[1:], torch.nan)
    assert F.scaled_dot_product_attention(query[1:], broken, broken, valid)[:, :, :3].isnan().any()


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own forward mode
@BACKENDS
def test_derivatives(backend):
    query, key, rel_key = normal(1, 2, 5, 4), normal(1, 2, 5, 4, seed=1), normal(3, 4, seed=2)

    def summed(x):
        return relative_attention(x, key, key, rel_key, backend=backend).square().sum()

    leaf = query.clone().requires_grad_()
    (want,) = torch.autograd.grad(summed(leaf), leaf)
    close(torch.func.grad(summed)(query), want)
    stacked = torch.func.vmap(torch.func.grad(summed))(torch.stack([query, 2 * query]))
    close(stacked[0], want)
    lengths = torch.tensor([[5], [3]])
    by_length = torch.func.vmap(lambda n: relative_attention(query, key, key, rel_key, key_lengths=n, backend=backend))
    close(by_length(lengths)[1], relative_attention(query, key, key, rel_key, key_lengths=lengths[1], backend=backend))
    doubled = torch.func.grad(lambda x: torch.func.grad(summed)(x).sum())
    forward_mode = [
        lambda: torch.func.jvp(summed, (query,), (query,)),
        lambda: torch.func.hessian(summed)(query),
        lambda: dual(summed, query),
    ]
    if backend == "reference":
        assert all(torch.isfinite(derivative()[-1]).all() for derivative in forward_mode)
        assert doubled(query).any()
        return
    for derivative in (lambda: doubled(query), *forward_mode):
        with pytest.raises(NotImplementedError, match=f"backend must be 'reference' .*, got '{backend}'"):
            derivative()
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, key, key), (query,), (query,))


def dual(function, x):
    with torch.autograd.forward_ad.dual_level():
        return function(torch.autograd.forward_ad.make_dual(x, x))[None]


@pytest.mark.sampled(3)
@BACKENDS
def test_deterministic_gradients(backend):
    inputs = [normal(2, 2, 40, 4, seed=seed).requires_grad_() for seed in range(3)]
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
