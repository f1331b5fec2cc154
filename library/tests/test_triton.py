"""The Triton kernels in Triton's interpreter, with small tiles, so that short sequences have many of them.

The common grid of all backends is in `test_backends.py`. `tests/system/test_interpreter.py` combines three options at a
time, on more shapes.
"""

import contextlib
import csv
import gc
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton as compiler
from relattn import backends, checks, relative_attention
from relattn.backends import dense, triton
from relattn.backends import plans as calls
from relattn.backends.triton import availability, backward, forward, labels, launches, operators, plan
from relattn.backends.triton.configs import TileConfig, padded
from relattn.call import Call
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from benchmarks import gpu_tiles
from tests.support.calls import Case, call_of, cases, name_of
from tests.support.covering import pairwise
from tests.support.interpreter import launch_of
from tests.support.numerics import (
    Shape,
    assert_padding_has_no_effect,
    assert_within_budget,
    error,
    make_inputs,
    outputs_and_gradients,
)

SHAPES = {  # tiles have 16 or 32 rows and columns, and chunks have 16 labels
    "far on both sides": Shape(
        batch=1, heads=1, key_heads=1, queries=33, keys=53, dim=17, value_dim=19, left=4, right=4
    ),
    "grouped": Shape(batch=2, heads=2, key_heads=1, queries=5, keys=23, dim=8, value_dim=24, left=5, right=0),
    "several chunks": Shape(batch=1, heads=1, key_heads=1, queries=19, keys=37, dim=5, value_dim=7, left=20, right=15),
    "one label": Shape(batch=2, heads=1, key_heads=1, queries=5, keys=23, dim=5, value_dim=7, left=0, right=0),
    "three queries": Shape(batch=1, heads=2, key_heads=2, queries=3, keys=31, dim=33, value_dim=16, left=9, right=2),
    "three keys": Shape(batch=1, heads=2, key_heads=2, queries=35, keys=3, dim=3, value_dim=2, left=3, right=30),
    "exact tiles": Shape(batch=1, heads=1, key_heads=1, queries=32, keys=64, dim=16, value_dim=16, left=1, right=6),
}
TILES = {
    "small": TileConfig(16, 16, 16, 4, 1),
    "tall": TileConfig(32, 16, 16, 4, 1),
    "wide": TileConfig(16, 32, 16, 4, 1),
}
PROGRAMS = ("tiles", "whole", "split")  # whole: one program does a head's backward pass; split: several share the keys
MIN_SPLIT = 11  # keys per program


