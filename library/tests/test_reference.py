"""The reference against loops over Python numbers, and its gradients against finite differences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn import relative_attention
from relattn.call import Call

from tests.support import brute_force
from tests.support.numerics import Shape, make_inputs

HEADS, KEY_HEADS, DIM, VALUE_DIM = 4, 2, 3, 2


@settings(max_examples=60)
@given(data=st.data(), clip=st.tuples(st.integers(0, 3), st.integers(0, 3) | st.just(9)), is_causal=st.booleans())
def test_small_calls_equal_loops(data, clip, is_causal):
    """With positions before the first key and after the last; rows of the tables that no pair reaches are cut off."""
    queries, keys = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    shape = Shape(2, HEADS, KEY_HEADS, queries, keys, DIM, VALUE_DIM, *clip)
    inputs = make_inputs(shape, rel_dim=data.draw(st.sampled_from([None, 4])))
    inputs["pos_query"] = torch.randn(shape.labels, DIM, dtype=torch.float64)
    scale = data.draw(st.sampled_from([0.5, 0.0]))
    if scale > 0:
        inputs["rel_bias"] = torch.randn(shape.labels, dtype=torch.float64)
    starts, key_lengths, query_lengths = (
        torch.tensor(data.draw(st.lists(st.integers(*limits), min_size=2, max_size=2)))
        for limits in ((-4, 6), (0, keys), (0, queries))
    )
    side = st.none() | st.integers(0, 4)
    window = data.draw(st.none() | st.tuples(side, side))
    chunks = st.tuples(st.integers(1, 3), side) | st.tuples(st.integers(1, 3), side, side)
    options = {
        "clip": clip, "beyond": data.draw(st.sampled_from(["clip", "zero"])), "is_causal": is_causal, "window": window,
        "chunk": data.draw(st.none() | chunks) if window is None else None,
        "query_offset": starts, "key_lengths": key_lengths, "query_lengths": query_lengths,
    }  # fmt: skip
    got, lse = relative_attention(**inputs, **options, scale=scale, backend="reference", return_lse=True)
    z, log_sum = brute_force.attention(**inputs, **options, scale=scale)
    torch.testing.assert_close(got, z, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, log_sum, rtol=1e-13, atol=1e-13)

    names = ("rel_query", "rel_bias", "relations", "check", "lengths", "mask", "bias")
    call = Call.from_arguments(**dict.fromkeys(names) | options | {"dropout_p": 0.0, "scale": None} | inputs)
    assert call.rel_key.shape[0] == call.rel_value.shape[0] == call.left + call.right + 1
    assert call.left <= max(0, queries - 1 + int(starts.max()))
    assert call.right <= (0 if is_causal else max(0, keys - 1 - int(starts.min())))


@pytest.mark.parametrize("per_head", [False, True])
def test_gradients_equal_finite_differences(per_head):
    shape = Shape(2, 2, 1, 3, 5, DIM, VALUE_DIM, left=1, right=2)
    made = make_inputs(shape, per_head=per_head, rel_dim=2 if per_head else None)
    made["rel_bias"] = torch.randn(*((2,) if per_head else ()), 4, dtype=torch.float64)
    made["bias"] = torch.randn(2, 1, 3, 5, dtype=torch.float64)
    inputs = {name: x.requires_grad_() for name, x in made.items()}
    options = {"is_causal": True, "key_lengths": torch.tensor([5, 3]), "query_offset": torch.tensor([2, 0])}

    def attend(*tensors):
        named = dict(zip(inputs, tensors, strict=True))
        return relative_attention(**named, clip=(1, 2), **options, backend="reference")

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))
