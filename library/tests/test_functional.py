"""The two operators: algebra that every backend must obey, PyTorch's own machinery, and what is refused."""

import math
import runpy
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy
import pytest
import torch
from relattn import RelativePositionTable, RelativeSelfAttention, backends, relation_attention, relative_attention
from torch.export import Dim, export

from tests.support.covering import pairwise
from tests.support.numerics import (
    SHAPES,
    Shape,
    assert_close,
    assert_padding_has_no_effect,
    assert_within_budget,
    budgets,
    equations_keeping,
    kept_pairs,
    make_inputs,
    outputs_and_gradients,
    widest,
)

BACKENDS = pytest.mark.parametrize("backend", backends.NAMES)
# Triton's interpreter is slow: where a test is about the equations alone, `test_backends.py` has cases of its kernels
FAST = pytest.mark.parametrize("backend", ["native", "dense", "reference"])
# Dynamo makes an instance of every autograd function that it traces, and PyTorch warns of that
TRACES = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
CPU = torch.device("cpu")


@pytest.mark.parametrize("backend", ["native", "triton"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("related", [False, True])
@pytest.mark.parametrize("dim", [16, 80, 96])
def test_rel_bias_is_as_exact_as_its_dtype(backend, dtype, related, dim):
    """Half types round 1/scale, by which the bias must not be multiplied; these backends compute scores in float32."""
    x, table = torch.zeros(1, 1, 7, dim, dtype=dtype), torch.zeros(1, dim, dtype=dtype) if related else None
    bias = torch.tensor([-50.0], dtype=dtype)
    _, lse = relative_attention(x, x, x, table, None, rel_bias=bias, clip=0, return_lse=True, backend=backend)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(7) - 50), rtol=0, atol=1e-4)


@pairwise(
    backend=["native", "dense", "reference"], lengths=[(5, 5, 0, 9, 1), (0,), (4,)], is_causal=[0, 1], window=[0, 1]
)
def test_packed_sequences_equal_a_mask(backend, lengths, is_causal, window):
    length = sum(lengths)
    inputs = make_inputs(Shape(1, 4, 2, length, length, dim=3, value_dim=5, left=2, right=2), rel_dim=7)
    ends, number = torch.tensor([0, *lengths]).cumsum(0), torch.arange(len(lengths))
    number = number.repeat_interleave(torch.tensor(lengths))
    options = {"is_causal": bool(is_causal), "window": (3, 1) if window else None, "clip": 2}
    got = outputs_and_gradients(relative_attention, inputs, cu_seqlens=ends.int(), backend=backend, **options)
    mask = number[:, None] == number
    want = outputs_and_gradients(relative_attention, inputs, mask=mask, backend="reference", **options)
    assert_close(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cu_seqlens": torch.tensor([0, 3])}, r"cu_seqlens must increase from 0 to 5, .*, got \[0, 3\]"),
        ({"cu_seqlens": torch.tensor([0, 4, 3, 5])}, "cu_seqlens must increase from 0 to 5"),
        ({"cu_seqlens": torch.tensor([0.0, 5.0])}, "cu_seqlens must have an integer dtype"),
        ({"cu_seqlens": torch.tensor([0, 5]), "mask": torch.ones(5, 5).bool()}, "given without mask"),
        ({"cu_seqlens": torch.tensor([0, 5]), "query": torch.zeros(1, 1, 3, 3)}, "as many queries as keys, got query"),
    ],
)
def test_packed_sequences_that_are_refused(options, message):
    given = {name: torch.zeros(1, 1, 5, 3) for name in ("query", "key", "value")} | options
    with pytest.raises(ValueError, match=message):
        relative_attention(**given)


