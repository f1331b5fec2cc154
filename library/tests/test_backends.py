"""Every backend against the reference: outputs, log-sum-exps and all gradients, within the tolerance of the dtype."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from relattn import backends, relative_attention
from relattn.call import Call

from tests.support.calls import Case, call_of, cases, name_of
from tests.support.covering import pairwise
from tests.support.numerics import (
    SHAPES,
    Shape,
    assert_close,
    assert_within_budget,
    budgets,
    cotangent_of,
    make_inputs,
    nan_in_new_memory,
    outputs_and_gradients,
    widest,
)


def assert_backends_equal_the_reference(case: Case, shape: Shape, dtype: torch.dtype, *names: str) -> None:
    operator, inputs, options = call_of(case, shape, dtype)
    budget = budgets(operator, inputs, **options)
    with nan_in_new_memory():
        for backend in names:
            assert_within_budget(operator, inputs, backend, budget=budget, **options)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
POS_QUERY = {"has_pos_query": [False, True]}
COVERED = [(torch.float64, case) for case in cases(3, **POS_QUERY)]
COVERED += [(dtype, case) for dtype in DTYPES[:2] for case in cases(2, shape=list(SHAPES), **POS_QUERY)]
COVERED += [(dtype, case) for dtype in (torch.bfloat16, torch.float16) for case in cases(2, seed=3, **POS_QUERY)]


@pytest.mark.parametrize(
    ("dtype", "case"), COVERED, ids=lambda value: name_of(value) if isinstance(value, dict) else None
)
def test_native_and_dense_equal_the_reference(dtype, case):
    """Some queries have nothing to attend to: they get zeros, a log-sum-exp of −∞, and pass no gradient."""
    assert_backends_equal_the_reference(case, SHAPES[case["shape"]], dtype, "native", "dense")


@pytest.mark.parametrize(
    "case", cases(2, seed=5, rel_bias=[True, False], bias=[True, False], dtype=DTYPES), ids=name_of
)
def test_biases_equal_the_reference(case):
    """Some biases are −inf: these pairs are hidden, and get no gradient."""
    assert_backends_equal_the_reference(case, SHAPES[case["shape"]], case["dtype"], "native", "dense")


@pytest.mark.parametrize("backend", ["native", "dense", "triton"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{"scale": 0.0}, {"dropout_p": 1.0}], ids=str)
def test_factors_of_zero(backend, dtype, options):
    """Products that are multiplied by zero are written, too."""
    if backend == "triton" and dtype == torch.float64:
        return  # refused
    inputs = make_inputs(Shape(1, 1, 1, 64, 64, dim=32, value_dim=32, left=3, right=3), dtype=dtype)
    budget = budgets(relative_attention, inputs, clip=3, **options)
    with nan_in_new_memory():
        assert_within_budget(relative_attention, inputs, backend, budget=budget, clip=3, **options)


FOR_TRITON = {"shape": ["one query", "more queries", "clip past the ends"], "rel_bias": [False, True], **POS_QUERY}


@pytest.mark.parametrize("case", cases(1, seed=7, **FOR_TRITON), ids=name_of)
def test_triton_equals_the_reference(case):
    """In the interpreter, which takes time for every sequence and head: shapes that `test_triton.py` does not have."""
    shape = SHAPES[case["shape"]]
    key_heads, group = min(shape.key_heads, 2), min(shape.heads // shape.key_heads, 2)
    shape = replace(shape, batch=2, heads=group * key_heads, key_heads=key_heads)
    assert_backends_equal_the_reference(case, shape, torch.float32, "triton")


@settings(max_examples=30)
@given(
    queries=st.integers(1, 8),
    keys=st.integers(1, 8),
    offset=st.integers(-4, 11) | st.sampled_from([-(10**9), 10**9]),
    clip=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    beyond=st.sampled_from(["clip", "zero"]),
    is_causal=st.booleans(),
)
@example(queries=5, keys=7, offset=-1, clip=(2, 3), beyond="clip", is_causal=True)  # query 0 sees no key
@example(queries=5, keys=7, offset=1, clip=(4, 4), beyond="clip", is_causal=False)  # one pair beyond each side
def test_any_sizes_and_positions_equal_the_reference(queries, keys, offset, clip, **options):
    """`dense` adds terms to diagonals of pairs by strided views, where a term could land in another query's row."""
    shape = Shape(2, 2, 1, queries, keys, dim=3, value_dim=5, left=clip[0], right=clip[1])
    inputs = make_inputs(shape)
    options |= {"query_offset": offset, "clip": clip}
    budget = budgets(relative_attention, inputs, **options)
    for backend in ("native", "dense"):
        assert_within_budget(relative_attention, inputs, backend, budget=budget, **options)


