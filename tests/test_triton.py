"""Tests of the Triton kernels in Triton's interpreter with many tiles, far and near, beyond `test_backends.py`."""

import math
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import errors, gpu_check
from benchmarks.peers import Case
from relattn import backends, relation_attention, relative_attention
from relattn.backends import dense, triton
from relattn.backends.triton import backward, labels, operators, plan
from relattn.backends.triton.configs import Config
from relattn.backends.triton.row_stats import BACKWARD_STATS, FORWARD_STATS
from relattn.call import Call
from tests.support.numerics import Shape, assert_within_budget, error, make_inputs, outputs_and_gradients

pytestmark = pytest.mark.sampled(32)  # Triton's interpreter takes a second a case

# tiles have 16 or 32 rows and columns, and chunks have 16 labels
SHAPES = {
    "far on both sides": Shape(
        batch=1, heads=2, key_heads=2, queries=67, keys=67, dim=17, value_dim=19, left=4, right=4
    ),
    "exact tiles": Shape(batch=1, heads=1, key_heads=1, queries=64, keys=64, dim=16, value_dim=16, left=1, right=6),
    "grouped": Shape(batch=2, heads=2, key_heads=1, queries=37, keys=53, dim=8, value_dim=24, left=5, right=0),
    "several chunks": Shape(batch=1, heads=1, key_heads=1, queries=70, keys=70, dim=5, value_dim=7, left=20, right=15),
    "one label": Shape(batch=1, heads=2, key_heads=1, queries=50, keys=36, dim=5, value_dim=7, left=0, right=0),
    "three queries": Shape(batch=2, heads=1, key_heads=1, queries=3, keys=75, dim=33, value_dim=16, left=9, right=2),
    "three keys": Shape(batch=1, heads=1, key_heads=1, queries=75, keys=3, dim=3, value_dim=2, left=3, right=30),
}
TILES = {"small": Config(16, 16, 16, 4, 1), "tall": Config(32, 16, 16, 4, 1), "wide": Config(16, 32, 16, 4, 1)}


@pytest.fixture(autouse=True)
def _forget():
    """Remove cached plans that have the tiles of a test."""
    yield
    plan.plan.cache_clear()


@pytest.fixture
def _poison():
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def take(monkeypatch, tiles: Config, whole: bool = False) -> None:
    """Make all kernels use these tiles, and one program do the whole backward pass of a head always or never."""
    of_whole = tiles._replace(rows=128 if whole else 0)
    monkeypatch.setattr(plan, "config", lambda kernel, *_: of_whole if kernel == "whole" else tiles)
    monkeypatch.setattr(plan, "chunk_size", lambda labels: 16)
    plan.plan.cache_clear()


def plans_made(monkeypatch) -> list[plan.Plan]:
    """Return a list to which the plan of each later call is added."""
    made = []
    monkeypatch.setattr(operators, "plan_of", lambda *given: (made.append(plan.plan_of(*given)), made[-1])[1])
    return made


def assert_same(found: dict) -> None:
    """Assert that the native and the Triton kernels give the same results up to rounding."""
    finite = torch.cat([x[x.isfinite()] for x in found["native"].values()])
    allowed = 16 * torch.finfo(torch.float32).eps * float(finite.abs().max())
    assert all(error(found["triton"][name], want) < allowed for name, want in found["native"].items())


