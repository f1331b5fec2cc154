"""The merged backend over what it serves, in blocks so small that many edges are crossed, and what it refuses."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.export import export
from torch.utils.checkpoint import checkpoint

from relattn import relation_attention, relative_attention
from relattn.backends import merged, tiles
from relattn.testing import SHAPES, Shape, assert_within_budget, error, make_inputs, outputs_and_gradients

TABLES = ("both", "keys", "values", "neither")
# Dynamo makes an instance of every autograd function that it traces, and PyTorch warns of that
TRACES = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
MANY = {
    "long": Shape(batch=2, heads=4, key_heads=2, queries=97, keys=97, dim=5, value_dim=7, left=4, right=4),
    "long lopsided": Shape(batch=3, heads=2, key_heads=2, queries=61, keys=61, dim=7, value_dim=5, left=1, right=6),
    "long last": Shape(batch=2, heads=3, key_heads=3, queries=31, keys=83, dim=5, value_dim=7, left=3, right=0),
    "long one label": Shape(batch=2, heads=3, key_heads=1, queries=53, keys=53, dim=5, value_dim=7, left=0, right=0),
}


@pytest.fixture(autouse=True, params=[5, 16])
def small_blocks(request, monkeypatch):
    """Blocks of a few queries, chunks of a few pairs, backward calls of a few keys."""
    monkeypatch.setattr(tiles, "BLOCK", (request.param, request.param))
    monkeypatch.setattr(tiles, "TILE", 3 * request.param**2)
    monkeypatch.setattr(merged, "SPAN", 7)


def options_of(shape, offset, causal, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    options = {"clip": (shape.left, shape.right), "is_causal": causal}
    if offset:
        options["query_offset"] = int(torch.randint(-shape.queries - 2, shape.keys + 3, (), generator=generator))
    elif lengths:
        options["query_offset"] = shape.keys - shape.queries
    if lengths:
        options["key_lengths"] = torch.randint(0, shape.keys + 1, (shape.batch,), generator=generator)
        options["key_lengths"][0] = shape.keys
    return options


def cases():
    flags = list(itertools.product([False, True], [False, True], [False, True], ("clip", "zero")))
    for number, (name, case) in enumerate(itertools.product({**SHAPES, **MANY}, flags)):
        yield pytest.param(name, *case, TABLES[number // 3 % 4 if number % 5 == 0 else 0], number % 2 == 0, number)


@pytest.mark.parametrize(("name", "offset", "causal", "lengths", "beyond", "tables", "per_head", "seed"), list(cases()))
def test_it_is_the_equations(name, offset, causal, lengths, beyond, tables, per_head, seed):
    shape = {**SHAPES, **MANY}[name]
    dtype = torch.float64 if seed % 3 else torch.float32
    inputs = make_inputs(shape, tables=tables, per_head=per_head, dtype=dtype, seed=seed)
    assert_within_budget(
        relative_attention, inputs, "merged", beyond=beyond, **options_of(shape, offset, causal, lengths, seed)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [*SHAPES, *MANY])
def test_half_precision_loses_no_more_than_the_reference(dtype, causal, name):
    shape = {**SHAPES, **MANY}[name]
    inputs = make_inputs(shape, dtype=dtype)
    assert_within_budget(relative_attention, inputs, "merged", **options_of(shape, False, causal, True, 3))


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 0, 2), (0, 3, 2), (3, 0, 2), (5, 5, 0), (1, 1, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_to_attend_with_or_to(queries, keys, batch, causal):
    shape = Shape(batch=batch, heads=2, key_heads=1, queries=queries, keys=keys, dim=3, value_dim=5, left=2, right=1)
    options = {"clip": (2, 1), "is_causal": causal, "key_lengths": torch.full((batch,), keys), "query_offset": 0}
    got = outputs_and_gradients(relative_attention, make_inputs(shape), backend="merged", **options)
    want = outputs_and_gradients(relative_attention, make_inputs(shape), backend="reference", **options)
    assert all(error(got[name], want[name]) < 1e-13 for name in want)


@pytest.mark.parametrize("causal", [False, True])
def test_what_padding_holds_changes_nothing_and_passes_no_gradient(causal):
    inputs = make_inputs(MANY["long"], dtype=torch.float32)
    lengths = torch.tensor([97, 41])
    options = {"clip": 4, "is_causal": causal, "key_lengths": lengths, "backend": "merged"}
    padding = (torch.arange(97) >= lengths[:, None])[:, None, :, None]
    other = {name: x.masked_fill(padding, 1e4) if x.dim() == 4 else x for name, x in inputs.items()}
    want = outputs_and_gradients(relative_attention, inputs, **options)
    got = outputs_and_gradients(relative_attention, other, **options)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not want["output"][1, :, 41:].any()
    assert want["lse"][1, :, 41:].isneginf().all()
    assert not any(want[f"d {name}"][1, :, 41:].any() for name in ("query", "key", "value"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_numbers_that_are_not_finite_spread_as_in_plain_attention(bad, name):
    inputs = make_inputs(SHAPES["self"], tables="neither")
    inputs[name][0, 1, 5, 2] = bad
    got = relative_attention(**inputs, clip=4, backend="merged")
    want = F.scaled_dot_product_attention(inputs["query"], inputs["key"], inputs["value"])
    assert torch.equal(got.isfinite(), want.isfinite())


def test_strides_do_not_matter_and_the_bits_are_the_same_every_time():
    inputs = make_inputs(MANY["long"], per_head=True)
    want = outputs_and_gradients(relative_attention, inputs, clip=4, backend="merged")
    again = outputs_and_gradients(relative_attention, inputs, clip=4, backend="merged")
    assert all(torch.equal(again[name], want[name]) for name in want)
    strided = {
        name: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0) if x.dim() == 4 else x.mT.contiguous().mT
        for name, x in inputs.items()
    }
    got = outputs_and_gradients(relative_attention, strided, clip=4, backend="merged")
    assert all(error(got[name], want[name]) < 1e-13 for name in want)


@pytest.mark.parametrize("wanted", ["query", "key", "value", "rel_key", "rel_value"])
def test_gradient_of_one_input_alone(wanted):
    inputs = make_inputs(SHAPES["grouped"])
    want = outputs_and_gradients(relative_attention, inputs, clip=2, backend="merged")
    inputs[wanted].requires_grad_()
    output, lse = relative_attention(**inputs, clip=2, backend="merged", return_lse=True)
    assert not lse.requires_grad
    cotangent = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.autograd.grad(output, inputs[wanted], cotangent)[0], want[f"d {wanted}"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(13, 13, dtype=torch.bool)}, "merged: a mask tensor is for dense"),
        ({"dropout_p": 0.1}, "merged: dropout_p > 0 is for dense"),
        ({"query_offset": torch.tensor([0, 1])}, "merged: a query_offset for each sequence is for dense"),
    ],
)
def test_what_it_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        relative_attention(**make_inputs(SHAPES["self"]), clip=4, backend="merged", **change)


def test_it_refuses_relations_and_export():
    inputs = make_inputs(SHAPES["self"])
    with pytest.raises(ValueError, match="merged: relations are arbitrary labels, which are for dense"):
        relation_attention(**inputs, relations=torch.zeros(1, 1, 13, 13).long(), backend="merged")

    class Attend(torch.nn.Module):
        def forward(self, query, key, value, rel_key, rel_value):
            return relative_attention(query, key, value, rel_key, rel_value, clip=4, backend="merged")

    with pytest.raises(ValueError, match=r"merged: torch\.export is for dense"):
        export(Attend(), tuple(inputs.values()))


@TRACES
@pytest.mark.parametrize("padded", [False, True])
def test_compiles_whole(padded):
    inputs = make_inputs(SHAPES["self"])
    options = {"key_lengths": torch.tensor([13, 4])} if padded else {}

    def attend(return_lse, **tensors):
        return relative_attention(**tensors, clip=4, is_causal=True, backend="merged", **options, return_lse=True)

    got = outputs_and_gradients(torch.compile(attend, fullgraph=True, backend="aot_eager"), inputs)
    want = outputs_and_gradients(attend, inputs)
    assert all(error(got[name], want[name]) < 1e-13 for name in want)


def test_autocast_and_activation_checkpointing():
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    given = [x.requires_grad_() for x in inputs.values()]

    def attend(*tensors):
        with torch.autocast("cpu", torch.bfloat16):
            return relative_attention(*tensors, clip=4, backend="merged")

    output = attend(*given)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, relative_attention(*(x.bfloat16() for x in given), clip=4, backend="merged"))
    want = torch.autograd.grad(output.float().sum(), given)
    got = torch.autograd.grad(checkpoint(attend, *given, use_reentrant=False).float().sum(), given)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@TRACES
@pytest.mark.parametrize(
    ("tables", "causal", "beyond"), [("both", False, "clip"), ("values", True, "clip"), ("keys", False, "zero")]
)
def test_the_operators_are_what_they_say(tables, causal, beyond):
    inputs = make_inputs(SHAPES["grouped"], tables=tables)
    given = [None if x is None else x.requires_grad_() for x in inputs.values()]
    arguments = (*given, torch.tensor([7, 3, 0, 7, 7]), 0, causal, 0.5, 2, 2, beyond)
    torch.library.opcheck(torch.ops.relattn.merged.default, arguments)
    with torch.no_grad():
        kept = torch.ops.relattn.merged(*arguments)
        plain = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
        torch.library.opcheck(torch.ops.relattn.merged_backward.default, (torch.ones_like(kept[0]), *kept, *plain))
