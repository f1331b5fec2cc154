"""The compiled kernels where `test_backends.py` does not reach: many tiles, levels of processor, dropout, memory."""

import ctypes
import itertools
import shutil
import subprocess
from functools import partial

import pytest
import torch

import hatch_build
from benchmarks import errors
from benchmarks.peers import Case
from relattn import relation_attention, relative_attention
from relattn.backends import native
from relattn.backends.autograd import INPUTS
from relattn.backends.native import levels, library, operators
from relattn.call import Call
from tests.support.numerics import (
    Shape,
    assert_within_budget,
    equations_keeping,
    error,
    make_inputs,
    measured,
    outputs_and_gradients,
)

pytestmark = pytest.mark.sampled(16)

EXACT = [torch.float32, torch.float64]

# tiles are 64 × 64 and a task has 512 queries; dimensions are no multiples of a vector
SHAPES = {
    "two tiles": Shape(batch=2, heads=2, key_heads=2, queries=70, keys=70, dim=17, value_dim=19, left=16, right=16),
    "exact tiles": Shape(batch=1, heads=2, key_heads=2, queries=128, keys=128, dim=32, value_dim=16, left=7, right=8),
    "grouped": Shape(batch=2, heads=4, key_heads=2, queries=67, keys=131, dim=8, value_dim=24, left=5, right=0),
    "wide clip": Shape(batch=1, heads=1, key_heads=1, queries=200, keys=200, dim=5, value_dim=7, left=90, right=70),
    "one label": Shape(batch=1, heads=2, key_heads=1, queries=130, keys=66, dim=5, value_dim=7, left=0, right=0),
    "three queries": Shape(batch=2, heads=2, key_heads=1, queries=3, keys=140, dim=33, value_dim=16, left=9, right=2),
    "every distance": Shape(
        batch=2, heads=2, key_heads=1, queries=150, keys=150, dim=19, value_dim=5, left=149, right=149
    ),
    "two tasks of every distance": Shape(
        batch=1, heads=1, key_heads=1, queries=550, keys=560, dim=3, value_dim=2, left=559, right=549
    ),
    "two tasks": Shape(batch=1, heads=1, key_heads=1, queries=530, keys=40, dim=3, value_dim=2, left=3, right=30),
}


@pytest.fixture
def _poison():
    """Memory that PyTorch hands out uninitialised holds NaN, and the kernels' own, by glibc, 3e38."""
    perturb = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: None)
    torch.use_deterministic_algorithms(True)
    perturb(-6, 0x80)  # M_PERTURB: bytes of 0x7f
    yield
    perturb(-6, 0)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=library.SUPPORTED["float32"])
def level(request, monkeypatch):
    kernels, missing = library.load_all({number: [request.param] for number in levels.EXACT} | {"bfloat16": []})
    assert missing == {}
    monkeypatch.setattr(library, "KERNELS", kernels)


def test_the_kernels_are_compiled_where_tests_run():
    assert library.MISSING == {}
    best = {number: library.SUPPORTED[number][:1] for number in ("float32", "bfloat16")}
    words = zip(("compiled", "bfloat16"), best.values(), strict=True)
    said = [f"{word} for {level}" for word, found in words for level in found]  # none for bfloat16 on most processors
    assert native.installation() == "; ".join(said)


@pytest.mark.sampled(63)
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
    inputs = make_inputs(sizes, dtype=dtype, per_head=mask, rel_dim=17 if causal == lengths else None)
    assert_within_budget(relative_attention, inputs, "native", clip=(sizes.left, sizes.right), beyond=beyond, **options)


@pytest.mark.usefixtures("_poison", "level")
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_tiles_of_relations_are_the_equations(kind, dtype):
    sizes = SHAPES["grouped"]
    inputs = make_inputs(sizes, dtype=dtype)
    relations = torch.randint(-1, sizes.labels, (2, 1, 67, 131), generator=torch.Generator().manual_seed(2)).to(kind)
    assert_within_budget(relation_attention, inputs, "native", relations=relations, is_causal=True)


