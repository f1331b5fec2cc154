"""Sliding windows and chunks. The grids of the backends' tests combine them with all other options."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn import relative_attention
from relattn.call import Call
from relattn.nn import RelativeSelfAttention

from tests.support.numerics import Shape, assert_within_budget, budgets, make_inputs

SIDES = st.sampled_from([None, 0, 1, 3, 63, 64, 65, 130])


@settings(max_examples=40)
@given(
    queries=st.sampled_from([1, 3, 64, 67, 131, 600]),
    keys=st.sampled_from([1, 63, 65, 193, 600]),
    offset=st.integers(-70, 600),
    clip=st.sampled_from([(0, 0), (2, 5), (70, 64)]),
    limits=st.tuples(SIDES, SIDES).map(lambda window: {"window": window})
    | st.tuples(st.sampled_from([1, 5, 64, 70]), *[st.sampled_from([None, 0, 1, 3])] * 2).map(
        lambda chunk: {"chunk": chunk}
    ),
    is_causal=st.booleans(),
)
def test_windows_around_the_ends_of_tiles_equal_the_reference(queries, keys, offset, clip, limits, is_causal):
    """`native` loads the keys and labels of 512 queries' windows at a time, and multiplies tiles of 64 keys."""
    shape = Shape(1, 2, 1, queries, keys, dim=3, value_dim=5, left=clip[0], right=clip[1])
    inputs, options = make_inputs(shape), {"query_offset": offset, "clip": clip, "is_causal": is_causal, **limits}
    budget = budgets(relative_attention, inputs, **options)
    assert_within_budget(relative_attention, inputs, "native", budget=budget, **options)


def call_of(queries, keys, labels, **options):
    q, k, v = torch.zeros(1, 1, queries, 2), torch.zeros(1, 1, keys, 2), torch.zeros(1, 1, keys, 2)
    names = ("rel_query", "pos_query", "rel_bias", "relations", "check", "query_offset", "window", "chunk", "lengths")
    defaults = dict.fromkeys((*names, "mask", "scale", "bias", "key_lengths", "query_lengths", "clip"))
    defaults |= {"beyond": "clip", "is_causal": False, "dropout_p": 0.0}
    return Call.from_arguments(q, k, v, torch.zeros(labels, 2), None, **defaults | options)


@pytest.mark.parametrize(
    ("options", "left", "right"),
    [
        ({"window": (8, 8)}, None, None),  # as wide as the sequence
        ({"window": (7, 3)}, 7, 3),
        ({"window": (None, 3)}, None, 3),
        ({"window": (3, 5), "is_causal": True}, 3, None),
        ({"chunk": (3, 2)}, 6, 2),
        ({"chunk": (9, 0)}, 0, 8),
        ({"chunk": (3, 0, 3)}, 0, None),
        ({"chunk": (3, 0, None)}, 0, None),
        ({"chunk": (3, None), "is_causal": True}, None, None),
    ],
)
def test_a_window_that_hides_nothing_is_no_window(options, left, right):
    call = call_of(9, 9, 1, **options)
    assert (call.window_left, call.window_right) == (left, right)


def test_labels_that_a_window_does_not_reach_are_cut_off():
    call = call_of(90, 90, 81, window=(3, 7))
    assert (call.left, call.right, call.rel_key.shape[0], call.clips) == (3, 7, 11, False)
    for clip in ((5, 1), (1, 5)):  # pairs that attend are beyond one edge
        assert call_of(90, 90, 7, clip=clip, window=(4, 4)).clips


ROUNDING = {"rtol": 1e-6, "atol": 1e-6}  # of float32, for outputs of up to 5
STREAMS = {
    "token by token": ({"is_causal": True, "window": (5, 0)}, [1] * 61),
    "pieces": ({"is_causal": True, "window": (5, 3)}, [3, 1, 7, 2, 6, 1] * 3),
    "pieces of chunks": ({"is_causal": True, "chunk": (4, 1)}, [3, 1, 7, 2, 6, 1] * 3),
    "chunks": ({"chunk": (4, 2)}, [4, 8, 4, 4, 8, 4, 4, 4, 8, 3]),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_equals_the_whole_sequence_in_constant_memory(stream):
    options, steps = STREAMS[stream]
    layer, x = RelativeSelfAttention(6, 2, clip=3, **options), torch.randn(2, sum(steps), 6)
    outputs, cache = [], layer.empty_cache(2)
    with torch.inference_mode():
        for part in x.split(steps, dim=1):
            output, cache = layer(part, cache=cache)
            outputs.append(output)
        whole = layer(x)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, **ROUNDING)
    assert cache.dropped + cache.length == sum(steps)
    positions = cache.buffers[0].untyped_storage().nbytes() // (2 * 6 * 4)
    assert positions <= 2 * (layer.window_left + layer.chunk_size + max(steps))


