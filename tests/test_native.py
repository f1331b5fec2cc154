"""The compiled kernels where `test_backends.py` does not reach: many tiles, levels of processor, dropout, memory."""

import ctypes
import itertools
import platform
import shutil
import subprocess
from functools import partial

import pytest
import torch

from benchmarks import errors
from benchmarks.peers import Case
from relattn import backends, relation_attention, relative_attention
from relattn.backends import native
from relattn.backends.native import library, operators
from relattn.call import Call
from relattn.testing import Shape, assert_within_budget, equations_keeping, error, make_inputs, outputs_and_gradients

LEVELS = {"AVX512": ["x86-64-v3", "x86-64-v4"], "AVX2": ["x86-64-v3"]}
HERE = LEVELS.get(torch.backends.cpu.get_cpu_capability(), [platform.machine()])
EXACT = [torch.float32, torch.float64]

# tiles are 64 × 64 and a task has 512 queries; dimensions are no multiples of a vector
SHAPES = {
    "two tiles": Shape(batch=2, heads=2, key_heads=2, queries=70, keys=70, dim=17, value_dim=19, left=16, right=16),
    "exact tiles": Shape(batch=1, heads=2, key_heads=2, queries=128, keys=128, dim=32, value_dim=16, left=7, right=8),
    "grouped": Shape(batch=2, heads=4, key_heads=2, queries=67, keys=131, dim=8, value_dim=24, left=5, right=0),
    "wide window": Shape(batch=1, heads=1, key_heads=1, queries=200, keys=200, dim=5, value_dim=7, left=90, right=70),
    "one label": Shape(batch=1, heads=2, key_heads=1, queries=130, keys=66, dim=5, value_dim=7, left=0, right=0),
    "three queries": Shape(batch=2, heads=2, key_heads=1, queries=3, keys=140, dim=33, value_dim=16, left=9, right=2),
    "two tasks": Shape(batch=1, heads=1, key_heads=1, queries=530, keys=40, dim=3, value_dim=2, left=3, right=30),
}