@pytest.fixture(params=["float32", *library.SUPPORTED["bfloat16"]])
def products(request, monkeypatch):
    """By what bfloat16 is multiplied: as float32, or by instructions of the processor's own."""
    kernels = {real: library.KERNELS[real] for real in EXACT}
    if request.param != "float32":
        kernels[torch.bfloat16] = library.load(request.param, torch.bfloat16)
    monkeypatch.setattr(library, "KERNELS", kernels)


@pytest.mark.usefixtures("_poison", "products")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rel_dim", [None, 7])
def test_tiles_of_bfloat16_lose_no_more_than_the_reference(shape, rel_dim):
    sizes = SHAPES[shape]
    options = {"query_offset": sizes.keys - sizes.queries, "clip": (sizes.left, sizes.right)}
    inputs = make_inputs(sizes, dtype=torch.bfloat16, rel_dim=rel_dim)
    assert_within_budget(relative_attention, inputs, "native", **options)
    mask = torch.rand(1, sizes.heads, sizes.queries, sizes.keys, generator=torch.Generator().manual_seed(1)) < 0.6
    lengths = {"key_lengths": torch.tensor([sizes.keys - 9, 3])[: sizes.batch], "query_offset": -3}
    options |= {"mask": mask, "is_causal": True, "beyond": "zero", **lengths}
    assert_within_budget(relative_attention, inputs, "native", **options)
    some = {"query_lengths": torch.tensor([sizes.queries // 2, 3])[: sizes.batch], "query_offset": 0}
    assert_within_budget(relative_attention, inputs, "native", **{**options, "mask": None, **some})  # keys unseen


def test_float16_loses_no_more_than_the_reference():
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float16)
    assert_within_budget(relative_attention, inputs, "native", clip=16, is_causal=True)


def test_each_way_to_multiply_bfloat16_is_taken_where_it_is_asked_for():
    """Their sums are rounded each in its own way."""
    inputs = make_inputs(SHAPES["exact tiles"], dtype=torch.bfloat16)
    ways = {}
    for level in ("float32", *library.SUPPORTED["bfloat16"]):
        real = torch.float32 if level == "float32" else torch.bfloat16
        kernels = library.KERNELS[real] if level == "float32" else library.load(level, real)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "KERNELS", {torch.float32: kernels, torch.bfloat16: kernels})
            got = outputs_and_gradients(relative_attention, inputs, clip=(7, 8), backend="native")
        ways[level] = torch.cat([got[name].flatten() for name in ("d query", "d key", "d value")])
    assert all(not torch.equal(ways[a], ways[b]) for a, b in itertools.combinations(ways, 2) if "float32" in (a, b))


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_lose_no_more_than_twice_what_plain_attention_loses(dtype, causal):
    case = Case(batch=1, heads=2, n=1024, dim=64, left=16, right=16, is_causal=causal, dtype=dtype)
    ratios = {row["result"]: row["ratio"] for row in errors.rows("native", case)}
    assert len(ratios) == 6
    assert max(ratios.values()) < errors.LIMIT, ratios


@pytest.mark.parametrize(("offset", "clip"), [(1984, (1, 64)), (0, (64, 1))])
def test_rounding_does_not_gather_on_either_edge(offset, clip):
    """What a row's dS add up to is taken from its labels where one edge or the other has most of its keys: the error of
    the queries' gradient is a hundredth of what is allowed, and ten times that without."""
    left, right = clip
    sizes = Shape(batch=1, heads=2, key_heads=2, queries=64, keys=2048, dim=16, value_dim=16, left=left, right=right)
    inputs = make_inputs(sizes, dtype=torch.float32)
    inputs["query"] = inputs["query"] * 0.3
    off, allowed = measured(relative_attention, inputs, "native", clip=clip, query_offset=offset)["d query"]
    assert off < 0.05 * allowed


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


WITHOUT_A_POOL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

int started, most;

static int start(pthread_t *new, const pthread_attr_t *how, void *(*worker)(void *), void *data) {
    return started < most ? started++, pthread_create(new, how, worker, data) : 11;
}

#define dlsym(where, name) NULL
#define pthread_create start
#include "kernels.c"
"""


@pytest.fixture(scope="module")
def without_a_pool(tmp_path_factory):
    """The kernels as they are where no pool of threads is found; `most` is how many threads there are to be had."""
    level = library.SUPPORTED["float32"][0]
    folder = tmp_path_factory.mktemp("kernels") / "native"
    shutil.copytree(library.HERE, folder, ignore=shutil.ignore_patterns("*.so"))
    (folder / "attention.c").rename(folder / "kernels.c")
    (folder / "attention.c").write_text(WITHOUT_A_POOL, encoding="utf-8")
    command = hatch_build.commands(folder, hatch_build.at_hand())[folder / f"attention-{level}-float32.so"]
    subprocess.run(command, cwd=folder, check=True)
    return library.load(level, torch.float32, folder)


@pytest.mark.whole
@pytest.mark.parametrize(("most", "started"), [(9, 2), (1, 1), (0, 0)])
def test_where_there_is_no_pool_kernels_run_on_as_many_new_threads_as_there_are(
    most, started, without_a_pool, monkeypatch
):
    monkeypatch.setitem(library.KERNELS, torch.float32, without_a_pool)
    inputs = make_inputs(SHAPES["grouped"], dtype=torch.float32)
    want = outputs_and_gradients(relative_attention, inputs, clip=(5, 0), backend="native")
    count = ctypes.c_int.in_dll(without_a_pool.library, "started")
    ctypes.c_int.in_dll(without_a_pool.library, "most").value = most
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        count.value = 0
        relative_attention(**inputs, clip=(5, 0), backend="native")
        assert count.value == started
        count.value = 0
        got = outputs_and_gradients(relative_attention, inputs, clip=(5, 0), backend="native")
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(got[name], want[name]) for name in want)


def kept_by(n: int, dropout_p: float, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The pairs (2, 3, n, n) that a call keeps, read off its output: equal scores, and values that spell the keys."""
    zeros, spelling = torch.zeros(2, 3, n, 4, dtype=dtype), torch.eye(n, dtype=dtype).expand(2, 3, n, n)
    torch.manual_seed(seed)
    return relative_attention(zeros, zeros, spelling, clip=2, dropout_p=dropout_p, backend="native") > 0


def test_dropout_is_the_explicit_formula_both_ways():
    """The same pairs are dropped backward, for values and aV alike; scores keep the undropped softmax."""
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


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 1.0])
def test_dropout_draws_the_same_in_either_precision(dropout_p):
    kept = kept_by(70, dropout_p, seed=3)
    assert torch.equal(kept, kept_by(70, dropout_p, seed=3, dtype=torch.float64))
    assert abs(kept.double().mean() - (1.0 - dropout_p)) < 0.02


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


