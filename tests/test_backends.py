"""Every backend against the paper's equations: outputs, log-sum-exps and all gradients, of a `rel_query` too."""

import itertools
import random
from typing import Any

import pytest
import torch

from relattn import backends, relation_attention, relative_attention
from relattn.backends.dense.labels import sum_by_label, sum_by_label_in_passes
from tests.support.numerics import (
    SHAPES,
    Shape,
    assert_within_budget,
    error,
    make_inputs,
    outputs_and_gradients,
    widest,
)

pytestmark = pytest.mark.sampled(16)

SAMPLED = pytest.mark.sampled(250)  # Triton's interpreter takes a second a case: conftest.py
PRECISIONS = [("native", torch.float64), ("native", torch.float32), ("dense", torch.float64), ("dense", torch.float32)]
PRECISIONS += [pytest.param("triton", torch.float32, marks=SAMPLED)]
FAST = ["native", "dense", pytest.param("triton", marks=SAMPLED)]
EVERY = ["native", pytest.param("triton", marks=SAMPLED), "dense", "reference"]
TABLES = ("both", "keys", "values", "neither")
OFFSETS = ("default", "one", "ragged")
REL_DIMS = (None, None, 1, 3, 19)  # None: the query itself
MASKS = list(itertools.product([False, True], repeat=3))  # causal, lengths, mask


def rounding(backend: str) -> float:
    """What two ways to the same numbers of order one may differ by."""
    return 450 * torch.finfo(widest(backend)).eps