@pytest.mark.parametrize(("backend", "batch"), [("native", 2), ("triton", 1), ("dense", 2)])
def test_gradients_of_the_tables_are_exact_and_deterministic(backend, batch, monkeypatch):
    """As docs/arguments.md promises. Most pairs have the label of an edge, where rounding errors would add up."""
    inputs = make_inputs(Shape(batch, 2, 1, 37, 37, dim=7, value_dim=5, left=2, right=3), dtype=torch.float32)
    inputs["pos_query"] = inputs["rel_key"] * 2
    inputs["rel_bias"] = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
    budget = budgets(relative_attention, inputs, clip=(2, 3))
    assert_within_budget(relative_attention, inputs, backend, budget=budget, clip=(2, 3))
    runs = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        runs.append(outputs_and_gradients(relative_attention, inputs, clip=(2, 3), backend=backend))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pairwise(backend=backends.NAMES, is_causal=[False, True], junk=[torch.inf, torch.nan], shape=["self", "more queries"])
def test_content_of_padding_changes_nothing(backend, is_causal, junk, shape):
    sizes = replace(SHAPES[shape], heads=1, key_heads=1)
    inputs = make_inputs(sizes, rel_dim=3, dtype=torch.float32)
    if backends.BACKENDS[backend].CAPABILITIES.fields >= {"bias"}:
        inputs["bias"] = torch.randn(2, 1, sizes.queries, sizes.keys, generator=torch.Generator().manual_seed(2))
    lengths = {"query_lengths": [sizes.queries, sizes.queries // 2], "key_lengths": [sizes.keys - 1, 2]}
    options = {"clip": (sizes.left, sizes.right), "is_causal": is_causal, "query_offset": 0, "backend": backend}
    assert_padding_has_no_effect(inputs, junk, **{n: torch.tensor(x) for n, x in lengths.items()}, **options)


@pairwise(backend=backends.NAMES, beyond=["clip", "zero"], sign=[1, -1])
def test_positions_as_far_from_zero_as_is_allowed(backend, beyond, sign):
    inputs = make_inputs(replace(SHAPES["self"], heads=1, key_heads=1), dtype=widest(backend))
    options = {"clip": 4, "beyond": beyond, "backend": backend, "is_causal": sign > 0}
    want = relative_attention(**inputs, **options, query_offset=sign * 100)
    for offset in (sign * 2**62, torch.tensor([sign * 2**62, sign * 100])):
        assert_close(relative_attention(**inputs, **options, query_offset=offset), want)
    for offset in (sign * 2**62 + sign, torch.tensor([0, sign * 2**62 + sign])):
        with pytest.raises(ValueError, match=r"query_offset must .*2\^62"):
            relative_attention(**inputs, **options, query_offset=offset)


@BACKENDS
def test_integers_may_have_any_dtype(backend):
    inputs = make_inputs(replace(SHAPES["self"], heads=1, key_heads=1), dtype=widest(backend))
    lengths, offsets = torch.tensor([13, 5]), torch.tensor([0, 2])
    options = {"clip": 4, "is_causal": True, "backend": backend}
    want = relative_attention(**inputs, key_lengths=lengths, query_lengths=lengths, query_offset=offsets, **options)
    relations = torch.randint(0, 9, (2, 1, 13, 13), generator=torch.Generator().manual_seed(0))
    related = relation_attention(**inputs, relations=relations, backend=backend)
    for dtype in (torch.uint8, torch.uint16, torch.uint64, torch.int8, torch.int32):
        same = {"key_lengths": lengths.to(dtype), "query_lengths": lengths.to(dtype), "query_offset": offsets.to(dtype)}
        assert torch.equal(relative_attention(**inputs, **same, **options), want)
        assert torch.equal(relation_attention(**inputs, relations=relations.to(dtype), backend=backend), related)
    whole = relative_attention(**inputs, clip=4, backend=backend)
    for clip in (None, numpy.int64(4), (numpy.uint8(4), 4), [4, numpy.int16(4)]):  # None: from the rows of the tables
        same = relative_attention(**inputs, clip=clip, query_offset=numpy.int32(0), backend=backend)
        assert torch.equal(same, whole)
    for name, numbers in {"window": (3, 1), "chunk": (4, 1, 0)}.items():
        pair = [relative_attention(**inputs, clip=4, backend=backend, **{name: tuple(map(kind, numbers))})
                for kind in (int, numpy.int64, numpy.uint8)]  # fmt: skip
        assert torch.equal(pair[0], pair[1])
        assert torch.equal(pair[0], pair[2])


@BACKENDS
def test_numbers_may_have_any_type(backend):
    inputs = make_inputs(SHAPES["one head"], dtype=widest(backend))
    inputs["rel_bias"] = torch.linspace(-1.0, 1.0, 6, dtype=widest(backend))

    def attend(scale, dropout_p):
        torch.manual_seed(0)
        return relative_attention(**inputs, clip=(2, 3), scale=scale, dropout_p=dropout_p, backend=backend)

    for kind in (numpy.float16, numpy.float32, numpy.float64, Fraction):
        for dropout_p in (0.0, 0.5):
            want = attend(0.25, dropout_p)
            for _ in range(2):
                assert torch.equal(attend(kind(0.25), kind(dropout_p)), want)


@FAST
def test_the_default_device_changes_nothing(backend):
    x, table, bias = torch.randn(1, 2, 9, 4), torch.randn(5, 4), torch.randn(5)
    relations = torch.randint(-1, 5, (1, 1, 9, 9))
    calls = {
        "packed": {"cu_seqlens": torch.tensor([0, 3, 3, 9]), "is_causal": True},
        "window": {"window": (2, 1), "lengths": torch.tensor([7])},
        "chunk": {"chunk": (2, 1), "query_offset": torch.tensor([3])},
        "dropout": {"dropout_p": 0.5, "rel_bias": bias},
    }

    def attend(name):
        torch.manual_seed(0)
        leaf = x.clone().requires_grad_()
        if name == "relations":
            output = relation_attention(leaf, x, leaf, relations, table, table, rel_bias=bias, backend=backend)
        else:
            output = relative_attention(leaf, x, leaf, table, table, **calls[name], backend=backend)
        return output, *torch.autograd.grad(output.square().sum(), leaf)

    for name in (*calls, "relations"):
        want = attend(name)
        for _ in range(2):
            with torch.device("meta"):
                results = attend(name)
            assert all(map(torch.equal, results, want))


@BACKENDS
def test_autograd(backend):
    """The output may be changed in place; the log-sum-exp has no gradient; without a gradient of the output, none."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    inputs = make_inputs(SHAPES["one head"], dtype=torch.float32)
    leaves = [x.requires_grad_() for x in inputs.values()]
    output, lse = relative_attention(**inputs, clip=(2, 3), return_lse=True, backend=backend)
    assert output.requires_grad
    assert not lse.requires_grad
    assert torch.autograd.grad(Stop.apply(output).sum(), leaves, allow_unused=True) == (None,) * 5
    want = output.detach() + 1.0
    assert torch.equal(output.add_(1.0), want)  # autograd would refuse this for a view that a function returns


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of PyTorch, in its forward mode
@BACKENDS
def test_derivatives(backend):
    """Those of autograd apart, only the reference has them."""
    query, key, rel_key = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4), torch.randn(3, 4)
    lengths = torch.tensor([[5], [3]])

    def summed(x, n=None):
        return relative_attention(x, key, key, rel_key, key_lengths=n, backend=backend).square().sum()

    def second():
        leaf = query.clone().requires_grad_()
        (first,) = torch.autograd.grad(summed(leaf), leaf, create_graph=True)
        return torch.autograd.grad(first.sum(), leaf)[0]

    def outputs(x):
        return relative_attention(x, key, key, rel_key, backend=backend)

    leaf = query.clone().requires_grad_()
    output = outputs(leaf)  # whose backward pass alone is transformed

    def gradient(grad, **options):
        return torch.autograd.grad(output, leaf, grad, retain_graph=True, **options)[0]

    @torch.autograd.forward_ad.dual_level()
    def dual_gradient():
        return gradient(torch.autograd.forward_ad.make_dual(query, query))

    @torch.autograd.forward_ad.dual_level()
    def dual():
        return summed(torch.autograd.forward_ad.make_dual(query, query))

    others = [
        dual,
        second,
        lambda: torch.func.grad(summed)(query),
        lambda: torch.func.vmap(summed, (None, 0))(query, lengths),
        lambda: torch.func.grad(lambda x: torch.func.grad(summed)(x).sum())(query),
        lambda: torch.func.jvp(summed, (query,), (query,))[-1],
        lambda: torch.func.hessian(summed)(query),
        lambda: torch.autograd.functional.jacobian(outputs, query, vectorize=True),
        lambda: torch.autograd.functional.jacobian(outputs, query, vectorize=True, create_graph=True),
        lambda: gradient(torch.randn(3, 1, 1, 5, 4), is_grads_batched=True),
        lambda: torch.func.vmap(gradient)(torch.randn(3, 1, 1, 5, 4)),
        dual_gradient,
    ]
    refused = pytest.raises(NotImplementedError, match=rf"'reference'.*{backend}")
    for derivative in others:
        with nullcontext() if backend == "reference" else refused:
            assert derivative().isfinite().all()


def test_meta_tensors():
    query = torch.empty(2, 3, 5, 4, device="meta", requires_grad=True)
    table = torch.empty(5, 4, device="meta", requires_grad=True)
    options = {"is_causal": True, "key_lengths": torch.empty(2, dtype=torch.int64, device="meta"), "dropout_p": 0.1}
    output = relative_attention(query, query, query, table, table, **options)
    assert output.is_meta
    assert torch.autograd.grad(output.sum(), table)[0].shape == (5, 4)
    layer = RelativeSelfAttention(8, 2, 3, device="meta")
    assert layer(torch.empty(2, 5, 8, device="meta")).shape == (2, 5, 8)


@pairwise(
    backend=["native", "dense"], name=["rel_key", "rel_value", "pos_query"], labels=["far", "padding", "relations"]
)
def test_rows_of_tables_that_no_pair_takes_may_be_nan(backend, name, labels):
    inputs = make_inputs(Shape(2, 2, 1, 6, 6, dim=3, value_dim=3, left=7, right=7), dtype=torch.float32, rel_dim=3)
    inputs["pos_query"] = inputs["rel_key"].clone()
    relations = torch.arange(36).view(1, 1, 6, 6) % 3 + 5  # labels 5, 6 and 7
    row, operator, options = {
        "far": (0, relative_attention, {"clip": 7}),
        "padding": (11, relative_attention, {"clip": 7, "lengths": torch.tensor([4, 2])}),
        "relations": (8, relation_attention, {"relations": relations}),
    }[labels]
    want = outputs_and_gradients(operator, inputs, backend=backend, **options)
    inputs[name][row] = torch.nan
    for _ in range(2):
        assert_close(outputs_and_gradients(operator, inputs, backend=backend, **options), want)
        with torch.no_grad():  # with a plan
            output = operator(**inputs, backend=backend, **options)
        torch.testing.assert_close(output, want["output"])
    inputs[name][7] = torch.nan  # the pairs (i, i) take it
    with torch.no_grad():
        assert operator(**inputs, backend=backend, **options).isnan().any()


@BACKENDS
def test_autocast(backend):
    inputs = make_inputs(SHAPES["one head"], dtype=torch.float32)
    inputs["rel_bias"] = torch.linspace(-1.0, 1.0, 6)
    if backends.BACKENDS[backend].CAPABILITIES.fields >= {"bias"}:
        inputs["bias"] = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    options = {"clip": (2, 3), "backend": backend}
    with torch.autocast("cpu", torch.bfloat16):
        output, lse = relative_attention(**inputs, **options, return_lse=True)
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    low = {name: x.bfloat16() for name, x in inputs.items()}
    assert torch.equal(output, relative_attention(**low, **options))


@pytest.mark.parametrize(("backend", "n"), [("native", 70), ("dense", 23), ("triton", 13), ("reference", 13)])
def test_dropout_equals_the_formula_for_the_pairs_it_keeps(backend, n):
    """Backward drops the same pairs, for values and aV alike; the log-sum-exp is of all pairs."""
    exact = make_inputs(Shape(2, 3, 3, n, n, dim=5, value_dim=19, left=3, right=3))
    inputs = {name: x.float() for name, x in exact.items()}
    options = {"clip": 3, "dropout_p": 0.4, "backend": backend}

    def attend(seed=5, **arguments):
        torch.manual_seed(seed)
        return relative_attention(**arguments, **options)

    kept = kept_pairs(attend, inputs)
    deviation = (0.4 * 0.6 / kept.numel()) ** 0.5
    assert abs(float(kept.double().mean()) - 0.6) < 5 * deviation
    want = outputs_and_gradients(lambda return_lse, **x: equations_keeping(kept, **x, **options), exact)
    got = outputs_and_gradients(attend, inputs)
    largest = max(float(x.abs().max()) for x in want.values())
    assert_close(got, {name: x.to(got[name]) for name, x in want.items()}, ulps=8 * largest)

    # each row, head, sequence and call draws its own pairs: agreements of two of them are within 7 deviations of chance
    rows = torch.cat([kept.flatten(0, 2), kept_pairs(lambda **x: attend(seed=6, **x), inputs).flatten(0, 2)])
    centered = (rows.double() - 0.6) / 0.24**0.5
    agreement = (centered @ centered.mT / n - torch.eye(len(rows))).fill_diagonal_(0.0).abs()
    assert agreement.max() < 7 / n**0.5
    assert not relative_attention(**inputs, **{**options, "dropout_p": 1.0}).any()


@TRACES
@pytest.mark.parametrize("backend", ["native", "dense", "triton"])
def test_compiles_as_one_graph(backend):
    """With all options; with relations; with one tensor for all, with and without gradients."""
    inputs = make_inputs(SHAPES["one head"], dtype=widest(backend), rel_dim=3)
    inputs["rel_bias"] = torch.linspace(-1.0, 1.0, 6, dtype=widest(backend))
    if backend == "dense":
        inputs["bias"] = torch.randn(3, 1, 1, 7, dtype=widest(backend))
    x, table = torch.randn(2, 1, 7, 5), torch.randn(5, 5)
    options = {"lengths": torch.tensor([7, 4, 0]), "mask": torch.rand(7, 7) < 0.7, "is_causal": True, "clip": (2, 3)}
    relations = torch.randint(-1, 6, (3, 1, 7, 7))

    def with_options(return_lse, **tensors):
        return relative_attention(**tensors, **options, backend=backend, return_lse=True)

    def with_relations(return_lse, **tensors):
        return relation_attention(**tensors, relations=relations, backend=backend, return_lse=True)

    def shared(x, table, return_lse=True):
        return relative_attention(x, x, x, table, table, backend=backend, return_lse=True)

    calls = [(with_options, inputs)]
    if backend == "native":  # the rest is common to all
        calls += [(with_relations, inputs), (shared, {"x": x, "table": table})]
        compiled = torch.compile(shared, fullgraph=True, backend="aot_eager")
        assert_close(compiled(x, table)[0], shared(x, table)[0])
    for attend, given in calls:
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager" if backend == "native" else "eager")
        got = outputs_and_gradients(compiled, given)
        assert_close(got, outputs_and_gradients(attend, given))


FIRST_COMPILED = """
import sys

import torch
from relattn import RelativeMultiheadAttention, relative_attention

x, table = torch.randn(1, 2, 5, 4, requires_grad=True), torch.randn(5, 4)
layer = RelativeMultiheadAttention(4, 2, clip=2, batch_first=True)
calls = {
    "operator": lambda x: relative_attention(x, x, x, table, table, is_causal=True, backend=sys.argv[2]),
    "layer": lambda x: layer(*[x[:, 0]] * 3, need_weights=False)[0],
}
call = calls[sys.argv[1]]
torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(x), call(x))
"""


@pytest.mark.parametrize(("call", "backend"), [("operator", "auto"), ("operator", "dense"), ("layer", "auto")])
def test_the_first_call_of_a_process_compiles_as_one_graph(call, backend):
    subprocess.run([sys.executable, "-c", FIRST_COMPILED, call, backend], check=True)


class Attend(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, rel_key, rel_value, integers):
        biases = {"rel_bias": rel_key[:, 0], "bias": key[:, :, None, :, 0]}
        if integers.dim() == 4:
            return relation_attention(query, key, value, integers, rel_key, rel_value, **biases, **self.options)
        options = {"lengths": integers, "rel_query": value[..., :2], **self.options}
        return relative_attention(query, key, value, rel_key[:, :2], rel_value, **options)


@TRACES
@pytest.mark.parametrize(("strict", "related"), [(False, True), (True, False)])
def test_exports_with_any_batch_and_length(strict, related):
    options = {"is_causal": True} | ({} if related else {"clip": 4, "beyond": "zero"})

    def arguments(batch, n):
        generator = torch.Generator().manual_seed(n)
        floats = [torch.randn(batch, 3, n, 5, generator=generator) for _ in range(3)]
        tables = [torch.randn(9, 5, generator=torch.Generator().manual_seed(side)) for side in range(2)]
        sizes = (batch, 1, n, n) if related else (batch,)
        return (*floats, *tables, torch.randint(-1 if related else 0, min(n, 9), sizes, generator=generator))

    batch, n = Dim("batch"), Dim("n")
    dims = {0: batch, 2: n}
    shapes = (dims, dims, dims, None, None, {**dims, 3: n} if related else {0: batch})
    program = export(Attend(**options), arguments(2, 7), dynamic_shapes=shapes, strict=strict).module()
    for sizes in ((2, 7), (3, 40), (5, 2), (2, 3)):
        assert_close(program(*arguments(*sizes)), Attend(**options)(*arguments(*sizes)), ulps=20)
    backend = "native" if strict else "triton"
    with pytest.raises(Exception, match=f"{backend} does not support.*torch.export"):
        export(Attend(**options, backend=backend), arguments(2, 7))


def test_choice_of_backends(capsys):
    for device, first in (("cpu", "native"), ("meta", "native")):
        query = torch.empty(1, 1, 1, 1, device=device)
        assert backends.order(SimpleNamespace(query=query))[0] == first
    with pytest.raises(ValueError, match="got 'fast'"):
        backends.unsupported_reason("fast", None)
    runpy.run_module("relattn.backends", run_name="__main__")
    printed = capsys.readouterr().out
    assert all(f"{name}: {module.CAPABILITIES} (" in printed for name, module in backends.BACKENDS.items())


def zeros(*sizes, dtype=torch.float32, **options):
    return torch.zeros(sizes, dtype=dtype, **options)


def integers(*values):
    return torch.tensor(values)


GOOD = {"query": zeros(2, 4, 5, 3), "key": zeros(2, 2, 5, 3), "value": zeros(2, 2, 5, 7), "clip": 2}
GOOD_RELATIONS = {**GOOD, "relations": integers(0).expand(1, 1, 5, 5), "rel_key": zeros(5, 3), "rel_value": zeros(5, 7)}
del GOOD_RELATIONS["clip"]
REFUSED = [  # what is changed, and which facts the message has
    ({"query": zeros(2, 4, 5)}, r"query.*\(2, 4, 5\)"),
    ({"key": zeros(3, 2, 5, 3)}, r"batch.*\(3, 2, 5, 3\)"),
    ({"value": zeros(2, 2, 6, 7)}, r"length.*\(2, 2, 6, 7\)"),
    ({"query": zeros(2, 3, 5, 3)}, r"multiple.*\(2, 3, 5, 3\)"),
    ({"key": zeros(2, 0, 5, 3), "value": zeros(2, 0, 5, 7)}, r"multiple.*key \(2, 0, 5, 3\)"),
    ({"key": zeros(2, 2, 5, 4)}, r"dim.*key \(2, 2, 5, 4\)"),
    ({"value": zeros(2, 2, 5, 0)}, r"dim.*value \(2, 2, 5, 0\)"),
    ({"key": zeros(2, 2, 5, 3, device="meta")}, "device.*key on meta"),
    ({"clip": -1}, "clip.*-1"),
    ({"clip": (1, 2, 3)}, r"clip.*\(1, 2, 3\)"),
    ({"clip": None, "rel_key": zeros(8, 3)}, r"clip.*\(left, right\).*8 rows"),
    ({"beyond": "wrap"}, "beyond.*'wrap'"),
    ({"rel_key": zeros(4, 3)}, r"rel_key.*5 rows.*clip=2.*4 rows.*\(4, 3\)"),
    ({"rel_key": zeros(5, 3), "rel_value": zeros(7, 7), "clip": None}, "rel_value.*5 rows.*7 rows"),
    ({"rel_key": zeros(5), "clip": None}, r"rel_key.*\(5,\)"),
    ({"rel_key": zeros(0, 3)}, r"rel_key.*\(0, 3\)"),
    ({"rel_key": zeros(5, 1)}, r"rel_key.*\(labels, 3\).*\(5, 1\).*rel_query"),
    ({"rel_value": zeros(2, 5, 7)}, r"rel_value.*\(4, labels, 7\).*\(2, 5, 7\)"),
    ({"rel_key": zeros(5, 3), "rel_query": zeros(2, 4, 5, 2)}, r"rel_key.*\(labels, 2\).*\(5, 3\)"),
    ({"rel_key": zeros(5, 1), "rel_query": zeros(1, 1, 1, 1)}, r"rel_query.*\(2, 4, 5, rel_dim\).*\(1, 1, 1, 1\)"),
    ({"rel_key": zeros(5, 0), "rel_query": zeros(2, 4, 5, 0)}, r"rel_query.*\(2, 4, 5, 0\)"),
    ({"rel_value": zeros(5, 7), "rel_query": zeros(2, 4, 5, 3)}, r"rel_query.*rel_key.*\(2, 4, 5, 3\)"),
    ({"rel_key": zeros(5, 3, dtype=torch.float64)}, "float32.*rel_key float64"),
    ({"key_lengths": integers(5)}, r"key_lengths.*\(2,\).*\(1,\)"),
    ({"query_lengths": integers(-1, 5)}, r"query_lengths.*\[0, 5\].*from -1 to 5"),
    ({"key_lengths": integers(5.0, 4.0)}, "key_lengths.*integer.*float32"),
    ({"lengths": integers(5, 6)}, r"lengths.*\[0, 5\].*from 5 to 6"),
    ({"lengths": integers(5, 4), "key_lengths": integers(5, 4)}, "lengths.*key_lengths"),
    ({"query": zeros(2, 4, 3, 3), "lengths": integers(3, 3)}, "lengths.*3 queries and 5 keys"),
    ({"query": zeros(2, 4, 3, 3), "key_lengths": integers(5, 4), "is_causal": True}, "query_offset.*key_lengths"),
    ({"query_offset": integers(1, 2, 3)}, r"query_offset.*\(2,\).*\(3,\)"),
    ({"query_offset": 1.5}, "query_offset.*1.5"),
    ({"mask": zeros(5, 5)}, "mask.*bool.*float32"),
    ({"bias": zeros(3, 1, 5, 5)}, r"bias.*\(2, 4, 5, 5\).*\(3, 1, 5, 5\)"),
    ({"bias": zeros(5, 5, dtype=torch.bool)}, "floating.*bias bool"),
    ({"rel_bias": zeros(5, 1)}, r"rel_bias.*\(labels,\).*\(4, labels\).*\(5, 1\)"),
    ({"rel_bias": zeros(4)}, "rel_bias.*5 rows.*clip=2.*4 rows"),
    ({"rel_bias": zeros(5), "scale": 0.0}, "scale must not be 0 with rel_bias.*0.0"),
    ({"mask": zeros(3, 1, 5, 5, dtype=torch.bool)}, r"mask.*\(2, 4, 5, 5\).*\(3, 1, 5, 5\)"),
    ({"scale": torch.tensor(0.5)}, r"scale.*tensor\(0.5000\).*item"),
    ({"scale": math.nan}, "scale must be finite.*nan"),
    ({"scale": math.inf}, "scale must be finite.*inf"),
    ({"scale": 2**2000}, "scale must be finite"),
    ({"scale": True}, "scale must be a number.*True"),
    ({"is_causal": "no"}, "is_causal must be True or False.*'no'"),
    ({"is_causal": torch.tensor([True, False])}, r"is_causal must be True or False.*\(2,\)"),
    ({"dropout_p": 1.5}, "dropout_p.*1.5"),
    ({"dropout_p": 2**2000}, "dropout_p"),
    ({"dropout_p": numpy.float32(1.5)}, "dropout_p.*1.5"),
    ({"scale": numpy.float32(math.nan)}, "scale must be finite.*nan"),
    ({"dropout_p": math.nan}, "dropout_p.*nan"),
    ({"backend": "fast"}, f"backend.*{', '.join(backends.NAMES)}.*'auto'.*'fast'"),
    ({"backend": ["native"]}, r"backend.*\['native'\]"),
    ({"relations": integers(5).expand(1, 1, 5, 5)}, r"relations.*\[-1, 5\).*from 5 to 5"),
    ({"relations": zeros(1, 1, 5, 5)}, "relations.*integer.*float32"),
    ({"relations": integers(0).expand(3, 1, 5, 5)}, r"relations.*\(2 or 1, 4 or 1, 5, 5\).*\(3, 1, 5, 5\)"),
    ({"relations": GOOD_RELATIONS["relations"], "rel_value": zeros(4, 7)}, "rel_value.*5 rows.*4 rows"),
]
NOT_TENSORS = [
    ({"rel_key": RelativePositionTable(2, 3)}, "rel_key.*RelativePositionTable.*weight"),
    ({"query": numpy.zeros((2, 4, 5, 3))}, "query.*ndarray"),
    ({"query": None}, "query.*None"),
    ({"query": torch.nested.nested_tensor([zeros(4, 5, 3)] * 2, layout=torch.jagged)}, "query.*nested"),
    ({"mask": torch.ones(5, 5, dtype=torch.bool).to_sparse()}, "mask must be a dense tensor.*sparse_coo"),
    ({"relations": None}, "relations.*None"),
]


@pytest.mark.parametrize(
    ("change", "facts", "error"), [(*row, ValueError) for row in REFUSED] + [(*row, TypeError) for row in NOT_TENSORS]
)
def test_bad_arguments_are_refused_by_name(change, facts, error):
    operator, good = (relation_attention, GOOD_RELATIONS) if "relations" in change else (relative_attention, GOOD)
    with pytest.raises(error, match=facts) as raised:
        operator(**{**good, **change})
    assert "\n" not in str(raised.value)