def restricted(sizes: Shape, causal: bool, lengths: str, mask: bool) -> dict:
    """Return options of a call. With lengths, offsets differ per sequence, and queries have whole tiles of padding."""
    options = {"is_causal": causal, "query_offset": sizes.keys - sizes.queries}
    if lengths:
        options["query_offset"] = torch.tensor([-3, 20])[: sizes.batch]
    if "keys" in lengths:
        options["key_lengths"] = torch.tensor([sizes.keys - 9, 30][: sizes.batch]).clamp(min=1)
    if "queries" in lengths:
        options["query_lengths"] = torch.tensor([sizes.queries * 2 // 3, 1])[: sizes.batch]
    if mask:
        generator = torch.Generator().manual_seed(1)
        options["mask"] = torch.rand(1, sizes.heads, sizes.queries, sizes.keys, generator=generator) < 0.6
    return options


RESTRICTED = [  # beyond, whether causal, what has lengths, and whether there is a mask
    ("clip", (False, "", False)),
    ("clip", (True, "", False)),
    ("clip", (False, "keys", False)),
    ("zero", (True, "keys and queries", False)),
    ("zero", (False, "", True)),
]


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(
    ("tiles", "beyond", "masks"),
    [("small", *case) for case in RESTRICTED]
    + [(tiles, *case) for tiles in ("tall", "wide") for case in RESTRICTED[3:4]],
)
@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=pytest.mark.whole) if name == "far on both sides" else name for name in SHAPES]
)
def test_tiles_are_the_equations(monkeypatch, shape, tiles, beyond, masks):
    take(monkeypatch, TILES[tiles])
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32, per_head=masks[1])
    options = restricted(sizes, *masks)
    assert_within_budget(relative_attention, inputs, "triton", clip=(sizes.left, sizes.right), beyond=beyond, **options)


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(
    ("shape", "rel_dim", "beyond", "masks"),
    [
        ("grouped", 19, "clip", (True, "keys", False)),
        ("far on both sides", 1, "clip", (False, "", False)),
        ("far on both sides", 40, "clip", (True, "", False)),
        ("several chunks", 19, "clip", (False, "", False)),
        ("several chunks", 1, "zero", (False, "", True)),
        ("one label", 3, "clip", (False, "keys and queries", False)),
    ],
)
def test_tiles_of_a_rel_query_are_the_equations(monkeypatch, shape, rel_dim, beyond, masks):
    take(monkeypatch, TILES["small"])
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32, per_head=masks[0], rel_dim=rel_dim)
    options = restricted(sizes, *masks)
    assert_within_budget(relative_attention, inputs, "triton", clip=(sizes.left, sizes.right), beyond=beyond, **options)


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("layout", ["one for all", "dims first"])
def test_a_rel_query_may_have_any_strides(monkeypatch, layout):
    take(monkeypatch, TILES["small"])
    sizes = SHAPES["grouped"]
    inputs = make_inputs(sizes, dtype=torch.float32, rel_dim=1 if layout == "one for all" else 3)
    if layout == "one for all":  # which makes the table of keys a bias
        inputs["rel_query"] = torch.ones(1, 1, 1, 1).expand(inputs["rel_query"].shape)
    else:
        inputs["rel_query"] = inputs["rel_query"].permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert_within_budget(relative_attention, inputs, "triton", clip=(5, 0))


WIDE = Shape(batch=2, heads=2, key_heads=1, queries=52, keys=40, dim=5, value_dim=7, left=60, right=60)


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(("offset", "beyond"), [(-12, "clip"), (0, "zero"), (7, "clip")])
@pytest.mark.parametrize(("tables", "per_head", "rel_dim"), [("keys", True, None), ("both", False, 3)])
def test_parts_of_the_tables_gradients_have_the_labels_that_are_reached(
    monkeypatch, tables, per_head, rel_dim, offset, beyond
):
    """A block of 16 queries reaches one label per key and 15 more, rounded up to tiles of keys and chunks of labels.

    A clipping range as wide as the sequence has one label per query and key, which is more.
    """
    take(monkeypatch, TILES["small"])
    plans = plans_made(monkeypatch)
    inputs = make_inputs(WIDE, dtype=torch.float32, tables=tables, per_head=per_head, rel_dim=rel_dim)
    options = {"clip": 60, "beyond": beyond, "query_offset": offset}
    assert_within_budget(relative_attention, inputs, "triton", **options)
    edges = 2 * (beyond == "clip")
    assert {found.part_rows - edges for found in plans} == {80}
    assert all(found.options.labels > 80 for found in plans)
    plans.clear()
    options["query_offset"] = torch.tensor([offset, 3])  # each sequence has its own: every label may be reached
    assert_within_budget(relative_attention, inputs, "triton", **options)
    assert {found.part_rows - edges for found in plans} == {found.options.labels for found in plans}