@pytest.fixture(autouse=True)
def _poison_and_forget():
    """Fill uninitialised memory with NaN, and remove cached plans, which have the tiles of a test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    plan.plan.cache_clear()


def configure(monkeypatch, tiles="small", program="tiles") -> list[plan.Plan]:
    """Set the tiles and the program of later calls, and return a list to which their plans are added."""
    whole = TILES[tiles]._replace(rows=128 if program == "whole" else 0)
    monkeypatch.setattr(plan, "config", lambda kernel, *_: whole if kernel == "whole" else TILES[tiles])
    monkeypatch.setattr(plan, "chunk_size", lambda labels, *_: 16)
    monkeypatch.setattr(plan, "MAX_SPLIT_QUERIES", 100 if program == "split" else 0)
    monkeypatch.setattr(plan, "MIN_SPLIT_KEYS", MIN_SPLIT)
    monkeypatch.setattr(operators, "PARTS", 4)
    plan.plan.cache_clear()
    plans, plan_of = [], plan.plan_of
    monkeypatch.setattr(operators, "plan_of", lambda *given: (plans.append(plan_of(*given)), plans[-1])[1])
    return plans


def grid(n: int, shapes: Iterable[str], dtypes: Iterable[str]) -> list[Case]:
    """Return calls that contain every combination of values of any `n` options, among them those of the kernels."""
    return cases(
        n,
        shapes=SHAPES,
        shape=list(shapes),
        tiles=list(TILES),
        program=list(PROGRAMS),
        dtype=list(dtypes),
        scale=[None, -0.3, 0.0],
        permuted=[False, True],
        dropout_p=[0.0, 0.3],
        has_pos_query=[False, True],
        planned=[False, True],
    )


def check(monkeypatch, case: Case) -> None:
    """Compare a call with the reference, or, with dropout, with `native`, which drops the same pairs.

    `test_native.py` compares dropout there with the explicit formula, forward and backward.
    """
    plans = configure(monkeypatch, case["tiles"], case["program"])
    monkeypatch.setattr(calls, "PLANS", {})
    if case["planned"]:
        monkeypatch.setattr(launches, "compiled", launch_of)
    if case["dtype"] == "tf32x3":  # float32 from three products of TF32, as on GPUs; elsewhere in full (conftest.py)
        monkeypatch.setattr(plan, "tensor_floats", lambda: False)
    exact = case["dtype"] == "tf32x3" or case["dropout_p"] > 0.0
    dtype, shape = torch.float32 if exact else getattr(torch, case["dtype"]), SHAPES[case["shape"]]
    operator, inputs, options = call_of(case, shape, dtype)
    options["scale"] = case["scale"]
    if case["permuted"]:
        inputs = {name: None if x is None else x.mT.contiguous().mT for name, x in inputs.items()}
        if inputs.get("rel_query") is not None and inputs["rel_query"].shape[3] == 1:  # the table of keys is a bias
            inputs["rel_query"] = torch.ones(1, 1, 1, 1, dtype=dtype).expand(inputs["rel_query"].shape)
    if case["dropout_p"] == 0.0:
        assert_within_budget(operator, inputs, "triton", **options)
    else:
        assert_same_as_native(operator, inputs, dropout_p=case["dropout_p"], **options)
    has_view = not case["permuted"] and case["offset"] != "per sequence" and not (case["scale"] or 0.0) < 0.0
    made = [each for each in calls.PLANS.values() if each is not None]
    assert bool(made) == (case["planned"] and has_view)
    assert all(each.backward is None or each.backward() for each in made)
    may_be_whole = shape.heads == shape.key_heads and shape.keys <= 2 * padded(shape.queries)
    may_be_whole = may_be_whole and not case["has_pos_query"]
    whole, split = case["program"] == "whole" and may_be_whole, case["program"] == "split" and shape.keys >= 22
    found = {(each.whole, each.splits > 1) for each in plans}
    few_keys = case["window"] != "none" and found == {(whole, False)}  # too few in the windows to split them
    assert found == {(whole, split)} or few_keys


def assert_same_as_native(operator, inputs, **options) -> None:
    found = {}
    for backend in ("native", "triton"):
        torch.manual_seed(3)
        found[backend] = outputs_and_gradients(operator, inputs, backend=backend, **options)
    largest = max(float(x[x.isfinite()].abs().max()) for x in found["native"].values() if x.isfinite().any())
    float32 = torch.finfo(torch.float32)
    allowed = 16 * (float32.eps * largest + float32.tiny)  # exact zeros may be numbers near the smallest one
    assert all(error(found["triton"][name], want) <= allowed for name, want in found["native"].items())


@pytest.mark.parametrize("case", grid(2, list(SHAPES)[:3], ["float32", "tf32x3", "bfloat16"]), ids=name_of)
def test_results_equal_the_reference(monkeypatch, case):
    check(monkeypatch, case)


def use_plans(monkeypatch) -> list[int]:
    """Let calls have plans, and return a list to which the number of programs of each launch by a plan is added."""
    launched = []

    def counted(kernel, programs, arguments):
        launch = launch_of(kernel, programs, arguments)
        return lambda *given: (launched.append(programs), launch(*given))

    monkeypatch.setattr(calls, "PLANS", {})
    monkeypatch.setattr(launches, "compiled", counted)
    return launched


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_of_plans(monkeypatch):
    """Hooks may change memory and strides of saved tensors. Rows that no pair takes have zero gradients."""
    launched = use_plans(monkeypatch)
    sizes = Shape(batch=2, heads=3, key_heads=3, queries=4, keys=4, dim=5, value_dim=8, left=6, right=9)
    inputs = make_inputs(sizes, per_head=True, dtype=torch.float32)
    inputs["pos_query"] = make_inputs(sizes, per_head=True, dtype=torch.float32, seed=2)["rel_key"]
    options = {"clip": (6, 9), "lengths": torch.tensor([4, 2])}
    assert_within_budget(relative_attention, inputs, "triton", **options)
    assert launched
    want = outputs_and_gradients(relative_attention, inputs, backend="triton", **options)
    counts = []
    for change in (lambda x: x.clone(), lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):
        launched.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, change):
            got = outputs_and_gradients(relative_attention, inputs, backend="triton", **options)
        counts.append(len(launched))
        assert all(torch.equal(got[name], x) for name, x in want.items())
    assert counts[0] > counts[1]
    leaves = [x.requires_grad_() for x in inputs.values()]
    output = relative_attention(*leaves[:5], pos_query=leaves[5], **options, backend="triton")
    (first,) = torch.autograd.grad(output.sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="must be 'reference'"):
        torch.autograd.grad(first.sum(), leaves[0])


def test_plans_follow_the_setting_of_float32_products(monkeypatch):
    inputs = make_inputs(SHAPES["exact tiles"], dtype=torch.float32)
    results = {}
    for is_planned in (False, True):
        if is_planned:
            launched = use_plans(monkeypatch)
        for allowed in (True, False):
            monkeypatch.setattr(plan, "tensor_floats", lambda allowed=allowed: allowed)
            results[is_planned, allowed] = relative_attention(**inputs, clip=(1, 6), backend="triton")
    assert launched
    for allowed in (True, False):
        assert torch.equal(results[True, allowed], results[False, allowed])
    assert not torch.equal(results[True, True], results[True, False])


@pytest.mark.parametrize("has_pos_query", [False, True])
def test_dropout_in_far_tiles(monkeypatch, has_pos_query):
    configure(monkeypatch)
    inputs = make_inputs(SHAPES["far on both sides"], dtype=torch.float32)
    if has_pos_query:
        inputs["pos_query"] = make_inputs(SHAPES["far on both sides"], dtype=torch.float32, seed=2)["rel_key"]
    assert_same_as_native(relative_attention, inputs, clip=4, dropout_p=0.3)


def test_masked_keys_after_the_clipping_range_take_the_edge_row(monkeypatch):
    """A tile of them has only the label of the edge, whose chunk is not the one that its own distances are in."""
    configure(monkeypatch)
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=3, keys=53, dim=5, value_dim=7, left=0, right=19)
    mask = torch.rand(1, 1, 3, 53, generator=torch.Generator().manual_seed(0)) < 0.6
    inputs = make_inputs(sizes, dtype=torch.float32)
    assert_within_budget(relative_attention, inputs, "triton", clip=(0, 19), query_offset=-3, mask=mask)


def test_large_scores_with_a_negative_scale(monkeypatch):
    """The largest score has the smallest product, and another maximum would overflow."""
    configure(monkeypatch)
    inputs = make_inputs(SHAPES["three queries"], dtype=torch.float32, rel_dim=3)
    inputs["query"] = 20 * inputs["query"]
    assert_within_budget(relative_attention, inputs, "triton", clip=(9, 2), scale=-0.7)


@pytest.mark.parametrize(("queries", "offset", "beyond"), [(49, -7, "clip"), (48, 5, "zero")])
def test_parts_of_table_gradients_have_the_labels_that_are_reached(monkeypatch, queries, offset, beyond):
    """A block of 16 queries reaches one label per key and 15 more, rounded up to tiles of keys and chunks of labels.

    With these sizes its first label is the first of a chunk.
    """
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=queries, keys=23, dim=5, value_dim=7, left=60, right=60)
    plans = configure(monkeypatch)
    inputs = make_inputs(sizes, dtype=torch.float32, tables="keys", per_head=True)
    options = {"clip": 60, "beyond": beyond, "query_offset": offset}
    assert_within_budget(relative_attention, inputs, "triton", **options)
    edges = 2 * (beyond == "clip")
    assert {made.part_rows - edges for made in plans} == {64}
    plans.clear()
    options["query_offset"] = torch.tensor([offset])  # of each sequence: every label may be reached
    relative_attention(**inputs, **options, backend="triton")
    assert {made.part_rows - edges for made in plans} == {plans[0].options.labels}


def test_parts_of_the_gradient_of_pos_query_have_the_labels_that_a_block_of_keys_reaches(monkeypatch):
    """A block of 16 keys reaches one label per query and 15 more, rounded up in the same way."""
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=64, keys=41, dim=3, value_dim=5, left=70, right=70)
    for beyond in ("clip", "zero"):
        plans = configure(monkeypatch)
        inputs = make_inputs(sizes, dtype=torch.float32, tables="neither")
        inputs["pos_query"] = make_inputs(sizes, dtype=torch.float32, seed=2)["rel_key"]
        options = {"clip": 70, "beyond": beyond, "query_offset": -7}
        assert_within_budget(relative_attention, inputs, "triton", **options)
        assert {made.part_rows - 2 * (beyond == "clip") for made in plans} == {96}


@pytest.mark.parametrize("offset", [60, -60])  # all keys are before the clipping range, or all after it
@pytest.mark.parametrize(("queries", "keys"), [(17, 33), (33, 17), (1, 1)])
def test_the_last_tile_may_have_one_row(monkeypatch, offset, queries, keys):
    configure(monkeypatch)
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=queries, keys=keys, dim=5, value_dim=7, left=4, right=3)
    inputs = make_inputs(sizes, dtype=torch.float32)
    inputs["pos_query"] = make_inputs(sizes, dtype=torch.float32, seed=2)["rel_key"]
    assert_within_budget(relative_attention, inputs, "triton", clip=(4, 3), query_offset=offset)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("offset", [20, 0])  # some queries are far after the padding, or far before it
def test_padding_has_no_infinite_share_of_the_gradient_of_pos_query(monkeypatch, offset):
    """All scores are so low that a zero in their place, as of a key in padding, has an infinite probability."""
    configure(monkeypatch)
    inputs = make_inputs(SHAPES["far on both sides"], dtype=torch.float32, tables="neither")
    inputs["query"], inputs["key"] = 9.0 + inputs["query"], inputs["key"] - 9.0
    inputs["pos_query"] = make_inputs(SHAPES["far on both sides"], dtype=torch.float32, seed=2)["rel_key"]
    options = {"clip": 4, "query_offset": offset, "key_lengths": torch.tensor([37]), "backend": "triton"}
    results = outputs_and_gradients(relative_attention, inputs, **options)
    assert all(x.isfinite().all() for x in results.values())


def test_tiles_visit_only_the_chunks_of_their_labels(monkeypatch):
    """Once forward, twice for the gradients of queries and table, and once for that of keys."""
    configure(monkeypatch)
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=32, keys=48, dim=3, value_dim=3, left=47, right=47)
    visited, rows = Counter(), labels.chunk_rows

    def counted(table, pairs, b, h, chunk, after):
        visited[int(chunk)] += 1
        return rows(table, pairs, b, h, chunk, after)

    for module in (labels, backward):
        monkeypatch.setattr(module, "chunk_rows", counted)
    inputs = make_inputs(sizes, dtype=torch.float32, tables="keys", rel_dim=3)
    outputs_and_gradients(relative_attention, inputs, clip=47, query_offset=0, backend="triton")
    wanted = Counter()
    for i in range(0, 32, 16):
        for j in range(0, 48, 16):  # labels are counted from distance -30; that of the edge before it is no label
            wanted.update({(distance + 30) // 16 for distance in range(j - i - 15, j - i + 16) if distance >= -30})
    assert visited == Counter({chunk: 4 * count for chunk, count in wanted.items()})


WINDOWS = [(15, 0), (16, 17), (17, 1), (33, None), (None, 15), (0, 31)]  # tiles have 16 queries and keys
CHUNKS = [(16, 1), (15, 0), (17, 1), (5, None), (16, 0, 1), (7, None, 2), (15, 1, None)]


@pairwise(
    n=1,
    limits=[*({"window": sides} for sides in WINDOWS), *({"chunk": chunk} for chunk in CHUNKS)],
    clip=[3, 20],
    offset=[-1, 30],
    program=["tiles", "split"],
)
def test_windows_around_the_ends_of_tiles(monkeypatch, limits, clip, offset, program):
    """With the narrow clipping range, windows cut far tiles. The wide one has several chunks of labels."""
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=19, keys=49, dim=5, value_dim=7, left=clip, right=clip)
    configure(monkeypatch, program=program)
    options = {"clip": clip, "query_offset": offset, **limits}
    assert_within_budget(relative_attention, make_inputs(sizes, dtype=torch.float32), "triton", **options)


@pytest.mark.parametrize("limits", [{"chunk": (8, 2)}, {"window": (20, None), "is_causal": True}])
def test_work_and_memory_of_a_window_are_linear_in_the_length(monkeypatch, limits):
    plans = configure(monkeypatch)
    loads = [count_loads(monkeypatch, length, length, **limits) for length in (48, 64, 80)]
    assert loads[2] - loads[1] == loads[1] - loads[0] > 0
    assert len({made.part_rows for made in plans}) == 1


def count_loads(monkeypatch, queries: int, keys: int, **options) -> int:
    """Return how often rows are loaded in a call and its backward pass."""
    count = 0

    def counted(x, *rest, load_rows):
        nonlocal count
        count += 1
        return load_rows(x, *rest)

    with monkeypatch.context() as patched:
        for module in (forward, backward):
            patched.setattr(module, "load_rows", partial(counted, load_rows=module.load_rows))
        sizes = Shape(batch=1, heads=1, key_heads=1, queries=queries, keys=keys, dim=3, value_dim=3, left=4, right=4)
        outputs_and_gradients(relative_attention, make_inputs(sizes, dtype=torch.float32), backend="triton", **options)
    return count


def test_queries_in_padding_visit_no_keys(monkeypatch):
    """Their cost does not depend on the number of keys."""
    configure(monkeypatch)
    costs = set()
    for keys in (16, 48):
        lengths = {"query_lengths": torch.tensor([16]), "key_lengths": torch.tensor([keys]), "query_offset": 0}
        padded_loads, loads = (count_loads(monkeypatch, queries, 48, **lengths) for queries in (64, 16))
        costs.add(padded_loads - loads)
    assert len(costs) == 1


@pytest.mark.parametrize(
    ("program", "clip", "tables", "rel_dim", "is_causal", "bad"),
    [
        ("tiles", 20, "both", 3, True, "nan"),
        ("whole", 2, "both", 3, False, "inf"),
        ("split", 2, "both", None, True, "nan"),
    ],
)
def test_content_of_padding_changes_nothing(monkeypatch, program, clip, tables, rel_dim, is_causal, bad):
    configure(monkeypatch, program=program)
    sizes = Shape(batch=2, heads=1, key_heads=1, queries=19, keys=31, dim=5, value_dim=7, left=clip, right=clip)
    inputs = make_inputs(sizes, dtype=torch.float32, tables=tables, rel_dim=rel_dim)
    lengths = {"query_lengths": torch.tensor([17, 3]), "key_lengths": torch.tensor([23, 29])}
    options = {"clip": clip, "query_offset": 9, "is_causal": is_causal, "backend": "triton"}
    assert_padding_has_no_effect(inputs, float(bad), **lengths, **options)


@pytest.mark.parametrize("rel_dim", [None, 3])
def test_one_program_may_do_several_sequences(monkeypatch, rel_dim):
    """Three per program, and two in the last. Their gradients of the tables are summed."""
    plans = configure(monkeypatch, program="whole")
    monkeypatch.setattr(plan, "MAX_PARTS", 2)
    sizes = Shape(batch=5, heads=1, key_heads=1, queries=7, keys=11, dim=8, value_dim=16, left=3, right=2)
    inputs = make_inputs(sizes, dtype=torch.float32, per_head=True, rel_dim=rel_dim)
    options = {"key_lengths": torch.tensor([11, 1, 9, 0, 7]), "query_lengths": torch.tensor([7, 3, 0, 5, 6])}
    assert_within_budget(relative_attention, inputs, "triton", clip=(3, 2), query_offset=1, **options)
    assert {made.sequences for made in plans} == {2}


@pytest.mark.parametrize(("program", "rel_dim"), [("tiles", 5), ("whole", None), ("split", 5)])
def test_nothing_outside_a_tensor_is_read_or_written(monkeypatch, program, rel_dim):
    """Inputs are surrounded by NaN, and results by values that must not change."""
    plans = configure(monkeypatch, program=program)
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=19, keys=37, dim=17, value_dim=19, left=4, right=3)
    inputs = make_inputs(sizes, dtype=torch.float32, rel_dim=rel_dim)
    options = {"clip": (4, 3), "query_offset": 2, "backend": "triton"}
    want = outputs_and_gradients(relative_attention, inputs, **options)
    buffers = []

    def inside_a_buffer(*sizes, filling: float = float("nan"), **_) -> torch.Tensor:
        sizes = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
        if 0 in sizes:  # PyTorch makes these to set them to something else
            return torch.full(sizes, filling)
        count = math.prod(sizes)
        buffers.append((torch.full((count + 1000,), 7.0), count))
        return buffers[-1][0][500 : count + 500].fill_(filling).view(sizes)

    def among_nan(x: torch.Tensor) -> torch.Tensor:
        wide = torch.full([size + 6 for size in x.shape], float("nan"))
        return wide[tuple(slice(3, 3 + size) for size in x.shape)].copy_(x)

    surrounded = {name: among_nan(x) for name, x in inputs.items()}
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", inside_a_buffer)
        patched.setattr(torch, "zeros", partial(inside_a_buffer, filling=0.0))
        patched.setattr(torch, "empty_like", lambda x: inside_a_buffer(x.shape))
        patched.setattr(torch.Tensor, "new_empty", lambda _, *sizes, **more: inside_a_buffer(*sizes, **more))
        got = outputs_and_gradients(relative_attention, surrounded, **options)
    assert all(error(got[name], want[name]) == 0.0 for name in want)
    assert len(buffers) >= 7
    assert {(made.whole, made.splits) for made in plans} == {(program == "whole", 3 if program == "split" else 1)}
    for buffer, count in buffers:
        assert bool((buffer[:500] == 7.0).all())
        assert bool((buffer[count + 500 :] == 7.0).all())


@pytest.mark.filterwarnings("ignore:All-NaN|invalid value:RuntimeWarning")  # of the interpreter, in a row of NaN
def test_nan_spreads_as_in_the_reference(monkeypatch):
    configure(monkeypatch)
    inputs = make_inputs(SHAPES["three queries"], dtype=torch.float32, rel_dim=3)
    for name in inputs:
        spoilt = {**inputs, name: inputs[name].clone()}
        spoilt[name].view(-1)[5] = float("nan")
        got, want = (relative_attention(**spoilt, clip=(9, 2), backend=each) for each in ("triton", "reference"))
        assert torch.equal(got.isnan(), want.isnan()), name


@pytest.mark.parametrize(("dim", "value_dim"), [(80, 16), (16, 256)])
def test_wide_heads_are_padded(dim, value_dim):
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=5, keys=7, dim=dim, value_dim=value_dim, left=3, right=3)
    assert_within_budget(relative_attention, make_inputs(sizes, dtype=torch.float32), "triton", clip=3)


def test_masses_of_edges_are_not_rounded_to_half_types():
    """The edge rows cancel if their masses are about one half each, and leave the rounding error."""
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=64, keys=64, dim=16, value_dim=16, left=1, right=1)
    inputs = make_inputs(sizes, dtype=torch.float16, tables="values")
    inputs["value"] = torch.zeros_like(inputs["value"])
    inputs["rel_value"] = torch.tensor([100.0, 0.0, -100.0])[:, None].expand(3, 16).half()
    exact = {name: None if x is None else x.double() for name, x in inputs.items()}
    want = relative_attention(**exact, clip=1, backend="reference")
    small = want.abs() < 4  # where half types resolve less than the error to be found
    assert small.sum() > 16
    assert error(relative_attention(**inputs, clip=1, backend="triton")[small], want[small]) < 0.004


def test_score_gradients_of_a_query_sum_to_zero(monkeypatch):
    """The gradients of a table then sum to zero over its rows, however the output was rounded."""
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=64, keys=96, dim=16, value_dim=16, left=1, right=1)
    parts = []
    table = operators.Table
    monkeypatch.setattr(operators, "Table", lambda *fields: (parts.append(fields[1]), table(*fields))[1])
    outputs_and_gradients(relative_attention, make_inputs(sizes, dtype=torch.bfloat16), clip=1, backend="triton")
    rows = parts[0].sum((0, 1))
    assert rows.sum(0).abs().max() < 0.004 * rows.abs().max()


def small_call(queries: int, keys: int, **changes) -> Call:
    query, key, table = (torch.zeros(*sizes, 8) for sizes in ((2, 1, queries), (2, 1, keys), (3,)))
    return Call(query, key, key, table, left=1, right=1)._replace(**changes)


def test_calls_that_are_not_supported_are_refused(monkeypatch):
    inputs = make_inputs(SHAPES["three keys"], dtype=torch.float32)

    def refusal(**changes) -> str:
        with pytest.raises(ValueError, match="triton does not support") as raised:
            relative_attention(**{**inputs, **changes}, clip=(3, 30), backend="triton")
        return str(raised.value)

    assert "float64" in refusal(**{name: x.double() for name, x in inputs.items()})
    assert "value_dim 257" in refusal(value=torch.zeros(1, 2, 3, 257), rel_value=None)
    assert "rel_dim 257" in refusal(rel_query=torch.zeros(1, 2, 35, 257), rel_key=torch.zeros(34, 257))
    with monkeypatch.context() as patched:
        patched.setattr(triton.importlib.util, "find_spec", lambda name: None)
        assert "Triton is not installed" in refusal()
        assert "Triton is not installed" in triton.installation()
        patched.setattr(triton, "CAPABILITIES", replace(triton.CAPABILITIES, devices=("cuda",)))
        assert "tensors must be on cuda, got cpu" in refusal()
    assert "interpreter" in triton.installation()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "no GPU" in triton.installation()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with FakeTensorMode():
        x = torch.empty(1, 1, 4, 16, device="cuda")
    for capability in ((7, 5), (8, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        reason = triton.unavailable_reason(Call(x, x, x))
        assert (reason is None) == (capability >= (8, 0)), reason
        assert reason is None or "Tesla T4 is no NVIDIA GPU" in reason


def test_the_tiles_of_all_gpus_can_be_compiled():
    """Triton requires powers of two. Each of more than 4 warps has 16 rows of a product, or none is left to do."""
    options = itertools.product(
        (torch.float16, torch.float32), (64, 128, 256), (1, 70, 700), (None, 2, 200), (0, 1), (0, 1)
    )
    for dtype, dim, length, clip, has_rel_query, has_pos_query in options:
        x = torch.empty(2, 2, length, dim, dtype=dtype, device="meta")
        table = None if clip is None else x.new_empty(2 * clip + 1, dim)
        call = Call(x, x, x, table, left=clip or 0, right=clip or 0)
        if table is not None:
            call = call._replace(rel_query=x if has_rel_query else None, pos_query=table if has_pos_query else None)
        for generation in (8, 9, 10, 12):
            made = plan.plan_of(call, generation=generation)
            assert made.options.CHUNK.value in (16, 32)
            for kernel, (rows, cols, near, warps, stages) in made.tiles.items():
                assert {rows, cols, near} <= {16, 32, 64, 128}
                assert near <= max(rows, cols)
                assert warps in (4, 8)
                assert warps <= max(4, (cols if kernel == "backward_key" else rows) // 16)
                assert 1 <= stages <= 3


@pytest.mark.parametrize("shape", gpu_tiles.SHAPES[:5], ids=str)  # those of head dimension 64
def test_tiles_on_hopper_are_the_fastest_that_were_measured(shape):
    """At most 3 % slower, with the best number of stages. Those of `backward_query` were not among the candidates."""
    made = plan.plan_of(replace(shape, tokens=shape.n).call("meta"), generation=9)
    assert made.options.CHUNK.value == (16 if shape.causal else 32)
    times = defaultdict(lambda: defaultdict(lambda: math.inf))
    with (Path(gpu_tiles.__file__).parent / "results" / "tiles-gpu.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["ms"] and row["dim"] == str(shape.dim)]
    for row in rows:
        if (row["form"], row["n"], row["causal"]) == (shape.form, str(shape.n), str(shape.causal)):
            tiles = tuple(int(row[name]) for name in ("rows", "cols", "near", "warps"))
            times[row["kernel"]][tiles] = min(float(row["ms"]), times[row["kernel"]][tiles])
    assert len(times) >= 2
    for kernel in times.keys() - {"backward_query"}:
        assert times[kernel][made.tiles[kernel][:4]] <= 1.03 * min(times[kernel].values()), kernel


@pytest.mark.parametrize(
    ("given", "clip"), [({"rel_key", "rel_query"}, 1), ({"rel_value", "pos_query"}, 1), ({"rel_key", "pos_query"}, 0)]
)
def test_fake_results_have_the_shapes_of_results(monkeypatch, given, clip):
    """Those of gradients too. Gradients of tensors that are not given are empty."""
    configure(monkeypatch)
    x, table = torch.randn(1, 1, 5, 4), torch.randn(2 * clip + 1, 4)
    tensors = {name: x if name == "rel_query" else table for name in given}
    call = Call(x, x, x, left=clip, right=clip)._replace(**tensors)
    results = torch.ops.relattn.triton.default(*call)
    torch.library.opcheck(torch.ops.relattn.triton.default, call, test_utils="test_faketensor")
    arguments = (torch.ones_like(results[0]), *results, *call)
    torch.library.opcheck(torch.ops.relattn.triton_backward.default, arguments, test_utils="test_faketensor")


def test_nothing_is_read_from_the_device():
    """Calls can be captured in a CUDA graph. Fake tensors would raise if their values were read."""

    def launch(*_, **__):
        pass

    with FakeTensorMode():
        x = torch.empty(2, 3, 70, 16, device="cuda", dtype=torch.float16)
        table, each = x.new_empty(5, 16), torch.empty(2, device="cuda", dtype=torch.int64)
        relations = torch.empty(2, 1, 70, 70, device="cuda", dtype=torch.int64)
        tensors = {"query": x, "key": x, "value": x, "rel_key": table, "rel_value": table, "rel_query": x}
        tensors |= {"query_offsets": each, "key_lengths": each, "mask": relations > 0, "seed": each.sum()}
        call = small_call(1, 1, **tensors, left=2, right=2, dropout_p=0.1)
        wide = x.new_empty(401, 16)  # with more rows than a block of queries reaches
        as_wide = {"rel_key": wide, "rel_value": wide, "left": 200, "right": 200}
        as_wide |= {"query_offsets": None, "relations": None}
        for changes in ({}, {"relations": relations}, as_wide):
            call = call._replace(**changes)
            results = operators.run_forward(call, launch, generation=9)
            gradients = operators.run_backward(call, x, *results, launch, generation=9)
            assert all(x.device.type == "cuda" for x in (*results, *gradients))


def test_launches_of_a_plan_can_be_replayed(monkeypatch):
    """As from a CUDA graph of a training step: with the same addresses, launches alone compute results for new values.

    Addresses are in memory of PyTorch's allocator.
    """
    configure(monkeypatch)
    launched = []
    tensors = []  # stay alive, as in the memory of a graph

    def recorded(kernel, programs, arguments):
        launch = launch_of(kernel, programs, arguments)

        def record(*given):
            tensors.extend(x for x in gc.get_objects() if type(x) is torch.Tensor and x.device.type == "cpu")
            memory = [(x.data_ptr(), x.data_ptr() + x.untyped_storage().nbytes()) for x in tensors]
            used = addresses_of(given, [arguments[name] for name in kernel.arg_names])
            assert all(any(start <= address < stop for start, stop in memory) for address in used)
            launched.append(lambda: launch(*given))
            launch(*given)

        return record

    def addresses_of(given, recorded):
        if isinstance(recorded, torch.Tensor):
            return [given]
        pairs = zip(given, recorded, strict=True) if isinstance(recorded, list | tuple) else ()
        return list(itertools.chain.from_iterable(addresses_of(*pair) for pair in pairs))

    monkeypatch.setattr(calls, "PLANS", {})
    monkeypatch.setattr(launches, "compiled", recorded)
    for module in (checks, backends.pairs):
        monkeypatch.setattr(module, "can_read", lambda x: False)  # as on a GPU
    sizes = replace(SHAPES["far on both sides"], batch=2, keys=33)
    values = [make_inputs(sizes, dtype=torch.float32, seed=seed) for seed in (0, 1)]
    lengths = torch.tensor([[33, 20], [7, 33]])
    cotangent = torch.randn(2, 33, 1, sizes.value_dim).transpose(1, 2)

    def step(number):
        leaves = [x.requires_grad_() for x in values[number].values() if x is not None]
        output = relative_attention(*leaves, clip=4, lengths=lengths[number], backend="triton")
        return output, *torch.autograd.grad(output, leaves, cotangent)

    want = step(1)
    launched.clear()
    got = step(0)
    assert len(launched) == 4
    with torch.no_grad():
        lengths[0].copy_(lengths[1])
        for name, x in values[0].items():
            x.copy_(values[1][name])
    assert not any(torch.equal(*each) for each in zip(got, want, strict=True))
    for replay in launched:
        replay()
    assert all(torch.equal(*each) for each in zip(got, want, strict=True))


def test_a_newer_assembler_compiles_kernels_for_hopper(monkeypatch):
    """ptxas 12.8 loses values; Triton 3.6 and 3.7 have it for Hopper, and a newer one for Blackwell."""
    faulty, sound = SimpleNamespace(path="old", version="12.8"), SimpleNamespace(path="new", version="12.9")
    monkeypatch.setitem(vars(knobs.nvidia), "ptxas", "old")
    monkeypatch.setattr(knobs, "NvidiaTool", SimpleNamespace(from_path={"old": faulty, "new": sound}.get))
    monkeypatch.setitem(vars(knobs.nvidia), "ptxas_blackwell", "new")

    def used(major):
        """Return the assembler that compiles a kernel at its launch on a GPU of a compute capability."""
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
        availability.newer_assembler.cache_clear()
        kernel = CompiledKernel()
        operators.launch(kernel, 1, None, x.device)
        return kernel.assembler

    class CompiledKernel:
        assembler = ""

        def _do_compile(self):
            self.assembler = knobs.nvidia.ptxas.path

        def __getitem__(self, grid):
            return lambda **arguments: self._do_compile()

    with FakeTensorMode():
        x = torch.empty(1, 1, 4, 16, device="cuda")
    monkeypatch.setattr(availability, "device_of", lambda device: contextlib.nullcontext())
    assert [used(major) for major in (8, 9, 10)] == ["old", "new", "old"]
    assert knobs.nvidia.ptxas.path == "old"
    faulty.version = "12.9"
    assert used(9) == "old"
    faulty.version = "12.8"
    monkeypatch.setenv("TRITON_PTXAS_PATH", "chosen")
    assert used(9) == "old"
    availability.newer_assembler.cache_clear()


class Kernel:
    __name__ = "forward"

    def warmup(self, **arguments):
        raise OutOfResources(9, 5, "shared memory")


def test_compiler_errors_become_one_line(monkeypatch, tmp_path):
    def compile_nonsense():
        (tmp_path / "kernel.ttir").write_text("no such language")
        compiler.compile(str(tmp_path / "kernel.ttir"), target=GPUTarget("cuda", 90, 32))

    def raise_from_cause():
        raise CompilationError("source", None, None) from CompilationError("def f(): pass", None, "a reason\nmore")

    def fail_at_run_time():
        raise RuntimeError("Triton Error [CUDA]")

    device = torch.device("cpu")
    with pytest.raises(RuntimeError, match=r"^Triton Error \[CUDA\]$"), availability.compiling(Kernel(), device):
        fail_at_run_time()
    for launch, fact in ((compile_nonsense, "got RuntimeError: "), (raise_from_cause, "a reason; ")):
        with pytest.raises(availability.NotCompiledError) as raised, availability.compiling(Kernel(), device):
            launch()
        assert fact in str(raised.value)
        assert "\n" not in str(raised.value)
    monkeypatch.setattr(operators, "forward", Kernel())
    with pytest.raises(availability.NotCompiledError, match=r"^triton: forward .* shared memory"):
        relative_attention(*torch.randn(3, 1, 1, 40, 16), backend="triton")


def test_auto_uses_the_kernels_where_they_have_been_measured(monkeypatch):
    x, bias = torch.empty(1, 1, 8, 16), torch.empty(1, 1, 8, 8)
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    assert backends.choose("auto", Call(x, x, x)) is dense
    monkeypatch.setattr(availability, "is_hopper", lambda device: True)
    assert backends.choose("auto", Call(x, x, x)) is triton
    assert backends.choose("auto", Call(x, x, x, bias=bias)) is dense