def restrictions(shape: Shape, offset: str, causal: bool, lengths: bool, mask: bool, seed: int) -> dict[str, Any]:
    """The options of a call: every sort of empty row among them, each from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"is_causal": causal}
    if offset == "one":
        options["query_offset"] = int(torch.randint(-2, shape.keys, (), generator=generator))
    elif offset == "ragged":
        options["query_offset"] = torch.randint(-2, shape.keys, (shape.batch,), generator=generator)
    elif lengths and shape.queries != shape.keys:
        options["query_offset"] = shape.keys - shape.queries
    if lengths:
        options["key_lengths"] = torch.randint(0, shape.keys + 1, (shape.batch,), generator=generator)
        options["key_lengths"][0] = shape.keys
    if mask:
        sizes = [(1, 1), (shape.batch, 1), (1, shape.heads), (shape.batch, shape.heads)][seed % 4]
        options["mask"] = torch.rand(*sizes, shape.queries, shape.keys, generator=generator) < 0.6
    if lengths and seed % 3 == 0:
        options["query_lengths"] = torch.randint(0, shape.queries + 1, (shape.batch,), generator=generator)
    return options


def cases():
    for number, (shape, offset, masks, beyond) in enumerate(
        itertools.product(SHAPES, OFFSETS, MASKS, ("clip", "zero"))
    ):
        tables = TABLES[number // 6 % 4] if number % 5 == 0 else "both"
        given = "+".join(word for word, on in zip(("causal", "lengths", "mask"), masks, strict=True) if on) or "all"
        name = f"{shape}-{offset}-{given}-{beyond}"
        rel_dim = random.Random(number).choice(REL_DIMS)
        yield pytest.param(shape, offset, masks, beyond, tables, number % 2 == 0, rel_dim, number, id=name)


@pytest.mark.parametrize(("backend", "dtype"), PRECISIONS)
@pytest.mark.parametrize(("shape", "offset", "masks", "beyond", "tables", "per_head", "rel_dim", "seed"), list(cases()))
def test_relative_attention_is_the_equations(
    backend, dtype, shape, offset, masks, beyond, tables, per_head, rel_dim, seed
):
    inputs = make_inputs(SHAPES[shape], tables=tables, per_head=per_head, rel_dim=rel_dim, dtype=dtype, seed=seed)
    options = restrictions(SHAPES[shape], offset, *masks, seed)
    clip = (SHAPES[shape].left, SHAPES[shape].right)
    assert_within_budget(relative_attention, inputs, backend, clip=clip, beyond=beyond, **options)


@pytest.mark.parametrize(("backend", "dtype"), PRECISIONS)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("tables", "rel_dim"), [*((tables, None) for tables in TABLES), ("both", 2), ("keys", 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_tables_of_every_kind(backend, dtype, per_head, tables, rel_dim, shape):
    inputs = make_inputs(SHAPES[shape], tables=tables, per_head=per_head, rel_dim=rel_dim, dtype=dtype)
    clip = (SHAPES[shape].left, SHAPES[shape].right)
    assert_within_budget(relative_attention, inputs, backend, clip=clip, scale=0.7)


@pytest.mark.parametrize(("backend", "dtype"), PRECISIONS)
@pytest.mark.parametrize("relations_have", ["nothing", "batch", "heads", "both"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_relation_attention_is_the_equations(backend, dtype, relations_have, masks, shape):
    sizes = SHAPES[shape]
    seed = 4 * list(SHAPES).index(shape) + 2 * masks[0] + masks[1]
    tables = TABLES[seed % 4]
    per_head, rel_dim = relations_have in ("heads", "both"), REL_DIMS[seed % 5]
    inputs = make_inputs(sizes, tables=tables, per_head=per_head, rel_dim=rel_dim, dtype=dtype, seed=seed)
    lead = {"nothing": (1, 1), "batch": (sizes.batch, 1), "heads": (1, sizes.heads), "both": (sizes.batch, sizes.heads)}
    relations = torch.randint(
        -1, sizes.labels, (*lead[relations_have], sizes.queries, sizes.keys), generator=torch.Generator().manual_seed(5)
    )
    options = restrictions(sizes, OFFSETS[seed % 3], *masks, seed)
    assert_within_budget(relation_attention, inputs, backend, relations=relations, **options)


@pytest.mark.sampled(31)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_half_precision_loses_no_more_than_the_reference(backend, dtype, shape):
    sizes = SHAPES[shape]
    options = restrictions(sizes, "default", True, True, False, 3)
    inputs = make_inputs(sizes, rel_dim=3, dtype=dtype)
    assert_within_budget(relative_attention, inputs, backend, clip=(sizes.left, sizes.right), **options)
    lse = outputs_and_gradients(relative_attention, inputs, clip=(sizes.left, sizes.right), backend=backend)["lse"]
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("backend", EVERY)
@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 0, 2), (0, 3, 2), (3, 0, 2), (5, 5, 0), (1, 1, 2)])
def test_nothing_to_attend_with_or_to(backend, queries, keys, batch):
    shape = Shape(batch=batch, heads=2, key_heads=1, queries=queries, keys=keys, dim=3, value_dim=5, left=2, right=1)
    for causal, lengths, ragged in itertools.product([False, True], repeat=3):
        options: dict[str, Any] = {"is_causal": causal, "query_offset": torch.zeros(batch).long() if ragged else 0}
        if lengths:
            options["key_lengths"] = torch.full((batch,), keys)
        inputs = make_inputs(shape, dtype=widest(backend))
        got = outputs_and_gradients(relative_attention, inputs, clip=(2, 1), backend=backend, **options)
        want = outputs_and_gradients(relative_attention, inputs, clip=(2, 1), backend="reference", **options)
        assert all(error(got[name], want[name]) < rounding(backend) for name in want)
        if keys == 0:
            assert not got["output"].any()
            assert got["lse"].isneginf().all()


@pytest.mark.parametrize("backend", EVERY)
def test_rows_with_nothing_to_attend_to_are_zero_and_pass_no_gradient(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    mask = torch.ones(2, 3, 13, 13, dtype=torch.bool)
    mask[0, :, 4] = False
    mask[1, 2] = False
    got = outputs_and_gradients(relative_attention, inputs, clip=4, mask=mask, backend=backend)
    empty = ~mask.any(-1)
    assert not got["output"][empty].any()
    assert got["lse"][empty].isneginf().all()
    assert not got["d query"][empty].any()
    assert not got["d key"][1, 2].any()
    assert not got["d value"][1, 2].any()
    assert all(torch.isfinite(got[name]).all() for name in got if name != "lse")


@pytest.mark.parametrize("backend", backends.NAMES)
def test_padding_is_zero_and_passes_no_gradient(backend):
    inputs = make_inputs(SHAPES["self"], dtype=widest(backend))
    lengths = torch.tensor([13, 5])
    got = outputs_and_gradients(relative_attention, inputs, clip=4, lengths=lengths, backend=backend)
    assert not got["output"][1, :, 5:].any()
    assert got["lse"][1, :, 5:].isneginf().all()
    assert all(not got[f"d {name}"][1, :, 5:].any() for name in ("query", "key", "value"))


@pytest.mark.parametrize("backend", backends.NAMES)
def test_strides_do_not_matter(backend):
    inputs = make_inputs(SHAPES["self"], per_head=True, dtype=widest(backend))
    want = outputs_and_gradients(relative_attention, inputs, clip=4, backend=backend)
    for order in ((0, 2, 1, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        back = [order.index(dimension) for dimension in range(4)]
        strided = {
            name: x.permute(order).contiguous().permute(back) if x.dim() == 4 else x.mT.contiguous().mT
            for name, x in inputs.items()
        }
        got = outputs_and_gradients(relative_attention, strided, clip=4, backend=backend)
        assert all(error(got[name], want[name]) < rounding(backend) for name in want)
    padded = {name: torch.cat([x, x], dim=-1)[..., : x.shape[-1]] for name, x in inputs.items()}
    got = outputs_and_gradients(relative_attention, padded, clip=4, backend=backend)
    assert all(error(got[name], want[name]) < rounding(backend) for name in want)


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("wanted", ["query", "key", "value", "rel_key", "rel_value", "rel_query"])
def test_gradient_of_one_input_alone(backend, wanted):
    inputs = make_inputs(SHAPES["one key head"], rel_dim=3, dtype=widest(backend))
    want = outputs_and_gradients(relative_attention, inputs, clip=(2, 0), backend=backend)
    inputs[wanted].requires_grad_()
    output = relative_attention(**inputs, clip=(2, 0), backend=backend)
    cotangent = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(output, inputs[wanted], cotangent.to(output))
    assert error(gradient, want[f"d {wanted}"]) < rounding(backend)


@pytest.mark.parametrize("backend", [*EVERY[::2], "reference", pytest.param("triton", marks=pytest.mark.whole)])
def test_gradients_are_the_same_bits_every_time(backend):
    inputs = make_inputs(SHAPES["grouped"], dtype=torch.float32)
    options = restrictions(SHAPES["grouped"], "ragged", True, True, True, 3)
    first, second = (
        outputs_and_gradients(relative_attention, inputs, clip=2, backend=backend, **options) for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_both_ways_of_summing_by_label_agree():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=generator)
    slot = torch.randint(0, 4, pairs.shape, generator=generator)
    assert error(sum_by_label_in_passes(pairs, slot, 4), sum_by_label(pairs, slot, 4)) < 1e-14
    assert error(sum_by_label(pairs, slot, 4).sum(-1), pairs.sum(-1)) < 1e-14