@pytest.mark.whole
def test_labels_are_visited_where_a_tile_has_them(monkeypatch):
    """A tile of 16 queries and 16 keys visits only the chunks of its own 31 of 127 labels.

    It visits them once forward, twice for the gradients of queries and table, and once for that of keys.
    """
    take(monkeypatch, TILES["small"])
    inputs = make_inputs(
        Shape(batch=1, heads=1, key_heads=1, queries=64, keys=64, dim=3, value_dim=3, left=63, right=63),
        dtype=torch.float32,
        tables="keys",
        rel_dim=3,
    )
    visited, rows = Counter(), labels.chunk_rows

    def counted(table, pairs, b, h, chunk, after):
        visited[int(chunk)] += 1
        return rows(table, pairs, b, h, chunk, after)

    for module in (labels, backward):
        monkeypatch.setattr(module, "chunk_rows", counted)
    outputs_and_gradients(relative_attention, inputs, clip=63, backend="triton")
    wanted = Counter()
    for i in range(0, 64, 16):
        for j in range(0, 64, 16):  # from the label after the edge's on; that of the other edge is the last
            wanted.update({(distance + 62) // 16 for distance in range(j - i - 15, j - i + 16) if distance > -63})
    assert visited == Counter({chunk: 4 * count for chunk, count in wanted.items()})


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("tiles", ["tall", "wide"])
@pytest.mark.whole
def test_a_far_tile_that_reaches_into_a_near_part_is_hidden_there(monkeypatch, tiles):
    take(monkeypatch, TILES[tiles])
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=114, keys=114, dim=3, value_dim=2, left=2, right=3)
    inputs = make_inputs(sizes, dtype=torch.float32)
    assert_within_budget(relative_attention, inputs, "triton", clip=(2, 3))


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("shape", ["far on both sides", "grouped", "several chunks"])
def test_float32_products_from_three_tf32_products(monkeypatch, shape):
    """Other tests use full float32 products (conftest.py)."""
    take(monkeypatch, TILES["wide"])
    monkeypatch.setattr(plan, "tensor_floats", lambda: False)
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32)
    assert_within_budget(relative_attention, inputs, "triton", clip=(sizes.left, sizes.right))


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(("shape", "rel_dim"), [("grouped", None), ("several chunks", None), ("several chunks", 3)])
def test_tiles_of_relations_are_the_equations(monkeypatch, shape, rel_dim):
    take(monkeypatch, TILES["small"])
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32, rel_dim=rel_dim)
    relations = torch.randint(-1, sizes.labels, (1, 1, sizes.queries, sizes.keys), dtype=torch.int16)
    assert_within_budget(relation_attention, inputs, "triton", relations=relations, is_causal=True)


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("lengths", ["keys", "queries", "keys and queries"])
@pytest.mark.parametrize(
    ("program", "causal", "offset"),
    [
        ("tiles", False, torch.tensor([45, -20, 2])),
        ("tiles", True, 31),
        ("whole", False, 31),
        ("whole", True, torch.tensor([45, -20, 2])),
        ("few queries", True, torch.tensor([45, -1, 12])),
    ],
)
def test_padding_of_queries_and_of_keys(monkeypatch, program, causal, offset, lengths):
    """Both lengths count rows: a query at a position after the valid keys still attends to them."""
    take(monkeypatch, TILES["small"], whole=program == "whole")
    plans = split_keys(monkeypatch) if program == "few queries" else plans_made(monkeypatch)
    sizes = Shape(batch=3, heads=1, key_heads=1, queries=37, keys=53, dim=5, value_dim=7, left=4, right=3)
    if program == "few queries":
        sizes = replace(sizes, queries=5)
    options = {"query_offset": offset, "is_causal": causal}
    if "keys" in lengths:
        options["key_lengths"] = torch.tensor([33, 53, 0])
    if "queries" in lengths:
        options["query_lengths"] = torch.tensor([sizes.queries // 3, sizes.queries, 0])
    inputs = make_inputs(sizes, dtype=torch.float32)
    assert_within_budget(relative_attention, inputs, "triton", clip=(4, 3), **options)
    assert {(found.whole, found.splits > 1) for found in plans} == {(program == "whole", program == "few queries")}


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(
    ("program", "clip", "tables", "rel_dim", "causal", "bad"),
    [
        ("tiles", 2, "both", None, False, "nan"),
        ("tiles", 2, "both", 3, True, "inf"),
        ("tiles", 20, "keys", None, False, "inf"),
        ("whole", 2, "both", None, True, "nan"),
        ("whole", 2, "both", 3, False, "inf"),
        ("few queries", 2, "both", None, True, "nan"),
        ("tiles", 20, "both", 3, True, "nan"),
        ("few queries", 2, "keys", 3, False, "inf"),
    ],
)
def test_what_padding_holds_changes_nothing(monkeypatch, program, clip, tables, rel_dim, causal, bad):
    """NaN and infinity in padding give the same bits as zeros, in outputs and in all gradients."""
    take(monkeypatch, TILES["small"], whole=program == "whole")
    if program == "few queries":
        split_keys(monkeypatch)
    sizes = Shape(batch=2, heads=1, key_heads=1, queries=37, keys=53, dim=5, value_dim=7, left=clip, right=clip)
    key_lengths, query_lengths = torch.tensor([33, 50]), torch.tensor([21, 3])
    options = {"clip": clip, "query_offset": 9, "is_causal": causal, "backend": "triton"}
    options |= {"key_lengths": key_lengths, "query_lengths": query_lengths}
    inputs = make_inputs(sizes, dtype=torch.float32, tables=tables, rel_dim=rel_dim)
    upstream = torch.randn(2, 1, 37, 7, generator=torch.Generator().manual_seed(1))

    def fill(x: torch.Tensor, lengths: torch.Tensor, filling: float) -> torch.Tensor:
        is_padding = torch.arange(x.shape[2])[None, :, None] >= lengths[:, None, None]  # (batch, rows, 1)
        return x.masked_fill(is_padding[:, None], filling)

    def results(filling: float) -> dict[str, torch.Tensor]:
        given = {name: x for name, x in inputs.items() if x is not None}
        for name in ("query", "rel_query", "key", "value"):
            if name in given:
                given[name] = fill(given[name], query_lengths if "query" in name else key_lengths, filling)
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        output, lse = relative_attention(**leaves, **options, return_lse=True)
        gradients = torch.autograd.grad(output, list(leaves.values()), fill(upstream, query_lengths, filling))
        return {"output": output, "lse": lse, **dict(zip(leaves, gradients, strict=True))}

    got, want = results(float(bad)), results(0.0)
    assert [name for name, x in want.items() if not torch.equal(x, got[name])] == []
    for name, lengths in (("query", query_lengths), ("key", key_lengths), ("value", key_lengths)):
        assert torch.equal(fill(got[name], lengths, 0.0), got[name])


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
def test_padding_of_queries_beside_relations_a_mask_and_dropout(monkeypatch):
    take(monkeypatch, TILES["small"])
    sizes = SHAPES["grouped"]
    inputs = make_inputs(sizes, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    pairs = (2, 2, sizes.queries, sizes.keys)
    given = {"query_lengths": torch.tensor([20, 0]), "mask": torch.rand(pairs, generator=generator) < 0.7}
    relations = torch.randint(-1, sizes.labels, pairs, generator=generator)
    assert_within_budget(relation_attention, inputs, "triton", relations=relations, **given)
    options = {"clip": (5, 0), "dropout_p": 0.3, **given}
    found = {}
    for backend in ("native", "triton"):
        torch.manual_seed(3)
        found[backend] = outputs_and_gradients(relative_attention, inputs, backend=backend, **options)
    assert_same(found)


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("lengths", ["", "keys and queries"])
@pytest.mark.parametrize(
    ("shape", "rel_dim"),
    [
        ("far on both sides", None),
        ("several chunks", None),
        ("several chunks", 19),
        ("three keys", None),
    ],
)
@pytest.mark.whole
def test_one_program_may_do_the_whole_backward_pass(monkeypatch, shape, rel_dim, lengths):
    take(monkeypatch, TILES["small"], whole=True)
    plans = plans_made(monkeypatch)
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32, rel_dim=rel_dim)
    options = restricted(sizes, False, lengths, False)
    assert_within_budget(relative_attention, inputs, "triton", clip=(sizes.left, sizes.right), **options)
    assert all(found.whole for found in plans)


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("tables", "rel_dim"), [("both", None), ("keys", None), ("both", 3)])
@pytest.mark.whole
def test_one_program_may_do_several_sequences(monkeypatch, tables, rel_dim, per_head):
    """Three per program, and two in the last. Their gradients of the tables are summed."""
    take(monkeypatch, TILES["small"], whole=True)
    monkeypatch.setattr(plan, "MAX_PARTS", 3)
    plans = plans_made(monkeypatch)
    sizes = Shape(batch=5, heads=2, key_heads=2, queries=19, keys=23, dim=8, value_dim=16, left=3, right=2)
    inputs = make_inputs(sizes, dtype=torch.float32, tables=tables, per_head=per_head, rel_dim=rel_dim)
    options = {"key_lengths": torch.tensor([23, 1, 20, 0, 7]), "query_offset": 1}
    options["query_lengths"] = torch.tensor([19, 3, 0, 5, 17])
    assert_within_budget(relative_attention, inputs, "triton", clip=(3, 2), **options)
    assert {found.sequences for found in plans} == {3}


def test_compile_time_constants_are_no_booleans():
    """A cached True in place of a stride of 1 would be an integer of one bit."""
    plan.constant.cache_clear()
    for value in (True, False, 1, 0):
        assert type(plan.constant(value).value) is int


def call_of(queries: int, keys: int, **changes) -> Call:
    query, key, table = (torch.zeros(*sizes, 8) for sizes in ((2, 1, queries), (2, 1, keys), (3,)))
    return Call(query, key, key, table, left=1, right=1)._replace(**changes)


@pytest.mark.parametrize(("keys", "is_whole"), [(17, True), (128, True), (129, False), (8000, False)])
def test_a_program_with_all_of_a_head_has_not_too_many_keys(keys, is_whole):
    launched = []

    def launch(kernel, *_, **__):
        launched.append(kernel.__name__)

    call = Call(*(x.bfloat16() if isinstance(x, torch.Tensor) else x for x in call_of(64, keys)))
    results = operators.run_forward(call, launch)
    operators.run_backward(call, results[0], *results, launch)
    assert launched == ["forward", "backward_query"] + ["backward_key"] * (not is_whole)


def test_either_lengths_come_with_the_other():
    """Kernels are compiled with both lengths or with neither."""
    assert operators.lengths_of(call_of(3, 5)) == (None, None)
    for given in ({"key_lengths": torch.tensor([2, 4])}, {"query_lengths": torch.tensor([1, 3])}):
        keys, queries = operators.lengths_of(call_of(3, 5, **given))
        assert (keys.dtype, queries.dtype) == (torch.int64, torch.int64)
        assert keys.tolist() == ([2, 4] if "key_lengths" in given else [5, 5])
        assert queries.tolist() == ([1, 3] if "query_lengths" in given else [3, 3])


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("masks", [(False, "", False), (True, "keys", False), (True, "", True)])
@pytest.mark.parametrize("shape", ["three queries", "grouped"])
def test_keys_may_be_split_among_programs(monkeypatch, shape, masks, beyond):
    take(monkeypatch, TILES["small"])
    plans = split_keys(monkeypatch)
    sizes = SHAPES[shape]
    inputs = make_inputs(sizes, dtype=torch.float32, per_head=masks[0])
    options = restricted(sizes, *masks)
    assert_within_budget(relative_attention, inputs, "triton", clip=(sizes.left, sizes.right), beyond=beyond, **options)
    assert {found.splits for found in plans} == {sizes.keys // 16}


@pytest.mark.whole
def test_split_keys_are_joined_where_there_is_dropout_or_half_types_or_labels(monkeypatch):
    take(monkeypatch, TILES["small"])
    plans = split_keys(monkeypatch)
    sizes = SHAPES["three queries"]
    inputs = make_inputs(sizes, dtype=torch.float32)
    found = {}
    for backend in ("native", "triton"):
        torch.manual_seed(3)
        found[backend] = outputs_and_gradients(relative_attention, inputs, clip=(9, 2), dropout_p=0.3, backend=backend)
    assert_same(found)
    half = make_inputs(sizes, dtype=torch.bfloat16)
    assert_within_budget(relative_attention, half, "triton", clip=(9, 2))
    relations = torch.randint(-1, sizes.labels, (1, 1, 3, 75), generator=torch.Generator().manual_seed(0))
    assert_within_budget(relation_attention, inputs, "triton", relations=relations)
    asking = make_inputs(sizes, dtype=torch.float32, rel_dim=3)
    assert_within_budget(relative_attention, asking, "triton", clip=(9, 2))
    assert {found.splits for found in plans} == {4}


def split_keys(monkeypatch) -> list[plan.Plan]:
    monkeypatch.setattr(plan, "MAX_SPLIT_QUERIES", 100)
    monkeypatch.setattr(plan, "MIN_SPLIT_KEYS", 16)
    return plans_made(monkeypatch)


@pytest.mark.whole
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize(("dtype", "whole"), [(torch.bfloat16, False), (torch.float16, True)])
@pytest.mark.parametrize("rel_dim", [None, 19])
def test_half_types_lose_no_more_than_the_reference(monkeypatch, dtype, whole, rel_dim):
    take(monkeypatch, TILES["tall"], whole)
    inputs = make_inputs(SHAPES["far on both sides"], dtype=dtype, rel_dim=rel_dim)
    assert_within_budget(relative_attention, inputs, "triton", clip=4)


@pytest.mark.whole
@pytest.mark.parametrize(("dim", "value_dim"), [(80, 16), (16, 200), (256, 256)])
def test_wide_heads_are_padded(dim, value_dim):
    shape = Shape(batch=1, heads=1, key_heads=1, queries=20, keys=20, dim=dim, value_dim=value_dim, left=3, right=3)
    assert_within_budget(relative_attention, make_inputs(shape, dtype=torch.float32), "triton", clip=3)


@pytest.mark.whole
@pytest.mark.parametrize(("scale", "rel_dim"), [(-0.7, None), (-0.7, 3), (0.0, None)])
def test_a_scale_may_be_of_any_sign(monkeypatch, scale, rel_dim):
    take(monkeypatch, TILES["small"])
    inputs = make_inputs(SHAPES["exact tiles"], dtype=torch.float32, rel_dim=rel_dim)
    inputs["query"] = 20 * inputs["query"]  # so that a wrong maximum overflows
    assert_within_budget(relative_attention, inputs, "triton", clip=(1, 6), scale=scale)


def test_masses_of_edges_are_not_rounded_to_half_types():
    """The edge rows cancel if their masses are about one half each, and leave the rounding error."""
    shape = Shape(batch=1, heads=1, key_heads=1, queries=64, keys=64, dim=16, value_dim=16, left=1, right=1)
    inputs = make_inputs(shape, dtype=torch.float16, tables="values")
    inputs["value"] = torch.zeros_like(inputs["value"])
    inputs["rel_value"] = torch.tensor([100.0, 0.0, -100.0])[:, None].expand(3, 16).half()
    exact = {name: None if x is None else x.double() for name, x in inputs.items()}
    want = relative_attention(**exact, clip=1, backend="reference")
    small = want.abs() < 4  # where half types are finer than what is looked for
    assert small.sum() > 16
    assert error(relative_attention(**inputs, clip=1, backend="triton")[small], want[small]) < 0.004


def test_ds_of_a_query_sum_to_zero(monkeypatch):
    """The gradients of a table sum to zero over its rows as well, however the output was rounded."""
    inputs = make_inputs(
        Shape(batch=1, heads=1, key_heads=1, queries=96, keys=96, dim=16, value_dim=16, left=1, right=1),
        dtype=torch.bfloat16,
    )
    found = []
    summed = operators.sum_of_parts
    monkeypatch.setattr(operators, "sum_of_parts", lambda parts, table: (found.append(parts), summed(parts, table))[1])
    outputs_and_gradients(relative_attention, inputs, clip=1, backend="triton")
    rows = found[0].sum((0, 1))
    assert rows.sum(0).abs().max() < 0.004 * rows.abs().max()


@pytest.mark.whole
def test_long_sequences_lose_no_more_than_twice_what_plain_attention_loses():
    case = Case(batch=1, heads=1, n=256, dim=16, left=2, right=2, is_causal=False)
    ratios = {row["result"]: row["ratio"] for row in errors.rows("triton", case)}
    assert len(ratios) == 6
    assert max(ratios.values()) < errors.LIMIT, ratios


@pytest.mark.parametrize("tables", ["both", "keys"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.whole
def test_dropout_keeps_the_pairs_that_native_keeps(monkeypatch, whole, tables):
    """`test_native.py` compares those with the explicit formula, forward and backward."""
    take(monkeypatch, TILES["small"], whole)
    sizes = SHAPES["far on both sides"]
    inputs = make_inputs(sizes, dtype=torch.float32, tables=tables)
    found = {}
    for backend in ("native", "triton"):
        torch.manual_seed(3)
        options = {"clip": 4, "dropout_p": 0.3, "backend": backend}
        found[backend] = outputs_and_gradients(relative_attention, inputs, **options)
    assert_same(found)


@pytest.mark.whole
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_beside_a_rel_query(monkeypatch, causal):
    take(monkeypatch, TILES["small"])
    gpu_check.dropout(gpu_check.Check(41, "float32", dim=8, k=3, batch=1, rel_dim=3, causal=causal), "cpu")


@pytest.mark.whole
def test_dropout_of_relations_and_of_several_chunks(monkeypatch):
    take(monkeypatch, TILES["small"])
    sizes = SHAPES["several chunks"]
    inputs = make_inputs(sizes, dtype=torch.float32)
    relations = torch.randint(-1, sizes.labels, (1, 1, 70, 70))
    for operator, options in ((relative_attention, {"clip": (20, 15)}), (relation_attention, {"relations": relations})):
        found = {}
        for backend in ("native", "triton"):
            torch.manual_seed(3)
            found[backend] = outputs_and_gradients(operator, inputs, dropout_p=0.3, backend=backend, **options)
        assert_same(found)


@pytest.mark.parametrize(("whole", "rel_dim"), [(False, None), (True, None), (False, 5), (True, 5)])
def test_nothing_outside_a_tensor_is_read_or_written(monkeypatch, whole, rel_dim):
    """Inputs are surrounded by NaN, and results by values that must not change."""
    take(monkeypatch, TILES["small"], whole)
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=37, keys=41, dim=17, value_dim=19, left=4, right=3)
    inputs = make_inputs(sizes, dtype=torch.float32, rel_dim=rel_dim)
    options = {"clip": (4, 3), "query_offset": 2, "backend": "triton"}
    want = outputs_and_gradients(relative_attention, inputs, **options)

    rooms = []

    def room(*sizes, filling: float = float("nan"), **_) -> torch.Tensor:
        sizes = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
        if 0 in sizes:  # PyTorch makes these to set them to something else
            return torch.full(sizes, filling)
        count = math.prod(sizes)
        rooms.append((torch.full((count + 1000,), 7.0), count))
        return rooms[-1][0][500 : count + 500].fill_(filling).view(sizes)

    def among_nan(x: torch.Tensor) -> torch.Tensor:
        wide = torch.full([size + 6 for size in x.shape], float("nan"))
        return wide[tuple(slice(3, 3 + size) for size in x.shape)].copy_(x)

    given = {name: among_nan(x) for name, x in inputs.items()}
    monkeypatch.setattr(torch, "empty", room)
    monkeypatch.setattr(torch, "zeros", partial(room, filling=0.0))
    monkeypatch.setattr(torch, "empty_like", lambda x: room(x.shape))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda _, *sizes, **more: room(*sizes, **more))
    got = outputs_and_gradients(relative_attention, given, **options)
    monkeypatch.undo()
    assert all(error(got[name], want[name]) == 0.0 for name in want)
    assert len(rooms) >= 7
    for wide, count in rooms:
        assert bool((wide[:500] == 7.0).all())
        assert bool((wide[count + 500 :] == 7.0).all())


FAR_APART = """
import torch
from relattn import relative_attention
from tests.support.numerics import Shape, make_inputs, outputs_and_gradients

def spread(x, dimension):  # steps of 2 ** 30 numbers, two of which are past 32 bits, in memory that is never touched
    step = 2**30 + 8
    strides = [step if d == dimension else x.stride(d) for d in range(x.dim())]
    room = torch.empty(step * (x.shape[dimension] - 1) + x.numel(), dtype=x.dtype)
    return room.as_strided(x.shape, strides).copy_(x)

shape = Shape(batch=3, heads=3, key_heads=3, queries=3, keys=3, dim=3, value_dim=3, left=1, right=1)
inputs = make_inputs(shape, rel_dim=3, dtype=torch.float16)
want = outputs_and_gradients(relative_attention, inputs, clip=1, backend="triton")
for dimension in range(4):
    far = {name: spread(x, dimension) if x.dim() == 4 else x for name, x in inputs.items()}
    got = outputs_and_gradients(relative_attention, far, clip=1, backend="triton")
    assert all(torch.equal(got[name], want[name]) for name in want), dimension
"""


@pytest.mark.whole
def test_addresses_are_64_bits_wide():
    """A shorter address would end the process, so that it is a separate one."""
    run = subprocess.run([sys.executable, "-c", FAR_APART], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")  # of the interpreter, at a row's maximum
@pytest.mark.parametrize("name", ["query", "key", "value", "rel_key", "rel_query"])
def test_what_is_not_a_number_spreads_as_in_plain_attention(monkeypatch, name):
    take(monkeypatch, TILES["small"])
    inputs = make_inputs(SHAPES["far on both sides"], dtype=torch.float32, rel_dim=3 if name == "rel_query" else None)
    inputs[name].view(-1)[5] = float("nan")
    want = relative_attention(**inputs, clip=4, backend="reference")
    assert torch.equal(relative_attention(**inputs, clip=4, backend="triton").isnan(), want.isnan())


@pytest.mark.whole
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": torch.tensor(3), "dropout_p": 0.2},
        {"rel_query": torch.ones(1, 1, 1, 1).expand(2, 1, 5, 1), "rel_key": torch.zeros(3, 1)},
    ],
    ids=["plain", "dropout", "bias"],
)
def test_the_operators_pass_opcheck(changes):
    call = call_of(5, 5, **changes)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operators.attention_forward, tuple(call), test_utils=tests)
    results = operators.attention_forward(*call)
    torch.library.opcheck(operators.attention_backward, (results[0], *results, *call), test_utils=tests)