def test_streams_of_different_lengths_continue_at_their_own_end():
    layer, x = RelativeSelfAttention(6, 2, clip=3, is_causal=True, window=(4, 0)), torch.randn(2, 40, 6)
    starts, rows = torch.tensor([10, 6]), torch.arange(2)
    with torch.inference_mode():
        whole = layer(x)
        _, cache = layer(x[:, :10], starts, layer.empty_cache(2))
        for step in range(20):
            output, cache = layer(x[rows, starts + step][:, None], cache=cache)
            torch.testing.assert_close(output[:, 0], whole[rows, starts + step], **ROUNDING)
        ends = starts + 20 + torch.tensor([3, 1])  # lengths count the positions that were dropped
        output, cache = layer(torch.stack([x[0, 30:33], x[1, 26:29]]), ends, cache)
    torch.testing.assert_close(output[0], whole[0, 30:33], **ROUNDING)
    torch.testing.assert_close(output[1, 0], whole[1, 26], **ROUNDING)
    assert (cache.dropped, cache.length) == (23, 10)


@pytest.mark.parametrize("limits", [{"window": (5, 0)}, {"chunk": (4, 1)}, {}])
def test_a_stream_keeps_no_padding_after_its_longest_sequence(limits):
    layer, x = RelativeSelfAttention(6, 2, clip=3, is_causal=True, **limits), torch.randn(2, 160, 6)
    ends, cache = torch.tensor([0, 0]), layer.empty_cache(2)
    with torch.inference_mode():
        whole = layer(x)
        for step in range(64):
            counts = torch.tensor([[1, 0], [0, 1], [3, 4], [1, 0]][step % 4])
            part = torch.stack(
                [x[row, end : end + 5] for row, end in enumerate(ends)]
            )  # 5 positions, most of them padding
            mask = torch.ones(5, cache.length + 5, dtype=torch.bool)
            output, cache = layer(part, ends + counts, cache, mask=mask)
            for row, (end, count) in enumerate(zip(ends, counts, strict=True)):
                torch.testing.assert_close(output[row, :count], whole[row, end : end + count], **ROUNDING)
            ends = ends + counts
            assert cache.dropped + cache.length == int(ends.max())
            assert cache.lengths.tolist() == (ends - cache.dropped).tolist()
    positions = cache.buffers[0].untyped_storage().nbytes() // (2 * 6 * 4)
    assert positions <= 2 * (10 + 5 if limits else 80 + 5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_a_window_compiles_and_exports_with_any_length():
    layer = RelativeSelfAttention(6, 2, clip=3, window=(2, 1)).eval()
    x = torch.randn(2, 9, 6)
    length = torch.export.Dim("length", min=2)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": {1: length}})
    longer = torch.randn(2, 17, 6)
    torch.testing.assert_close(exported.module()(longer), layer(longer))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"window": 3}, "window must be a pair"),
        *(({"window": window}, str(window)) for window in ((-1, 2), (1, 2.0))),
        ({"window": (1, 2**30)}, "2^29"),
        *(({"chunk": chunk}, f"got {chunk}") for chunk in ((0, 1), (4, -1), (4, 1, -1), (4, 1, 1, 1), 4)),
        ({"chunk": (2**20, 0, 2**20)}, "2^29"),
        ({"chunk": (2**20, 2**20)}, "2^29"),
        ({"chunk": (4, 1), "window": (2, 2)}, "without window"),
    ],
)
def test_bad_windows_are_refused(options, fact):
    x = torch.zeros(1, 1, 3, 2)
    with pytest.raises(ValueError, match=re.escape(fact)):
        relative_attention(x, x, x, **options)


def test_a_stream_of_chunks_must_be_whole_chunks():
    layer = RelativeSelfAttention(6, 2, clip=3, chunk=(4, 1))
    _, cache = layer(torch.zeros(1, 3, 6), cache=layer.empty_cache(1))
    with pytest.raises(ValueError, match="whole chunks of 4"):
        layer(torch.zeros(1, 4, 6), cache=cache)
    ahead = RelativeSelfAttention(6, 2, clip=3, chunk=(4, 1, 1))
    with pytest.raises(ValueError, match="chunks that attend to none after them"):
        ahead(torch.zeros(1, 4, 6), cache=ahead.empty_cache(1))
    with pytest.raises(ValueError, match="count"):
        cache.drop(4)