def call(
    shape: Shape = SHAPES["two tiles"], dtype: torch.dtype = torch.float32, per_head=False, rel_dim=None, **changes
) -> Call:
    inputs = make_inputs(shape, dtype=dtype, per_head=per_head, rel_dim=rel_dim)
    return Call(**inputs, **{"left": shape.left, "right": shape.right, "scale": 0.25, **changes})


GENERATOR = torch.Generator().manual_seed(4)
OPTIONS = {
    "plain": {},
    "tables per head": {"per_head": True, "clips": False},
    "causal": {"is_causal": True, "query_offset": 2},
    "lengths": {
        "query_offsets": torch.tensor([2, -1]),
        "key_lengths": torch.tensor([7, 4]),
        "query_lengths": torch.tensor([5, 3], dtype=torch.int16),
    },
    "mask": {"mask": torch.rand(2, 1, 5, 7, generator=GENERATOR) < 0.6},
    "relations": {"relations": torch.randint(-1, 4, (1, 2, 5, 7), generator=GENERATOR)},
    "dropout": {"dropout_p": 0.4, "seed": torch.tensor(3)},
    "a query of its own": {"rel_dim": 4, "is_causal": True},
}
FEW = Shape(batch=2, heads=2, key_heads=1, queries=5, keys=7, dim=3, value_dim=2, left=2, right=1)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_limits_of_differences(options):
    given = call(FEW, torch.float64, **OPTIONS[options])
    inputs = given[: INPUTS if "rel_dim" in OPTIONS[options] else INPUTS - 1]
    leaves, rest = [x.requires_grad_() for x in inputs], given[len(inputs) :]
    assert torch.autograd.gradcheck(lambda *tensors: operators.attention(*tensors, *rest)[0], leaves)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_operators_pass_opcheck(options, dtype):
    given = call(FEW, dtype, **OPTIONS[options])
    results = operators.run(*given)
    torch.library.opcheck(operators.run, given)
    torch.library.opcheck(operators.run_backward, (torch.ones_like(results[0]), *results, *given))


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_positions_may_be_as_far_off_as_their_differences_fit_64_bits(side, is_causal):
    far, further = (operators.run(*call(query_offset=side * offset, is_causal=is_causal)) for offset in (10**6, 2**62))
    each = operators.run(*call(query_offsets=torch.tensor([side * 2**62] * 2), is_causal=is_causal))
    assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(far, further, each, strict=True))
    assert far[0].count_nonzero() == (0 if is_causal and side < 0 else far[0].numel())


