"""The contract: its algebra, its messages, and the machinery of PyTorch it works under."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.utils.checkpoint import checkpoint

from relattn import RelativePositionTable, backends, relation_attention, relative_attention
from relattn.positions import distances, labels
from tests.support.numerics import SHAPES, error, make_inputs, outputs_and_gradients, widest

pytestmark = pytest.mark.sampled(4)

BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)
# Dynamo makes an instance of every autograd function that it traces, and PyTorch warns of that
TRACES = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def close(got, want, ulps=450):
    allowed = ulps * torch.finfo(got.dtype).eps
    assert error(got, want) < allowed, f"off by {error(got, want):.1e}, allowed {allowed:.1e}"


def all_close(got, want):
    for name in want:
        close(got[name], want[name])


@pytest.mark.parametrize("backend", ["reference", "dense", "native"])
def test_tensors_without_numbers(backend):
    """As those who count a model's memory use them: lengths have shapes alone, and are not looked at."""
    shapes = []
    for mode in (nullcontext(), FakeTensorMode()):
        with mode:
            query, table = torch.ones(2, 2, 5, 8, requires_grad=True), torch.ones(5, 8, requires_grad=True)
            lengths = torch.full((2,), 3)
            output = relative_attention(query, query, query, table, table, lengths=lengths, backend=backend)
            output.sum().backward()
            shapes.append([x.shape for x in (output, query.grad, table.grad)])
    assert shapes[0] == shapes[1]


@BACKENDS
@CAUSAL
def test_zero_tables_are_plain_attention(backend, causal):
    inputs = make_inputs(SHAPES["grouped"], dtype=widest(backend))
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    want = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    zeros = {name: torch.zeros_like(inputs[name]) for name in ("rel_key", "rel_value")}
    close(relative_attention(query, key, value, **zeros, clip=2, is_causal=causal, backend=backend), want)
    close(relative_attention(query, key, value, clip=2, is_causal=causal, backend=backend), want)
    assert torch.equal(
        relative_attention(query, key, value, clip=2, scale=0.0, backend=backend)[0, 0, 0],
        relative_attention(query, key, value, clip=2, scale=0.0, backend=backend)[0, 0, 1],
    )


@BACKENDS
@CAUSAL
def test_keys_alone_are_a_bias_to_plain_attention(backend, causal):
    inputs = make_inputs(SHAPES["self"], tables="keys", dtype=widest(backend))
    query, key, value, rel_key = (inputs[name] for name in ("query", "key", "value", "rel_key"))
    label = torch.tensor([[min(max(j - i, -4), 4) + 4 for j in range(13)] for i in range(13)])
    bias = torch.einsum("bhid,ijd->bhij", query, rel_key[label]) * 5**-0.5
    if causal:
        bias = bias + torch.full((13, 13), -torch.inf, dtype=widest(backend)).triu(1)
    want = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    close(relative_attention(**inputs, clip=4, is_causal=causal, backend=backend), want)


@BACKENDS
@CAUSAL
def test_a_rel_query_that_is_the_query_shares_its_gradient(backend, causal):
    inputs = make_inputs(SHAPES["grouped"], dtype=widest(backend))
    options = {"clip": 2, "is_causal": causal, "backend": backend}
    want = outputs_and_gradients(relative_attention, inputs, **options)
    got = outputs_and_gradients(relative_attention, inputs | {"rel_query": inputs["query"].clone()}, **options)
    got["d query"] = got["d query"] + got.pop("d rel_query")
    all_close(got, want)


@BACKENDS
def test_ones_of_one_dim_make_a_table_a_bias(backend):
    """Also as a view of a single number, and with a gradient of every number of it."""
    inputs = make_inputs(SHAPES["self"], tables="neither", dtype=widest(backend))
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    table = torch.randn(3, 9, 1, dtype=query.dtype)
    one = torch.ones(1, 1, 1, 1, dtype=query.dtype).expand(2, 3, 13, 1)
    label = distances(13, 13, 0, query.device).clamp(-4, 4) + 4
    want = F.scaled_dot_product_attention(query, key, value, attn_mask=table[:, label, 0] * 5**-0.5)
    close(relative_attention(query, key, value, table, rel_query=one, backend=backend), want)
    given = {"query": query, "key": key, "value": value, "rel_key": table, "rel_value": None}
    apart = outputs_and_gradients(relative_attention, given | {"rel_query": one.contiguous()}, clip=4, backend=backend)
    all_close(outputs_and_gradients(relative_attention, given | {"rel_query": one}, clip=4, backend=backend), apart)