def test_refusals_say_why(monkeypatch):
    inputs = make_inputs(SHAPES["three keys"], dtype=torch.float32)

    def refused(**changes):
        with pytest.raises(ValueError, match="no backend supports") as raised:
            relative_attention(**{**inputs, **changes}, clip=(3, 30), backend="triton")
        return str(raised.value)

    double = {name: x.double() for name, x in inputs.items()}
    assert "dtype must be one of float32, bfloat16, float16, got torch.float64" in refused(**double)
    wide = {"value": torch.zeros(1, 1, 3, 257), "rel_value": None}
    assert "head dims must be from 1 to 256, got dim 3, value_dim 257" in refused(**wide)
    wide = {"rel_query": torch.zeros(1, 1, 75, 257), "rel_key": torch.zeros(34, 257)}
    assert "head dims must be from 1 to 256, got dim 3, value_dim 2, rel_dim 257" in refused(**wide)
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    assert "Triton is not installed" in refused()
    assert "Triton is not installed" in triton.installation()
    monkeypatch.setattr(triton, "CAPABILITIES", replace(triton.CAPABILITIES, devices=("cuda",)))
    assert refused().endswith("triton: tensors must be on cuda, got cpu; use dense")
    monkeypatch.undo()
    old = SimpleNamespace(query=SimpleNamespace(device=torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert triton.unavailable_reason(old) == "Tesla T4 is no NVIDIA GPU of compute capability 8.0 or newer; use dense"
    assert triton.installation() == f"Triton {metadata.version('triton')}, its interpreter"


CHECKED_AHEAD = """
import sys
from benchmarks import compiled, launches

cases = [compiled.Case("float16", 64, 16, 2048), compiled.Case("float16", 64, 16, 64)]
if sys.argv[1] == "90":
    cases.append(compiled.Case("float16", 64, 16, 2048, True, 0.1, "relations+mask+grouped+lengths+offsets"))
    cases.append(compiled.Case("float16", 64, 2047, 2048, given="keys alone+rel_query"))
if sys.argv[1] == "100":
    cases.append(compiled.Case("float32", 64, 16, 2048))
for case in cases:
    for row in compiled.rows(int(sys.argv[1]), case):
        print(row["kernel"])
        assert not row["remarks"], row
        assert row["far redundancy"] in ("", 1.0) or row["far redundancy"] < 1.13, row
        assert row["far local"] in ("", 0), row
if sys.argv[1] == "90":
    short = [compiled.Case("float16", 64, 16, n, batch=1024 // n) for n in range(5, 121, 5)]
    assert launches.variants(short) == (4, 4)
    decoding = [compiled.Case("float16", 64, 16, n, True, queries=1) for n in range(1, 300, 7)]
    assert sum(launches.variants(decoding)) < 10
"""


@pytest.mark.whole
def test_kernels_compile_for_gpus_that_are_not_there(tmp_path):
    """Without Triton's interpreter, the compiled kernels meet the criteria of `configs.py`.

    No kernel is a trap, no product on the tensor cores waits for another, no pair in a far tile is computed twice, and
    the far loop spills no registers. Few variants serve short sentences of all lengths.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(target: str) -> subprocess.CompletedProcess[str]:
        caches = {**environment, "TRITON_CACHE_DIR": str(tmp_path / target)}
        command = [sys.executable, "-c", CHECKED_AHEAD, target]
        return subprocess.run(command, env=caches, capture_output=True, text=True, check=False)

    targets = ("80", "90", "100")
    with ThreadPoolExecutor(max_workers=2) as threads:
        for target, ran in zip(targets, threads.map(run, targets), strict=True):
            assert ran.returncode == 0, ran.stderr[-2000:]
            kernels = ["forward", "backward_query", "backward_key", "forward", "backward_query"]
            assert ran.stdout.split() == kernels + {"80": 0, "90": 2, "100": 1}[target] * kernels[:3]


def test_nothing_is_read_from_the_device():
    """Calls can be captured in a CUDA graph. Fake tensors would raise if their values were read."""

    def launch(*_, **__):
        pass

    tiles_of = partial(plan.tiles_of, generation=9)
    with FakeTensorMode():
        x = torch.empty(2, 3, 70, 16, device="cuda", dtype=torch.float16)
        table, each = x.new_empty(5, 16), torch.empty(2, device="cuda", dtype=torch.int64)
        relations = torch.empty(2, 1, 70, 70, device="cuda", dtype=torch.int64)
        given = {
            "rel_key": table,
            "rel_value": table,
            "rel_query": x,
            "query_offsets": each,
            "key_lengths": each,
            "mask": relations > 0,
        }
        call = call_of(1, 1, query=x, key=x, value=x, **given, seed=each.sum(), left=2, right=2, dropout_p=0.1)
        wide = x.new_empty(401, 16)  # of more rows than a block of queries reaches
        as_wide = {"rel_key": wide, "rel_value": wide, "left": 200, "right": 200}
        as_wide |= {"query_offsets": None, "relations": None}
        for changes in ({}, {"relations": relations}, as_wide):
            call = call._replace(**changes)
            results = operators.run_forward(call, launch, tiles_of)
            found = operators.run_backward(call, x, *results, launch, tiles_of)
            assert all(x.device.type == "cuda" for x in (*results, *found))


def gradient_call(n: int, k: int = 2, **changes) -> Call:
    tensors = {name: torch.zeros(1, 1, n, 16, requires_grad=True) for name in ("query", "key", "value")}
    tensors |= dict.fromkeys(("rel_key", "rel_value"), torch.zeros(2 * k + 1, 16))
    return Call(**{**tensors, "left": k, "right": k, "scale": 0.25, **changes})


def bytes_saved(attend, call: Call) -> int:
    """Bytes that autograd keeps for the backward pass, other than the inputs and the output."""
    saved = {}

    def pack(x):
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output, _ = attend(call, False)
    known = {x.untyped_storage().data_ptr() for x in (*call, output) if isinstance(x, torch.Tensor)}
    return sum(size for pointer, size in saved.items() if pointer not in known)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "dtype"), [(8, torch.float32), (64, torch.bfloat16), (200, torch.float32)])
def test_bytes_of_dense_are_what_it_saves(n, dtype):
    call = gradient_call(n, dropout_p=0.5)
    tensors = {name: x.to(dtype).detach() for name, x in call._asdict().items() if isinstance(x, torch.Tensor)}
    tensors["query"].requires_grad_()
    call = call._replace(**tensors)
    assert bytes_saved(dense.attend, call) == backends.bytes_of_dense(call)


def test_auto_takes_the_kernels_from_the_length_where_they_need_less_memory(monkeypatch):
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    monkeypatch.setattr(triton, "passed_selftest", lambda call: True)
    taken = [backends.choose("auto", gradient_call(n)) for n in range(8, 200, 8)]
    assert taken == sorted(taken, key=[dense, triton].index)
    assert {dense, triton} == set(taken)
    with torch.no_grad():
        assert backends.choose("auto", gradient_call(8)) is triton


def test_row_stats_are_what_is_saved_and_made_for_the_backward_pass():
    forward_stats = bytes_saved(triton.attend, gradient_call(64)) // (4 * 64)  # with the log-sum-exp
    assert forward_stats == 1 + FORWARD_STATS.value
    assert forward_stats + BACKWARD_STATS == triton.ROW_STATS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("k", [16, 999])
def test_bytes_for_backward_are_those_of_the_parts_of_the_tables_gradients(k):
    """Approximately: blocks are assumed to have 64 queries. A block has rows for the labels it reaches, not for all of
    1,999."""
    call, parts = gradient_call(1000, k), {}

    def launch(kernel, *_, **arguments):
        parts.update({name: arguments[name].data for name in ("d_rel_key", "d_rel_value") if name in arguments})

    results = operators.run_forward(call, launch)
    operators.run_backward(call, results[0], *results, launch)
    expected = 4 * sum(part.numel() for part in parts.values())
    assert triton.bytes_for_backward(call) - 4 * 1000 * triton.ROW_STATS == pytest.approx(expected, rel=0.1)