DECLARED = """
typedef struct {
    void *data;
    idx batch, head; /* strides; int no[2]; */
} array;

typedef struct {
    array query, key;
    /* tables */
    const real *rel_key, *rel_value;
    real scale;
    uint64_t seed;
} arguments;
"""


def test_the_arguments_are_read_from_the_header():
    found = library.structures(DECLARED, ctypes.c_double)
    array, pointer = found["array"], ctypes.c_void_p
    assert array._fields_ == [("data", pointer), ("batch", ctypes.c_ssize_t), ("head", ctypes.c_ssize_t)]
    assert found["arguments"]._fields_ == [
        *(("query", array), ("key", array), ("rel_key", pointer), ("rel_value", pointer)),
        *(("scale", ctypes.c_double), ("seed", ctypes.c_uint64)),
    ]
    for line in ("idx no[2];", "unsigned idx no;", "idx one two;"):
        with pytest.raises(ValueError, match="must have fields"):
            library.structures(f"typedef struct {{ {line} }} array;", ctypes.c_float)


ASKING = """
#include <stdio.h>
#include "arguments.h"
#define PLACE(kind, field) printf(#kind "." #field " %zu %zu\\n", offsetof(kind, field), sizeof(((kind *)0)->field));
int main(void) {{ {places} }}
"""


def misplaced(kinds, real, folder):
    """Fields of structures, by name, that are not where C has them: (offset, size) in Python and in C."""
    fields = [(name, kind, field) for name, kind in kinds.items() for field, _ in kind._fields_]
    here = {f"{name}.{field}": (getattr(kind, field).offset, getattr(kind, field).size) for name, kind, field in fields}
    text = ASKING.format(places=" ".join(f"PLACE({name}, {field})" for name, _, field in fields))
    defines = hatch_build.DEFINES[library.name_of(real)]
    options = [*hatch_build.QUIET, *defines, f"-I{library.HERE}", "-x", "c", "-", "-o", folder / "asking"]
    subprocess.run([*hatch_build.compiler(), *options], input=text.encode(), check=True)
    lines = subprocess.run([folder / "asking"], capture_output=True, text=True, check=True).stdout.splitlines()
    there = {name: (int(offset), int(size)) for name, offset, size in map(str.split, lines)}
    assert len(there) == len(fields)
    return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


@pytest.mark.parametrize("real", EXACT)
def test_every_argument_lies_where_c_has_it(real, tmp_path):
    arguments = library.KERNELS[real].arguments
    kinds = {"arguments": arguments, "array": dict(arguments._fields_)["query"]}
    assert all(len(kind._fields_) > 3 for kind in kinds.values())
    assert misplaced(kinds, real, tmp_path) == {}


@pytest.mark.parametrize("real", EXACT)
def test_two_arguments_of_one_size_that_change_places_are_named(real, tmp_path):
    header = (library.HERE / "arguments.h").read_text(encoding="utf-8")
    for kind, (first, second) in {"arguments": ("queries", "keys"), "array": ("batch", "head")}.items():
        swapped = library.structures(header.replace(f"{first}, {second}", f"{second}, {first}"), library.REALS[real])
        wrong = misplaced({kind: swapped[kind]}, real, tmp_path)
        assert set(wrong) == {f"{kind}.{first}", f"{kind}.{second}"}


def test_a_tensor_whose_storage_was_freed_is_refused():
    """As after the forward of a module whose weights FSDP has freed: the kernel would read address zero."""
    x, freed = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="value must have memory"):
        relative_attention(x, x, freed, backend="native")