@BACKENDS
def test_a_window_past_the_ends_is_no_clipping(backend):
    inputs = make_inputs(SHAPES["clip past the ends"], dtype=widest(backend))
    want = relative_attention(**inputs, clip=(6, 8), backend=backend)
    inner = {name: inputs[name][2:11] for name in ("rel_key", "rel_value")}
    close(relative_attention(**{**inputs, **inner}, clip=4, backend=backend), want)
    close(relative_attention(**{**inputs, **inner}, clip=4, beyond="zero", backend=backend), want)


@BACKENDS
def test_clipping_repeats_the_edge_rows(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    want = relative_attention(**inputs, clip=4, backend=backend)
    wide = {
        name: torch.cat([x[:1].expand(8, -1), x, x[-1:].expand(8, -1)])
        for name, x in inputs.items()
        if name.startswith("rel")
    }
    close(relative_attention(**{**inputs, **wide}, clip=12, backend=backend), want)
    zero = {name: F.pad(x, (0, 0, 8, 8)) for name, x in inputs.items() if name.startswith("rel")}
    close(
        relative_attention(**{**inputs, **zero}, clip=12, backend=backend),
        relative_attention(**inputs, clip=4, beyond="zero", backend=backend),
    )


@BACKENDS
@CAUSAL
def test_shifting_positions_changes_nothing(backend, causal):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    want = relative_attention(**inputs, clip=4, is_causal=causal, backend=backend)
    shifted = {name: F.pad(x, (0, 0, 3, 0), value=7.0) if name in ("key", "value") else x for name, x in inputs.items()}
    behind = torch.arange(16) >= 3
    options = {"clip": 4, "is_causal": causal, "mask": behind, "backend": backend}
    close(relative_attention(**shifted, **options), want)
    close(relative_attention(**shifted, **options, query_offset=torch.tensor([3, 3])), want)


@BACKENDS
@CAUSAL
@pytest.mark.parametrize("junk", [1e4, torch.inf, torch.nan])
@pytest.mark.parametrize("shape", ["self", "more queries"])
def test_what_padding_holds_changes_nothing(backend, causal, junk, shape):
    """Neither outputs nor gradients, and neither does what comes back to the outputs of padding queries."""
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, rel_dim=3, dtype=torch.float32)
    query_lengths = torch.tensor([sizes.queries, sizes.queries // 2])
    key_lengths = torch.tensor([sizes.keys - 1, sizes.keys // 2])
    padding = {
        "query": (torch.arange(sizes.queries) >= query_lengths[:, None])[:, None, :, None],
        "key": (torch.arange(sizes.keys) >= key_lengths[:, None])[:, None, :, None],
    }
    padding |= {"rel_query": padding["query"], "value": padding["key"]}
    options = {"clip": (sizes.left, sizes.right), "is_causal": causal, "query_offset": 0, "backend": backend}
    options |= {"key_lengths": key_lengths, "query_lengths": query_lengths}

    def results(content):
        filled = {name: x.masked_fill(padding[name], content) if name in padding else x for name, x in inputs.items()}
        leaves = [x.requires_grad_() for x in filled.values()]
        output, lse = relative_attention(**filled, **options, return_lse=True)
        cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(output, leaves, cotangent.masked_fill(padding["query"], content))
        return output, lse, *gradients

    for got, want in zip(results(junk), results(0.0), strict=True):
        assert torch.equal(got, want)


@BACKENDS
@CAUSAL
def test_a_padded_sequence_is_as_if_it_were_alone(backend, causal):
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    options = {"clip": 4, "is_causal": causal, "backend": backend}
    padded = relative_attention(**inputs, **options, lengths=torch.tensor([11, 4]))
    alone = {name: x[1:, :, :4] if x.dim() == 4 else x for name, x in inputs.items()}
    close(relative_attention(**alone, **options), padded[1:, :, :4], 20)


@BACKENDS
def test_lengths_set_those_of_keys_and_of_queries(backend):
    inputs, lengths = make_inputs(SHAPES["self"], dtype=widest(backend)), torch.tensor([11, 4])
    options = {"clip": 4, "backend": backend}
    both = {"key_lengths": lengths, "query_lengths": lengths}
    want = outputs_and_gradients(relative_attention, inputs, **options, **both)
    got = outputs_and_gradients(relative_attention, inputs, **options, lengths=lengths)
    assert all(torch.equal(got[name], want[name]) for name in want)
    keys_alone = relative_attention(**inputs, **options, key_lengths=lengths)
    assert keys_alone[1, :, 4:].any()  # as many queries as keys do not make it self-attention
    close(keys_alone[1, :, :4], want["output"][1, :, :4])


@BACKENDS
def test_the_output_may_be_changed_in_place(backend):
    """Autograd refuses this for a view that a function returns."""
    inputs = {name: x.requires_grad_() for name, x in make_inputs(SHAPES["self"], dtype=torch.float32).items()}
    want = relative_attention(**inputs, clip=4, backend=backend).detach() + 1.0
    assert torch.equal(relative_attention(**inputs, clip=4, backend=backend).add_(1.0), want)


@BACKENDS
def test_parts_of_the_keys_merge_into_the_whole(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    options = {"clip": 4, "is_causal": True, "backend": backend, "return_lse": True}
    output, lse = relative_attention(**inputs, **options)
    outputs, lses = [], []
    for start, stop in ((0, 2), (2, 2), (2, 9), (9, 13)):  # one is empty; the last is, for early queries
        part = {name: x[:, :, start:stop] if name in ("key", "value") else x for name, x in inputs.items()}
        one, one_lse = relative_attention(**part, **options, query_offset=-start)
        outputs.append(one)
        lses.append(one_lse)
    together = torch.stack(lses).logsumexp(0)
    close(together, lse)
    close(sum((part - together).exp()[..., None] * z for part, z in zip(lses, outputs, strict=True)), output)


@BACKENDS
def test_relative_position_is_one_relation(backend):
    inputs = make_inputs(SHAPES["last queries"], dtype=widest(backend))
    relations = labels(distances(5, 13, 8, torch.device("cpu")), 3, 2, clips=False)[None, None]
    want = outputs_and_gradients(relative_attention, inputs, clip=(3, 2), beyond="zero", backend=backend)
    for kind in (torch.int64, torch.int32, torch.int8):
        got = outputs_and_gradients(relation_attention, inputs, relations=relations.to(kind), backend=backend)
        all_close(got, want)


def test_dropout_is_the_explicit_formula():
    """Dropped probabilities weigh neither values nor aV; the kept ones are scaled up, the log-sum-exp is not."""
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    torch.manual_seed(3)
    output, lse = relative_attention(**inputs, clip=4, dropout_p=0.4, backend="dense", return_lse=True)
    torch.manual_seed(3)
    again = relative_attention(**inputs, clip=4, dropout_p=0.4, backend="dense")
    assert torch.equal(output, again)
    torch.manual_seed(3)
    kept = F.dropout(torch.ones(6, 13, 13), 0.4).view(2, 3, 13, 13)
    label = labels(distances(13, 13, 0, torch.device("cpu")), 4, 4, clips=True)
    a_key, a_value = inputs["rel_key"][label], inputs["rel_value"][label]
    scores = inputs["query"] @ inputs["key"].mT + torch.einsum("bhid,ijd->bhij", inputs["query"], a_key)
    probabilities = (scores * 5**-0.5).softmax(-1) * kept
    want = probabilities @ inputs["value"] + torch.einsum("bhij,ijd->bhid", probabilities, a_value)
    close(output, want, 100)
    close(lse, (scores * 5**-0.5).logsumexp(-1), 100)


@pytest.mark.whole
@BACKENDS
def test_dropout_keeps_its_share_and_the_mean(backend):
    ones = torch.ones(40, 5, 20, 3)
    torch.manual_seed(0)
    output = relative_attention(ones, ones, ones, clip=2, dropout_p=0.3, backend=backend)
    # each output is kept / (20 · 0.7) with kept ~ Binomial(20, 0.7); 4000 rows, so the mean is within 5 deviations
    deviation = (0.3 / (0.7 * 20)) ** 0.5
    assert abs(float(output[..., 0].mean()) - 1.0) < 5 * deviation / 4000**0.5
    assert abs(float(output[..., 0].std()) / deviation - 1.0) < 0.1
    assert not relative_attention(ones, ones, ones, clip=2, dropout_p=1.0, backend=backend).any()


def test_the_log_sum_exp_carries_no_gradient():
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    inputs["query"].requires_grad_()
    for backend in backends.NAMES:
        output, lse = relative_attention(**inputs, clip=4, return_lse=True, backend=backend)
        assert output.requires_grad
        assert not lse.requires_grad


class Stop(torch.autograd.Function):
    """The input, of which no gradient comes back: not zeros but none."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@BACKENDS
def test_where_no_gradient_comes_back_none_goes_on(backend):
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    leaves = [x.requires_grad_() for x in inputs.values()]
    output = Stop.apply(relative_attention(**inputs, backend=backend))
    assert torch.autograd.grad(output.sum(), leaves, allow_unused=True) == (None,) * 5


@BACKENDS
def test_autocast_casts_once(backend):
    inputs = make_inputs(SHAPES["self"], dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output, lse = relative_attention(**inputs, clip=4, return_lse=True, backend=backend)
    assert output.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    low = {name: x.bfloat16() for name, x in inputs.items()}
    assert torch.equal(output, relative_attention(**low, clip=4, backend=backend))


@BACKENDS
@pytest.mark.parametrize("tables", ["both", "keys", "values", "neither"])
def test_activation_checkpointing_with_dropout(backend, tables):
    inputs = make_inputs(SHAPES["self"], tables=tables, dtype=widest(backend))
    given = {name: x.requires_grad_() for name, x in inputs.items() if x is not None}

    def attend(**tensors):
        return relative_attention(**tensors, clip=4, dropout_p=0.3, backend=backend)

    gradients = []
    for run in (attend, lambda **tensors: checkpoint(attend, use_reentrant=False, **tensors)):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(run(**given).sum(), list(given.values())))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.sampled(8)
@TRACES
@BACKENDS
@pytest.mark.parametrize("restricted", [False, True])
def test_compiles_whole(backend, restricted):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend), rel_dim=3 if restricted else None)
    options = {"lengths": torch.tensor([13, 4]), "mask": torch.rand(13, 13) < 0.7} if restricted else {}

    def attend(**tensors):
        return relative_attention(**tensors, clip=4, is_causal=True, backend=backend, **options, return_lse=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    want = outputs_and_gradients(lambda return_lse, **tensors: attend(**tensors), inputs)
    got = outputs_and_gradients(lambda return_lse, **tensors: compiled(**tensors), inputs)
    all_close(got, want)


@TRACES
@BACKENDS
def test_one_tensor_for_all_compiles_whole(backend):
    x, table = torch.randn(2, 3, 7, 5).requires_grad_(), torch.randn(5, 5).requires_grad_()

    def attend(x):
        return relative_attention(x, x, x, table, table, backend=backend)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for given in (x, x.detach()):
        close(compiled(given).detach(), attend(given).detach())
    want, got = (torch.autograd.grad(run(x).square().sum(), (x, table)) for run in (attend, compiled))
    assert all(error(a, b) < 1e-4 for a, b in zip(got, want, strict=True))


@TRACES
@BACKENDS
def test_relations_compile_whole(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend), rel_dim=3)
    relations = torch.randint(-1, 9, (2, 1, 13, 13))

    def attend(return_lse, **tensors):
        return relation_attention(**tensors, relations=relations, backend=backend, return_lse=True)

    got = outputs_and_gradients(torch.compile(attend, fullgraph=True, backend="aot_eager"), inputs)
    want = outputs_and_gradients(attend, inputs)
    all_close(got, want)


class Attend(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, rel_key, rel_value, lengths):
        lengths = lengths if self.options.get("padded") else None
        options = {name: option for name, option in self.options.items() if name not in ("padded", "own")}
        if self.options.get("own"):
            options["rel_query"], rel_key = value[..., :2], rel_key[:, :2]
        return relative_attention(query, key, value, rel_key, rel_value, lengths=lengths, **options)


@pytest.mark.whole
@TRACES
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"clip": 4},
        {"clip": 4, "is_causal": True},
        {"clip": 4, "padded": True},
        {"clip": 4, "padded": True, "is_causal": True, "beyond": "zero"},
        {"clip": 4, "own": True},
    ],
    ids=["all", "causal", "lengths", "causal lengths zero", "rel_query"],
)
def test_exports_with_any_batch_and_length(strict, options):
    def arguments(batch, n):
        generator = torch.Generator().manual_seed(n)
        floats = [torch.randn(batch, 3, n, 5, generator=generator) for _ in range(3)]
        tables = [torch.randn(9, 5, generator=torch.Generator().manual_seed(side)) for side in range(2)]
        return (*floats, *tables, torch.randint(0, n + 1, (batch,), generator=generator))

    batch, n = Dim("batch"), Dim("n")
    moving = {0: batch, 2: n}
    shapes = (moving, moving, moving, None, None, {0: batch})
    program = export(Attend(**options), arguments(2, 7), dynamic_shapes=shapes, strict=strict).module()
    for sizes in ((2, 7), (3, 40), (5, 2), (2, 3)):
        close(program(*arguments(*sizes)), Attend(**options)(*arguments(*sizes)), 20)


def test_export_refuses_kernels_by_name():
    query = torch.randn(1, 2, 4, 3)
    given = (query, query, query, torch.randn(3, 3), torch.randn(3, 3), torch.tensor([4]))
    for backend in ("native", "triton"):
        with pytest.raises(Exception, match=f"{backend}: torch.export"):
            export(Attend(clip=1, backend=backend), given)


class Relate(torch.nn.Module):
    def forward(self, query, key, value, relations, rel_key, rel_value):
        return relation_attention(query, key, value, relations, rel_key, rel_value, is_causal=True)


def test_relations_export_with_any_batch_and_length():
    def arguments(batch, n):
        generator = torch.Generator().manual_seed(n)
        floats = [torch.randn(batch, 3, n, 5, generator=generator) for _ in range(3)]
        relations = torch.randint(-1, 4, (batch, 1, n, n), generator=generator)
        tables = [torch.randn(4, 5, generator=torch.Generator().manual_seed(side)) for side in range(2)]
        return (*floats, relations, *tables)

    moving = {0: Dim("batch"), 2: Dim("n")}
    shapes = (moving, moving, moving, {**moving, 3: moving[2]}, None, None)
    program = export(Relate(), arguments(2, 7), dynamic_shapes=shapes).module()
    for sizes in ((2, 7), (3, 40), (5, 2)):
        close(program(*arguments(*sizes)), Relate()(*arguments(*sizes)), 20)


@pytest.mark.parametrize(
    ("dtype", "keys", "first"),
    [
        (torch.float32, 8, "native"),
        (torch.bfloat16, 9000, "native"),
        (torch.float64, 9000, "native"),
    ],
)
def test_auto_takes_what_was_measured_to_be_fastest(dtype, keys, first):
    call = SimpleNamespace(query=torch.empty(1, 1, 1, 1, dtype=dtype), key=torch.empty(1, 1, keys, 1, dtype=dtype))
    assert backends.order(call)[0] == first
    call.query = torch.empty(1, 1, 1, 1, dtype=dtype, device="meta")
    assert backends.order(call) == ("native", "dense")


def shaped(*sizes, dtype=torch.float32):
    return torch.zeros(sizes, dtype=dtype)


GOOD = {"query": shaped(2, 4, 5, 3), "key": shaped(2, 2, 5, 3), "value": shaped(2, 2, 5, 7), "clip": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": shaped(2, 4, 5)}, r"four dimensions .*, got query \(2, 4, 5\), key \(2, 2, 5, 3\)"),
        ({"key": shaped(3, 2, 5, 3)}, r"same batch size .*, got .*key \(3, 2, 5, 3\)"),
        ({"value": shaped(2, 2, 6, 7)}, r"same heads and length .*, got .*value \(2, 2, 6, 7\)"),
        ({"query": shaped(2, 3, 5, 3)}, r"multiple.* of the heads of key .*, got query \(2, 3, 5, 3\)"),
        ({"query": shaped(2, 0, 5, 3)}, r"multiple.* of the heads of key .*, got query \(2, 0, 5, 3\)"),
        ({"key": shaped(2, 0, 5, 3), "value": shaped(2, 0, 5, 7)}, r"heads of key .*, got .*key \(2, 0, 5, 3\)"),
        ({"key": shaped(2, 2, 5, 4)}, r"same dim.*, got .*key \(2, 2, 5, 4\)"),
        ({"clip": -1}, r"clip must be .*, got -1"),
        ({"clip": (1, 2, 3)}, r"clip must be .*, got \(1, 2, 3\)"),
        ({"clip": 2.0}, r"clip must be .*, got 2.0"),
        ({"beyond": "wrap"}, r"beyond must be 'clip' or 'zero', got 'wrap'"),
        ({"rel_key": shaped(4, 3)}, r"rel_key must have 5 rows, .*clip=2, got 4 rows in \(4, 3\)"),
        ({"rel_value": shaped(4, 6, 7)}, r"rel_value must have 5 rows, .*clip=2, got 6 rows in \(4, 6, 7\)"),
        ({"rel_key": shaped(5, 7)}, r"rel_key must have shape \(labels, 3\), or \(4, labels, 3\).*, got \(5, 7\)"),
        ({"rel_value": shaped(2, 5, 7)}, r"rel_value must .* \(4, labels, 7\).*, got \(2, 5, 7\)"),
        ({"rel_key": shaped(5, 1)}, r"rel_key must .*, got \(5, 1\); another dim needs a rel_query of that dim"),
        (
            {"rel_key": shaped(5, 3), "rel_query": shaped(2, 4, 5, 2)},
            r"rel_key must have shape \(labels, 2\), or \(4, labels, 2\).*, got \(5, 3\)",
        ),
        (
            {"rel_key": shaped(5, 1), "rel_query": shaped(1, 1, 1, 1)},
            r"rel_query must have shape \(2, 4, 5, rel_dim\).*, got \(1, 1, 1, 1\) with query \(2, 4, 5, 3\)",
        ),
        ({"rel_key": shaped(5, 3), "rel_query": shaped(4, 5, 3)}, r"\(2, 4, 5, rel_dim\).*, got \(4, 5, 3\)"),
        ({"rel_key": shaped(5, 0), "rel_query": shaped(2, 4, 5, 0)}, r"rel_dim >= 1, got \(2, 4, 5, 0\)"),
        (
            {"rel_value": shaped(5, 7), "rel_query": shaped(2, 4, 5, 3)},
            r"rel_query must come with rel_key.*\(2, 4, 5, 3\)",
        ),
        (
            {"rel_key": shaped(5, 3), "rel_query": shaped(2, 4, 5, 3, dtype=torch.float16)},
            r"one floating-point dtype, got query float32.*rel_query float16",
        ),
        (
            {"rel_key": shaped(5, 3, dtype=torch.float64)},
            r"one floating-point dtype, got query float32.*rel_key float64",
        ),
        ({"key_lengths": torch.tensor([5])}, r"key_lengths must have shape \(2,\).*, got \(1,\)"),
        ({"key_lengths": torch.tensor([5, 6])}, r"key_lengths must be in \[0, 5\].*, got values from 5 to 6"),
        ({"key_lengths": torch.tensor([5.0, 4.0])}, r"key_lengths must have an integer dtype, got torch.float32"),
        ({"lengths": torch.tensor([5, 6])}, r"lengths must be in \[0, 5\].*, got values from 5 to 6"),
        ({"lengths": torch.tensor([5, 4]), "key_lengths": torch.tensor([5, 4])}, "lengths must be given without"),
        ({"lengths": torch.tensor([5, 4]), "query_lengths": torch.tensor([5, 4])}, "lengths must be given without"),
        (
            {"query": shaped(2, 4, 3, 3), "lengths": torch.tensor([3, 3])},
            "lengths must be used with as many queries as keys, got 3 queries and 5 keys",
        ),
        (
            {"query": shaped(2, 4, 3, 3), "key_lengths": torch.tensor([5, 4]), "is_causal": True},
            r"query_offset must be given",
        ),
        ({"query_offset": torch.tensor([1, 2, 3])}, r"query_offset must be .*\(2,\) integers.*, got \(3,\)"),
        ({"query_offset": torch.tensor([True, False])}, r"query_offset must have an integer dtype, got torch.bool"),
        ({"query_offset": 1.5}, r"query_offset must be .*, got 1.5"),
        ({"mask": shaped(5, 5)}, r"mask must have dtype torch.bool .*, got torch.float32"),
        ({"mask": shaped(3, 1, 5, 5, dtype=torch.bool)}, r"mask must .*\(2, 4, 5, 5\), got \(3, 1, 5, 5\)"),
        ({"rel_key": shaped(5), "clip": None}, r"rel_key must have shape .*, got \(5,\)"),
        ({"rel_key": shaped(0, 3)}, r"rel_key must have at least one row, got \(0, 3\)"),
        (
            {"rel_key": shaped(5, 3), "rel_value": shaped(7, 7), "clip": None},
            r"rel_value must have 5 rows.*, got 7 rows",
        ),
        ({"query_lengths": torch.tensor([5, 6])}, r"query_lengths must be in \[0, 5\], the number of queries"),
        ({"query_lengths": torch.tensor(5)}, r"query_lengths must have shape \(2,\).*, got \(\)"),
        ({"value": shaped(2, 2, 5, 0)}, r"value must have a dim of at least 1.*value \(2, 2, 5, 0\)"),
        ({"query": shaped(2, 4, 5, 0), "key": shaped(2, 2, 5, 0)}, r"same dim, at least 1 .*query \(2, 4, 5, 0\)"),
        ({"scale": "big"}, r"scale must be a number, got 'big'"),
        ({"scale": torch.tensor(0.5)}, r"scale must be a number, got tensor\(0.5000\); pass scale.item\(\)"),
        ({"dropout_p": None}, r"dropout_p must be a probability in \[0, 1\], got None"),
        ({"dropout_p": 1.5}, r"dropout_p must be .*, got 1.5"),
        ({"backend": "fast"}, r"backend must be one of native, triton, dense, reference, or 'auto', got 'fast'"),
        ({"key": torch.zeros(2, 2, 5, 3, device="meta")}, r"one device, got .*key on meta"),
    ],
)
def test_messages_restate_what_was_given_and_the_rule(change, message):
    with pytest.raises(ValueError, match=message):
        relative_attention(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relations": torch.full((1, 1, 5, 5), 5)}, r"relations must be in \[-1, 5\).*, got values from 5 to 5"),
        ({"relations": torch.full((1, 1, 5, 5), -2)}, r"relations must be .*, got values from -2 to -2"),
        ({"relations": shaped(1, 1, 5, 5)}, r"relations must have an integer dtype, got torch.float32"),
        ({"relations": torch.zeros(3, 1, 5, 5).long()}, r"\(2 or 1, 4 or 1, 5, 5\), got \(3, 1, 5, 5\)"),
        ({"relations": torch.zeros(5, 5).long()}, r"relations must have shape .*, got \(5, 5\)"),
        ({"rel_value": shaped(4, 7)}, r"rel_value must have 5 rows, as many as the other table, got 4 rows"),
    ],
)
def test_messages_about_relations(change, message):
    good = {name: x for name, x in GOOD.items() if name != "clip"}
    good |= {"relations": torch.zeros(1, 1, 5, 5).long(), "rel_key": shaped(5, 3), "rel_value": shaped(5, 7)}
    relation_attention(**good)
    with pytest.raises(ValueError, match=message):
        relation_attention(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rel_key": RelativePositionTable(2, 3)},
            "rel_key must be a tensor, got RelativePositionTable; pass its weight",
        ),
        ({"query": numpy.zeros((2, 4, 5, 3))}, "query must be a tensor, got ndarray"),
        ({"query": None}, "query must be a tensor, got None"),
        ({"rel_query": [1.0]}, "rel_query must be a tensor, got list"),
        ({"key_lengths": [5, 4]}, "key_lengths must be a tensor, got list"),
        ({"mask": True}, "mask must be a tensor, got bool"),
        (
            {"query": torch.nested.nested_tensor([torch.zeros(4, 5, 3)] * 2, layout=torch.jagged)},
            "query must be a padded tensor, got a nested tensor; pad it and pass its lengths",
        ),
    ],
)
def test_what_is_no_tensor_is_said_so(change, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        relative_attention(**{**GOOD, **change})


@BACKENDS
def test_integers_of_any_type_will_do(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    lengths, offsets = torch.tensor([13, 5]), torch.tensor([0, 2])
    options = {"clip": 4, "is_causal": True, "backend": backend}
    want = relative_attention(**inputs, key_lengths=lengths, query_lengths=lengths, query_offset=offsets, **options)
    labels_ = torch.randint(0, 9, (2, 1, 13, 13), generator=torch.Generator().manual_seed(0))
    related = relation_attention(**inputs, relations=labels_, backend=backend)
    for kind in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32):
        given = {"key_lengths": lengths.to(kind), "query_lengths": lengths.to(kind), "query_offset": offsets.to(kind)}
        assert torch.equal(relative_attention(**inputs, **given, **options), want)
        assert torch.equal(relation_attention(**inputs, relations=labels_.to(kind), backend=backend), related)
    for clip in (numpy.int64(4), (numpy.uint8(4), 4), [4, numpy.int16(4)]):
        assert torch.equal(
            relative_attention(**inputs, clip=clip, query_offset=numpy.int32(0), backend=backend),
            relative_attention(**inputs, clip=4, backend=backend),
        )


def test_the_rows_say_the_clip():
    inputs = make_inputs(SHAPES["self"])
    assert torch.equal(relative_attention(**inputs), relative_attention(**inputs, clip=4))
    query, key, value, rel_key, rel_value = inputs.values()
    assert torch.equal(relative_attention(query, key, value), relative_attention(query, key, value, clip=7))
    with pytest.raises(ValueError, match=r"clip must be given as \(left, right\).*, got 8 rows"):
        relative_attention(query, key, value, rel_key[:8], rel_value[:8])


@BACKENDS
@pytest.mark.parametrize("beyond", ["clip", "zero"])
@CAUSAL
def test_a_clip_far_wider_than_the_sequence_costs_no_more(backend, beyond, causal):
    """2,000,001 rows, of which 25 can be met: scores by label for all of them would take half a gigabyte, twice."""
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    wide = {name: x for name, x in inputs.items() if not name.startswith("rel")}
    tables = make_inputs(replace(SHAPES["self"], left=12, right=12), dtype=widest(backend))
    narrow = wide | {name: tables[name] for name in ("rel_key", "rel_value")}
    rows = {name: F.pad(narrow[name], (0, 0, 10**6 - 12, 10**6 - 12)) for name in ("rel_key", "rel_value")}
    options = {"beyond": beyond, "is_causal": causal, "backend": backend}
    want = relative_attention(**narrow, clip=12, **options)
    close(relative_attention(**wide, **rows, clip=10**6, **options), want)
    for offset in (-5, 30, torch.tensor([-5, 30])):
        close(
            relative_attention(**wide, **rows, clip=10**6, query_offset=offset, **options),
            relative_attention(**wide, **{k: x[10**6 - 60 : 10**6 + 61] for k, x in rows.items()}, clip=60,
                               query_offset=offset, **options),
        )  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("sign", [1, -1])
def test_positions_as_far_off_as_they_may_be(backend, beyond, sign):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    options = {"clip": 4, "beyond": beyond, "backend": backend, "is_causal": sign > 0}
    want = relative_attention(**inputs, **options, query_offset=sign * 100)
    close(relative_attention(**inputs, **options, query_offset=sign * 2**62), want)
    close(relative_attention(**inputs, **options, query_offset=torch.tensor([sign * 2**62, sign * 100])), want)
    for offset in (sign * 2**62 + sign, torch.tensor([0, sign * 2**62 + sign])):
        with pytest.raises(ValueError, match=r"query_offset must .*within 2\^62 of zero"):
            relative_attention(**inputs, **options, query_offset=offset)


@BACKENDS
@CAUSAL
def test_lengths_that_pad_nothing_change_nothing(backend, causal):
    inputs = make_inputs(SHAPES["more queries"], dtype=widest(backend))  # 13 queries on 5 keys
    options = {"clip": (3, 2), "is_causal": causal, "query_offset": 0, "backend": backend}
    want = outputs_and_gradients(relative_attention, inputs, **options)
    full = {"key_lengths": torch.full((2,), 5), "query_lengths": torch.full((2,), 13)}
    for given in (full, {"key_lengths": full["key_lengths"]}, {"query_lengths": full["query_lengths"]}):
        all_close(outputs_and_gradients(relative_attention, inputs, **options, **given), want)


def test_what_a_machine_has_and_what_the_documents_say_of_it():
    """`python -m relattn.backends` prints what each backend declares, and docs/backends.md says the same."""
    outside = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "relattn.backends"]
    printed = subprocess.run(command, env=outside, capture_output=True, text=True, check=True).stdout
    documents = (Path(__file__).parent.parent / "docs" / "backends.md").read_text(encoding="utf-8")
    for name in backends.NAMES:
        declared = re.search(rf"^{name}: (.*) \(.+\)$", printed, re.MULTILINE)[1]
        assert re.search(rf"^\| `{name}` \|.*\| {re.escape(declared)} \|$", documents, re.MULTILINE), declared


def test_an_unknown_backend_has_no_reason():
    with pytest.raises(ValueError, match="got 'fast'"):
        backends.unsupported_reason("fast", None)