SIZES = [(0, 0, 2), (0, 3, 2), (3, 0, 2), (5, 5, 0), (1, 1, 2)]  # (queries, keys, batch)


@pairwise(backend=["native", "dense", "triton"], sizes=SIZES, is_causal=[0, 1], lengths=[0, 1], ragged=[0, 1])
def test_dimensions_of_size_zero_and_one(backend, sizes, is_causal, lengths, ragged):
    queries, keys, batch = sizes
    shape = Shape(batch, 2, 1, queries, keys, dim=3, value_dim=5, left=2, right=1)
    inputs = make_inputs(shape, dtype=widest(backend))
    options = {"clip": (2, 1), "is_causal": bool(is_causal), "query_offset": torch.zeros(batch).long() if ragged else 0}
    options["key_lengths"] = torch.full((batch,), keys) if lengths else None
    got, want = (
        outputs_and_gradients(relative_attention, inputs, backend=name, **options) for name in (backend, "reference")
    )
    assert_close(got, want)
    if keys == 0:
        assert not got["output"].any()
        assert got["lse"].isneginf().all()


@pytest.mark.parametrize("backend", ["native", "dense", "triton"])
def test_strides_change_nothing(backend):
    inputs = make_inputs(
        Shape(2, 2, 1, 5, 7, dim=3, value_dim=11, left=2, right=1), per_head=True, dtype=widest(backend)
    )
    options = {"clip": (2, 1), "query_offset": torch.tensor([-1, 1]), "backend": backend}
    want = outputs_and_gradients(relative_attention, inputs, **options)
    strided = {
        name: x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1) if x.dim() == 4 else x.mT.contiguous().mT
        for name, x in inputs.items()
    }
    assert_close(outputs_and_gradients(relative_attention, strided, **options), want)
    gaps = {name: torch.cat([x, x], dim=-1)[..., : x.shape[-1]] for name, x in inputs.items()}
    assert_close(outputs_and_gradients(relative_attention, gaps, **options), want)


@pytest.mark.parametrize("backend", ["native", "dense"])
def test_gradient_of_one_input_alone(backend):
    inputs = make_inputs(Shape(1, 2, 1, 5, 5, dim=3, value_dim=2, left=1, right=0), rel_dim=7, dtype=widest(backend))
    want = outputs_and_gradients(relative_attention, inputs, clip=(1, 0), backend=backend)
    for name, x in inputs.items():
        leaf = x.detach().requires_grad_()
        output = relative_attention(**{**inputs, name: leaf}, clip=(1, 0), backend=backend)
        (gradient,) = torch.autograd.grad(output, leaf, cotangent_of(output).to(output))
        assert_close(gradient, want[f"d {name}"])


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize(
    ("field", "value"), [("mask", torch.ones(1, 1, 2, 2, dtype=torch.bool)), ("window_left", 0), ("clips", False)]
)
def test_a_field_that_a_backend_does_not_know_is_refused(backend, field, value):
    """As if an option were added to `Call`, and not to the backend."""
    known = replace(backends.BACKENDS[backend].CAPABILITIES, devices=(), unavailable_reason=lambda call: None)
    query = torch.zeros(1, 1, 2, 3)
    plain, call = Call(query, query, query), Call(query, query, query, **{field: value})
    unknown = replace(known, fields=known.fields - {field})
    assert unknown.refusal_reason(call) == f"{field} is not supported"
    assert {known.refusal_reason(call), known.refusal_reason(plain), unknown.refusal_reason(plain)} == {None}


def test_the_reference_knows_every_field():
    assert backends.BACKENDS["reference"].CAPABILITIES.fields == set(Call._fields)