@pytest.fixture
def _poison():
    """Memory that PyTorch hands out uninitialised holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=HERE)
def level(request, monkeypatch):
    kernels, missing = library.load_all(request.param)
    assert missing == {}
    monkeypatch.setattr(library, "KERNELS", kernels)


def test_the_kernels_are_compiled_where_tests_run():
    assert library.MISSING == {}
    assert native.installed() == f"compiled for {HERE[-1]}"


@pytest.mark.usefixtures("_poison", "level")
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("masks", list(itertools.product([False, True], repeat=3)))
def test_tiles_are_the_equations(shape, beyond, masks, dtype):
    sizes = SHAPES[shape]
    causal, lengths, mask = masks
    generator = torch.Generator().manual_seed(1)
    options = {"is_causal": causal, "query_offset": sizes.keys - sizes.queries}
    if lengths:
        options["key_lengths"] = torch.tensor([sizes.keys - 9, 3])[: sizes.batch]
        options["query_lengths"] = torch.tensor([max(sizes.queries - 65, 2), 1])[: sizes.batch]
        options["query_offset"] = torch.tensor([-3, 40])[: sizes.batch]
    if mask:
        options["mask"] = torch.rand(1, sizes.heads, sizes.queries, sizes.keys, generator=generator) < 0.6
    inputs = make_inputs(sizes, dtype=dtype, per_head=mask)
    assert_within_budget(relative_attention, inputs, "native", clip=(sizes.left, sizes.right), beyond=beyond, **options)


@pytest.mark.usefixtures("_poison", "level")
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_tiles_of_relations_are_the_equations(kind, dtype):
    sizes = SHAPES["grouped"]
    inputs = make_inputs(sizes, dtype=dtype)
    relations = torch.randint(-1, sizes.labels, (2, 1, 67, 131), generator=torch.Generator().manual_seed(2)).to(kind)
    assert_within_budget(relation_attention, inputs, "native", relations=relations, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_lose_no_more_than_the_reference(dtype):
    inputs = make_inputs(SHAPES["two tiles"], dtype=dtype)
    assert_within_budget(relative_attention, inputs, "native", clip=16, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_lose_no_more_than_twice_what_plain_attention_loses(dtype):
    case = Case(batch=1, heads=2, n=1024, dim=64, left=16, right=16, is_causal=True, dtype=dtype)
    ratios = {row["result"]: row["ratio"] for row in errors.rows("native", case)}
    assert len(ratios) == 6
    assert max(ratios.values()) < errors.LIMIT, ratios


@pytest.mark.parametrize("n", [70, 530])
def test_rows_with_gaps_are_worked_on_where_they_lie_or_gathered(n):
    shape = Shape(batch=2, heads=2, key_heads=2, queries=n, keys=n, dim=32, value_dim=48, left=3, right=3)
    inputs = make_inputs(shape, dtype=torch.float32)
    want = outputs_and_gradients(relative_attention, inputs, clip=3, backend="native")
    gaps = {name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x for name, x in inputs.items()}
    got = outputs_and_gradients(relative_attention, gaps, clip=3, backend="native")
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_mask_may_be_broadcast_along_anything():
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    for sizes in ((70, 1), (1, 70), (2, 1, 1, 70), (2, 1, 70, 1), (70,)):
        mask = torch.rand(sizes, generator=torch.Generator().manual_seed(1)) < 0.7
        assert_within_budget(relative_attention, inputs, "native", clip=16, mask=mask)


def test_the_number_of_threads_changes_no_bit():
    inputs = make_inputs(SHAPES["grouped"], dtype=torch.float32)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(outputs_and_gradients(relative_attention, inputs, clip=(5, 0), backend="native"))
    torch.set_num_threads(threads)
    assert all(torch.equal(results[0][name], other[name]) for other in results[1:] for name in other)


def kept_by(n: int, dropout_p: float, seed: int) -> torch.Tensor:
    """The pairs (2, 3, n, n) that a call keeps, read off its output: equal scores, and values that spell the keys."""
    zeros, spelling = torch.zeros(2, 3, n, 4), torch.eye(n).expand(2, 3, n, n)
    torch.manual_seed(seed)
    return relative_attention(zeros, zeros, spelling, clip=2, dropout_p=dropout_p, backend="native") > 0


def test_dropout_is_the_explicit_formula_both_ways():
    """The same pairs are dropped on the way back, for values and aV alike; scores keep the undropped softmax."""
    n, dropout_p = 70, 0.4
    sizes = Shape(batch=2, heads=3, key_heads=3, queries=n, keys=n, dim=17, value_dim=19, left=3, right=3)
    exact = make_inputs(sizes)
    inputs = {name: x.float() for name, x in exact.items()}
    kept = kept_by(n, dropout_p, seed=5)
    assert 0.58 < kept.double().mean() < 0.62

    def native_way(**given):
        torch.manual_seed(5)
        return relative_attention(**given, clip=3, dropout_p=dropout_p, backend="native")

    want = outputs_and_gradients(partial(equations_keeping, kept), exact, clip=3, dropout_p=dropout_p)
    got = outputs_and_gradients(native_way, inputs)
    largest = max(float(x.abs().max()) for x in want.values())
    assert all(error(got[name], want[name]) < 8 * torch.finfo(torch.float32).eps * largest for name in want)


def test_dropout_draws_anew_for_every_row_head_sequence_and_call():
    kept = kept_by(64, 0.5, seed=0)
    assert torch.equal(kept, kept_by(64, 0.5, seed=0))
    rows = torch.cat([kept.flatten(0, 2), kept_by(64, 0.5, seed=1).flatten(0, 2)]).double() - 0.5
    # 768 rows of 64 fair coins: agreements of two of them are within 7 deviations of none
    correlation = (rows @ rows.mT / 16 - torch.eye(len(rows), dtype=torch.float64)).abs()
    assert correlation.max() < 7 / 64**0.5
    assert (kept.double().mean((0, 1, 2)) - 0.5).abs().max() < 5 * 0.5 / 384**0.5


@pytest.mark.parametrize("name", ["query", "key", "value", "rel_key"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_as_in_plain_attention(name, number):
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    inputs[name].view(-1)[5] = number
    want = relative_attention(**inputs, clip=16, backend="reference")
    got = relative_attention(**inputs, clip=16, backend="native")
    assert torch.equal(got.isnan(), want.isnan())
    outputs_and_gradients(relative_attention, inputs, clip=16, backend="native")


def test_labels_out_of_range_are_no_term_where_nobody_looks():
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    relations = torch.randint(-1, 33, (1, 1, 70, 70), generator=torch.Generator().manual_seed(0))
    wild = relations.masked_fill(relations < 0, 10**12)
    want = relation_attention(**inputs, relations=relations, backend="native")
    assert torch.equal(relation_attention(**inputs, relations=wild, backend="native", check=False), want)


def arguments(**changes):
    given = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    leaves = [x.requires_grad_() for x in given.values()]
    rest = {
        "relations": None,
        "offsets": torch.zeros(2, dtype=torch.int64),
        "lengths": None,
        "mask": None,
        "seed": None,
        "offset": 0,
        "left": 16,
        "right": 16,
        "clips": True,
        "is_causal": True,
        "dropout_p": 0.0,
        "scale": 0.25,
    }
    return (*leaves, *{**rest, **changes}.values())


@pytest.mark.parametrize(
    "changes",
    [{}, {"seed": torch.tensor(3), "dropout_p": 0.2}, {"mask": torch.ones(1, 1, 70, 70).bool()}],
    ids=["plain", "dropout", "mask"],
)
def test_the_operators_pass_opcheck(changes):
    torch.library.opcheck(operators.attention, arguments(**changes))
    inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments(**changes)]
    results = operators.attention(*inputs)
    torch.library.opcheck(operators.attention_backward, (torch.ones_like(results[0]), *results, *inputs))


def test_refusals_say_why(monkeypatch):
    inputs = make_inputs(SHAPES["two tiles"])
    with pytest.raises(ValueError, match=r"native: query has type torch.float64.*use dense"):
        relative_attention(**inputs, clip=16, backend="native")
    elsewhere = SimpleNamespace(query=torch.empty(1, device="meta"))
    assert native.unsupported(elsewhere) == "query is on meta, and these kernels are for CPUs; use dense"
    monkeypatch.setattr(library, "MISSING", "its kernels were not compiled")
    single = {name: x.float() for name, x in inputs.items()}
    with pytest.raises(ValueError, match="native: its kernels were not compiled"):
        relative_attention(**single, clip=16, backend="native")
    assert relative_attention(**single, clip=16).shape == (2, 2, 70, 19)
    with pytest.raises(OSError, match="attention-z80"):
        library.load("z80")
