"""The compiled kernels: sizes around the ends of tiles, processor levels, dropout, threads and memory."""

import ctypes
import functools
import platform
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from relattn import relation_attention, relative_attention
from relattn.backends import native, plans
from relattn.backends.native import library, loader
from relattn.call import Call

from kernels import build
from tests.support.calls import call_of, cases, name_of
from tests.support.covering import pairwise
from tests.support.levels import allowed_levels
from tests.support.numerics import (
    Shape,
    assert_close,
    assert_within_budget,
    budgets,
    convert,
    kept_pairs,
    make_inputs,
    measured,
    nan_in_new_memory,
    outputs_and_gradients,
)

# A tile is 64 × 64 and a task has 512 queries; up to 3 queries take another way; arrays whose rows are a multiple of 16
# numbers are used in place; 16n + 1 labels are one more than a product computes. The rows of a table that one task has
# loaded may serve the next task. A thread takes several of many short tasks, and may find fewer at the end.
SHAPES = {
    "two tiles": Shape(batch=2, heads=2, key_heads=2, queries=70, keys=70, dim=17, value_dim=19, left=16, right=16),
    "exact tiles": Shape(batch=1, heads=2, key_heads=2, queries=128, keys=128, dim=32, value_dim=16, left=7, right=8),
    "grouped": Shape(batch=2, heads=4, key_heads=2, queries=67, keys=131, dim=8, value_dim=24, left=5, right=0),
    "wide clip": Shape(batch=1, heads=1, key_heads=1, queries=200, keys=200, dim=5, value_dim=7, left=90, right=70),
    "one label": Shape(batch=1, heads=2, key_heads=1, queries=130, keys=66, dim=5, value_dim=7, left=0, right=0),
    "three queries": Shape(batch=2, heads=2, key_heads=1, queries=3, keys=140, dim=33, value_dim=16, left=9, right=2),
    "all distances": Shape(2, 2, 1, queries=150, keys=150, dim=19, value_dim=5, left=149, right=149),
    "two tasks": Shape(batch=1, heads=1, key_heads=1, queries=530, keys=40, dim=3, value_dim=2, left=3, right=30),
    "many sequences": Shape(batch=13, heads=5, key_heads=1, queries=5, keys=6, dim=3, value_dim=2, left=2, right=3),
    "two tasks, all distances": Shape(1, 1, 1, queries=1040, keys=70, dim=3, value_dim=2, left=1200, right=69),
}
CASES = cases(2, seed=1, shape=list(SHAPES), has_pos_query=[False, True], bias=[False, True])
# Rows without relations, masks, dropout and padding have their own code: all pairs of a tile may be beyond an edge.
CASES += cases(2, shape=["exact tiles", "grouped"], labels=["clip", "zero"], lengths=["none"], mask=[False])
VALUES = allowed_levels()[::-1]  # of RELATTN_LEVEL, best first
EXACT = [value for value in VALUES if value in ("avx512", "avx2", "sve256", "default")]
PAIRS = [value for value in VALUES if value in ("amx", "avx512_bf16")]
BUILDS = [(level, dtype) for level in EXACT for dtype in (torch.float32, torch.float64)]
BUILDS += [(level, torch.bfloat16) for level in (*EXACT[:1], *PAIRS)]  # bfloat16 computed in float32, and in pairs


def kernels_of(level: str) -> dict[torch.dtype, loader.Kernels]:
    """Return the kernels of one processor level, the best for the dtypes that it lacks."""
    if level in PAIRS:
        return {**kernels_of(EXACT[0]), torch.bfloat16: library.load(torch.bfloat16, level)}
    return {dtype: library.load(dtype, level) for dtype in (torch.float32, torch.float64)}


@pytest.fixture
def level(request, monkeypatch):
    monkeypatch.setattr(library, "KERNELS", kernels_of(request.param))
    monkeypatch.setattr(plans, "PLANS", {})  # plans hold kernels
    return request.param


@functools.cache
def prepared(number: int, dtype: torch.dtype):
    case = CASES[number]
    operator, inputs, options = call_of(case, SHAPES[case["shape"]], dtype)
    return operator, inputs, {**options, "budget": budgets(operator, inputs, **options)}


def test_kernels_are_compiled_where_tests_run():
    assert library.MISSING == {}
    names = {"default": "plain" if platform.machine() == "x86_64" else "neon"}
    best = [f"compiled for {names.get(EXACT[0], EXACT[0])}", *(f"bfloat16 for {level}" for level in PAIRS[:1])]
    assert native.installation() == "; ".join(best)


TILES = [  # the best level computes all cases in float32, and every other kernel a third of them
    pytest.param(number, level, dtype, id=f"{name_of(case)}-{level}-{dtype}")
    for number, case in enumerate(CASES)
    for build, (level, dtype) in enumerate(BUILDS)
    if build == 0 or (number + build) % 3 == 0
]


@pytest.mark.parametrize(("number", "level", "dtype"), TILES, indirect=["level"])
def test_tiles_equal_the_reference(number, level, dtype):
    operator, inputs, options = prepared(number, dtype)
    with nan_in_new_memory():
        assert_within_budget(operator, inputs, "native", **options)


@pairwise(
    queries=[1, 3, 4, 64, 65], keys=[15, 17, 64, 65, 129], offset=[-65, -1, 0, 62, 63, 64],
    clip=[(0, 0), (7, 7), (8, 8), (63, 1), (1, 64)], is_causal=[False, True],
)  # fmt: skip
def test_sizes_around_the_ends_of_vectors_and_tiles(queries, keys, offset, clip, is_causal):
    shape = Shape(2, 2, 1, queries, keys, dim=15, value_dim=17, left=clip[0], right=clip[1])
    inputs = make_inputs(shape, dtype=torch.float32)
    options = {"clip": clip, "query_offset": offset, "is_causal": is_causal}
    with nan_in_new_memory():
        assert_within_budget(relative_attention, inputs, "native", **options)


@pytest.mark.parametrize(("level", "dtype"), BUILDS, indirect=["level"], ids=str)
def test_scores_that_rise_and_fall_from_tile_to_tile_equal_the_reference(level, dtype):
    """Sums are scaled down where a tile has a score that is far above all before it; here by 2^40 at most."""
    inputs = make_inputs(Shape(1, 2, 2, queries=70, keys=200, dim=17, value_dim=19, left=16, right=16), dtype=dtype)
    slope = torch.linspace(-30.0, 30.0, 200).to(dtype)
    inputs["query"][..., 0] = 17**0.5
    inputs["key"][0, :, :, 0] = torch.stack([slope, -slope])
    with nan_in_new_memory():
        assert_within_budget(relative_attention, inputs, "native", clip=16, query_offset=65)


@pytest.mark.parametrize("level", [*EXACT, *PAIRS], indirect=True)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_to_the_nearest_number(level, dtype):
    value = torch.randn(2, 3, 2, 17, generator=torch.Generator().manual_seed(1)).to(dtype)
    zeros = torch.zeros_like(value)
    mean = (value.double().sum(2, keepdim=True) / 2).to(dtype).expand(value.shape)  # of two values: exact in float32
    assert torch.equal(relative_attention(zeros, zeros, value, backend="native"), mean)


def test_bfloat16_is_multiplied_by_the_instructions_of_its_level():
    """Sums are rounded differently by each."""
    inputs = make_inputs(SHAPES["exact tiles"], dtype=torch.bfloat16)
    results = []
    for level in (EXACT[0], *PAIRS[:1]):
        with mock.patch.object(library, "KERNELS", kernels_of(level)), mock.patch.object(plans, "PLANS", {}):
            results.append(outputs_and_gradients(relative_attention, inputs, clip=(7, 8), backend="native")["d key"])
    assert all(not torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize(("dtype", "is_causal"), [(torch.float32, False), (torch.bfloat16, True)])
def test_long_sequences_lose_at_most_twice_what_plain_attention_loses(dtype, is_causal):
    inputs = make_inputs(Shape(1, 2, 2, 1024, 1024, dim=64, value_dim=64, left=16, right=16), dtype=dtype)

    def plain(query, key, value, return_lse, backend):
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal), torch.ones(1)

    def relative_errors(attend, inputs, **options):
        exact = outputs_and_gradients(attend, convert(inputs, torch.float64), backend="dense", **options)
        got = outputs_and_gradients(attend, inputs, backend="native", **options)
        return {name: float((got[name].double() - x).norm() / x.norm()) for name, x in exact.items()}

    allowed = relative_errors(plain, {name: inputs[name] for name in ("query", "key", "value")})
    errors = relative_errors(relative_attention, inputs, clip=16, is_causal=is_causal)
    errors.pop("lse")
    assert all(off < 2 * allowed.get(name, max(allowed.values())) for name, off in errors.items()), (errors, allowed)


@pytest.mark.parametrize(("offset", "clip"), [(1984, (1, 64)), (0, (64, 1))])
def test_rounding_does_not_accumulate_on_the_label_of_an_edge(offset, clip):
    """The sum of a row's dS is subtracted from its labels. Otherwise the error is ten times as large."""
    shape = Shape(1, 2, 2, queries=64, keys=2048, dim=16, value_dim=16, left=clip[0], right=clip[1])
    inputs = make_inputs(shape, dtype=torch.float32)
    inputs["query"] = inputs["query"] * 0.3
    off, allowed = measured(relative_attention, inputs, "native", clip=clip, query_offset=offset)["d query"]
    assert off < 0.05 * allowed


@pytest.mark.parametrize("n", [70, 530])  # beyond 512 keys, rows with gaps between them are copied
def test_gaps_between_rows_change_nothing(n):
    inputs = make_inputs(Shape(2, 2, 2, n, n, dim=32, value_dim=48, left=3, right=3), dtype=torch.float32)
    want = outputs_and_gradients(relative_attention, inputs, clip=3, backend="native")
    gaps = {name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x for name, x in inputs.items()}
    got = outputs_and_gradients(relative_attention, gaps, clip=3, backend="native")
    assert all(torch.equal(got[name], want[name]) for name in want)


WITHOUT_POOL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

__attribute__((visibility("default"))) int started, most;

static int start(pthread_t *new, const pthread_attr_t *how, void *(*worker)(void *), void *data) {
    return started < most ? started++, pthread_create(new, how, worker, data) : 11;
}

#define dlsym(where, name) NULL
#define pthread_create start
#include "pool.c"
"""  # the kernels where there is no pool of threads and the system starts at most `most`


def test_threads_change_nothing(tmp_path, monkeypatch):
    """PyTorch's pool of threads, and threads of the call's own, as many as the system starts."""
    monkeypatch.setattr(build, "SOURCES", shutil.copytree(build.SOURCES, tmp_path / "kernels"))
    (build.SOURCES / "simd/threads.c").rename(build.SOURCES / "simd/pool.c")
    (build.SOURCES / "simd/threads.c").write_text(WITHOUT_POOL, encoding="utf-8")
    table = (build.SOURCES / "levels.h").read_text(encoding="utf-8")
    lines = [line for line in table.splitlines() if not line.startswith("X86_64") or "plain" in line]
    (build.SOURCES / "levels.h").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-O0"])
    assert build.build(build.ATTENTION._replace(dtypes=["float32"]), build.host_target(), tmp_path) == []
    without_pool = library.load(torch.float32, "default", tmp_path)
    native_library = ctypes.CDLL(str(tmp_path / "relattn.so"))
    started, most = (ctypes.c_int.in_dll(native_library, name) for name in ("started", "most"))

    inputs = make_inputs(SHAPES["grouped"], dtype=torch.float32)
    run = functools.partial(outputs_and_gradients, relative_attention, inputs, clip=(5, 0), backend="native")
    want, results, threads = run(), [], torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        got = run()
        monkeypatch.setitem(library.KERNELS, torch.float32, without_pool)
        monkeypatch.setattr(plans, "PLANS", {})
        for most.value, expected in ((9, 4), (1, 1), (0, 0)):  # two new threads forward, two backward
            started.value = 0
            results.append(run())
            assert started.value == expected
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert all(torch.equal(other[name], results[0][name]) for other in results[1:] for name in want)
    torch.testing.assert_close(results[0], want)


FORKS = """
import os, signal, threading, torch
import torch.nn.functional as F
from relattn import relative_attention

def attend():
    x, table = torch.ones(2, 8, 70, 32, requires_grad=True), torch.ones(33, 32, requires_grad=True)
    output = relative_attention(x, x, x, table, table, backend="native")
    return torch.stack([output, *torch.autograd.grad(output, x, x)])

def plain():
    return F.scaled_dot_product_attention(*torch.ones(3, 2, 8, 70, 32))

def fork(generations):
    child = os.fork()
    if child > 0:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(20)
    torch.testing.assert_close(attend(), want)
    os._exit(fork(generations - 1) if generations > 1 else 0)

def status_after(before):
    # Return the exit code of forks after a call, in a process that has used one thread so far.
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        before()
        os._exit(fork(2))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

torch.set_num_threads(1)
want = attend()
statuses = [status_after(before) for before in (attend, plain, threading.Thread(target=attend).start)]
assert statuses == [0, 0, 0], statuses
"""


def test_a_fork_after_calls_with_two_threads_can_attend():
    """Threads do not survive a fork."""
    subprocess.run([sys.executable, "-c", FORKS], check=True)


def test_dropout_keeps_the_same_pairs_at_every_level_and_in_every_dtype():
    kept = []
    for level, dtype in BUILDS:

        def attend(**inputs):
            torch.manual_seed(3)
            return relative_attention(**inputs, clip=16, dropout_p=0.3, backend="native")

        with mock.patch.object(library, "KERNELS", kernels_of(level)), mock.patch.object(plans, "PLANS", {}):
            kept.append(kept_pairs(attend, make_inputs(SHAPES["two tiles"], dtype=dtype)))
    assert all(torch.equal(other, kept[0]) for other in kept)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_nan_and_infinity_spread_as_in_plain_attention(number):
    for name in ("query", "key", "value", "rel_key"):
        inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
        inputs[name].view(-1)[5] = number
        want = relative_attention(**inputs, clip=16, backend="reference")
        got = outputs_and_gradients(relative_attention, inputs, clip=16, backend="native")["output"]
        assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize(("level", "dtype"), [*BUILDS, (EXACT[0], torch.float16)], indirect=["level"], ids=str)
def test_biases_of_the_largest_numbers_equal_the_reference(level, dtype):
    """Models hide pairs by the smallest number of a dtype. Where that hides all pairs of a query, the softmax ignores
    scores that are lost in the sum."""
    inputs = make_inputs(SHAPES["two tiles"], tables="neither", dtype=dtype)
    bias = torch.zeros(2, 70, 70, dtype=dtype)
    bias[0, :35] = bias[0, 50:, 30:] = bias[1, 3:] = torch.finfo(dtype).min
    bias[0, 40, 69] = torch.finfo(dtype).max
    bias[1, 5] = -torch.inf
    inputs["bias"] = bias
    got, want = (outputs_and_gradients(relative_attention, inputs, backend=name) for name in ("native", "reference"))
    torch.testing.assert_close(got.pop("lse"), want.pop("lse"), rtol=0.01, atol=0.01)
    assert_close(got, want, ulps=30.0)


def test_labels_out_of_range_are_no_term_without_the_check():
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    relations = torch.randint(-1, 33, (1, 1, 70, 70), generator=torch.Generator().manual_seed(0))
    far = relations.masked_fill(relations < 0, 10**12)
    want = relation_attention(**inputs, relations=relations, backend="native")
    assert torch.equal(relation_attention(**inputs, relations=far, backend="native", check=False), want)


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [
        (torch.float64, {"window_left": 2, "window_right": 1}),
        (torch.bfloat16, {"window_left": 3, "window_right": 2, "chunk": 3}),
    ],
)
def test_operators_pass_opcheck(dtype, limits):
    """With all tensors. The second rel_query is that of a bias per label, a view of one number."""
    shape = Shape(batch=2, heads=2, key_heads=1, queries=5, keys=7, dim=3, value_dim=2, left=2, right=1)
    inputs = make_inputs(shape, rel_dim=4 if dtype == torch.float64 else 1, per_head=True, dtype=dtype)
    inputs["pos_query"] = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2)).to(dtype)
    if dtype == torch.bfloat16:
        inputs["rel_query"] = torch.full((1, 1, 1, 1), 4.0, dtype=dtype).expand(2, 2, 5, 1)
    inputs["bias"] = torch.zeros(1, 2, 5, 7, dtype=dtype)
    lengths = {"query_offsets": torch.tensor([2, -1]), "key_lengths": torch.tensor([7, 4])}
    options = {**lengths, **limits, "is_causal": True, "dropout_p": 0.4, "seed": torch.tensor(3)}
    options["has_bias_gradient"] = dtype == torch.float64
    call = Call(**inputs, left=2, right=1, scale=0.25, mask=torch.ones(2, 1, 5, 7, dtype=torch.bool), **options)
    results = torch.ops.relattn.native.default(*call)
    torch.library.opcheck(torch.ops.relattn.native.default, call)
    torch.library.opcheck(torch.ops.relattn.native_backward.default, (torch.ones_like(results[0]), *results, *call))


def test_memory_that_is_missing_is_an_error():
    x, freed = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    freed.untyped_storage().resize_(0)  # as after the forward pass of a module whose weights FSDP has freed
    with pytest.raises(RuntimeError, match="value must have memory"):
        relative_attention(x, x, freed, backend="native")
    endless = x[:, :, :1].expand(1, 2, 2**40, 4)
    with pytest.raises(MemoryError, match=f"got {2**40} keys"):
        relative_attention(x, endless, endless, backend="native")


def test_declarations_that_python_cannot_read_are_refused():
    for line in ("idx no[2];", "unsigned idx no;", "idx one two;"):
        with pytest.raises(ValueError, match="fields"):
            build.structures(f"typedef struct {{ {line} }} relattn_array;")


def test_few_queries_read_no_row_of_pos_query_beyond_the_range():
    """Keys to the right of the clipping range of a few queries, as in decoding, where tables end."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 7, generator=generator, dtype=torch.float64) for n in (2, 301, 301))
    pos_query = torch.randn(6, 7, generator=generator, dtype=torch.float64)[:4]
    options = {"pos_query": pos_query, "clip": (2, 1), "beyond": "zero", "query_offset": 0}
    results = [relative_attention(query, key, value, **options, backend=name) for name in ("native", "reference")]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pairwise(
    sizes=[((67, 1, 0, 64), 7, 5), ((3, 2, 3), 32, 16), ((31,), 16, 32), ((3, 517, 2), 1, 2)],
    key_heads=[1, 2], per_head=[0, 1], span=["all", "causal", "window", "chunk"],
)  # fmt: skip
def test_packed_sequences_of_any_lengths_equal_the_reference(sizes, key_heads, per_head, span):
    lengths, *dims = sizes
    length = sum(lengths)
    shape = Shape(1, 2, key_heads, length, length, *dims, left=7, right=11)
    inputs = make_inputs(shape, per_head=bool(per_head), rel_dim=dims[0] + 4)
    inputs["pos_query"] = inputs["rel_key"][..., : dims[0]].clone()
    options = {"all": {}, "causal": {"is_causal": True}, "window": {"window": (5, 70)}, "chunk": {"chunk": (19, 1)}}[
        span
    ]
    options |= {"clip": (7, 11), "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0)}
    budget = budgets(relative_attention, inputs, **options)
    assert_within_budget(relative_attention, inputs, "native", budget=budget, **options)


@pairwise(dtype=[torch.float32, torch.bfloat16], dropout_p=[0.0, 0.3], threads=[1, 2], dim=[7, 16])
def test_packed_sequences_of_one_length_have_the_bits_of_a_batch(dtype, dropout_p, threads, dim, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    inputs = make_inputs(Shape(5, 3, 1, 71, 71, dim, 3, left=2, right=2), dtype=dtype)
    rows = {name: x for name, x in inputs.items() if x.dim() == 4}
    packed = inputs | {name: x.transpose(0, 1).flatten(1, 2)[None] for name, x in rows.items()}
    options = {"clip": 2, "dropout_p": dropout_p, "backend": "native"}
    cotangent = torch.randn(5, 3, 71, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for given, more in ((inputs, {}), (packed, {"cu_seqlens": torch.arange(0, 356, 71)})):
        leaves = [x.detach().requires_grad_() for x in given.values()]
        torch.manual_seed(0)
        output, lse = relative_attention(*leaves, **options, **more, return_lse=True)
        grad = cotangent.transpose(0, 1).flatten(1, 2)[None] if more else cotangent
        gradients = torch.autograd.grad(output, leaves, grad)
        results.append([output, lse, *gradients])
    for batch, got in zip(*results, strict=True):
        assert torch.equal(batch.transpose(0, 1).flatten(1, 2)[None] if batch.shape != got.shape else batch, got)


def test_packed_sequences_do_not_read_their_neighbours():
    inputs = make_inputs(Shape(1, 2, 1, 90, 90, 5, 7, left=2, right=2))
    ends = torch.tensor([0, 33, 57, 90])
    clean = outputs_and_gradients(relative_attention, inputs, cu_seqlens=ends, clip=2, backend="native")
    for x in inputs.values():
        if x.dim() == 4:
            x[:, :, 33:57] = torch.nan
    got = outputs_and_gradients(relative_attention, inputs, cu_seqlens=ends, clip=2, backend="native")
    for name in ("output", "lse", "d query", "d key", "d value"):
        for part in (slice(0, 33), slice(57, 90)):
            assert torch.equal(got[name][:, :, part], clean[name][:, :, part])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_later_calls_of_a_form_equal_the_first(case, monkeypatch):
    """They only change the addresses of a call that was checked before."""
    operator, inputs, options = call_of(case, SHAPES[case["shape"]], torch.float32)
    others = {name: x if x is None else torch.randn_like(x) for name, x in inputs.items()}
    changed = {name: x // 2 for name, x in options.items() if name.endswith("lengths")}
    changed |= {name: x.flip(-1) for name, x in options.items() if name in ("mask", "relations")}
    runs = [(inputs, options), (others, options | changed)]

    def results():
        for given, more in runs:
            with torch.no_grad():
                yield operator(**given, **more, backend="native", return_lse=True)
            yield outputs_and_gradients(operator, given, **more, backend="native").values()

    plans.PLANS.clear()
    planned = list(results())
    assert len(plans.PLANS) <= 2
    monkeypatch.setattr(plans, "form_of", lambda *_: None)
    for got, expected in zip(planned, results(), strict=True):
        assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("records", [False, True])
def test_calls_with_a_bias_have_plans_unless_its_gradient_is_needed(records, monkeypatch):
    monkeypatch.setattr(plans, "PLANS", {})
    inputs = make_inputs(SHAPES["two tiles"], dtype=torch.float32)
    bias = torch.zeros(70, 70, requires_grad=True)
    with torch.set_grad_enabled(records):
        relative_attention(**inputs, bias=bias, clip=16, backend="native")
    assert [plan is None for plan in plans.PLANS.values()] == [records]


@pytest.mark.parametrize("is_planned", [False, True])
def test_imaginary_parts_of_conjugates(monkeypatch, is_planned):
    """PyTorch keeps the numbers of such tensors with the wrong sign."""
    if not is_planned:
        monkeypatch.setattr(plans, "form_of", lambda *_: None)
    inputs = make_inputs(Shape(2, 3, 3, 4, 4, 5, 5, left=1, right=1), dtype=torch.float32)
    want = outputs_and_gradients(relative_attention, inputs, clip=1, backend="native")
    for name in inputs:
        view = torch.complex(inputs[name], -inputs[name]).conj().imag
        assert view.is_neg()
        got = outputs_and_gradients(relative_attention, inputs | {name: view}, clip=1, backend="native")
        assert all(torch.equal(got[result], x) for result, x in want.items())
    leaf = inputs["query"].requires_grad_()
    output = relative_attention(**inputs, clip=1, backend="native")
    ones = torch.ones_like(output)
    gradients = [torch.autograd.grad(output, leaf, x, retain_graph=True)[0] for x in (ones, torch._neg_view(-ones))]
    assert torch.equal(*gradients)


@pairwise(per_head=[0, 1], dtype=[torch.float32, torch.float64], dim=[5, 16], given=["all", "query", "rel_value"])
def test_gradients_of_short_sequences_with_a_wide_range(per_head, dtype, dim, given):
    """Rows of tables that no pair takes have zero gradients. Some inputs need none."""
    inputs = make_inputs(Shape(2, 3, 1, 4, 4, dim, 3, left=6, right=9), per_head=bool(per_head), dtype=dtype)
    options = {"clip": (6, 9), "lengths": torch.tensor([4, 2])}
    leaves = {name: x.requires_grad_(given in ("all", name)) for name, x in inputs.items()}
    needed = [x for x in leaves.values() if x.requires_grad]
    for sign in (1, -1):
        results = []
        for backend in ("native", "reference"):
            output = relative_attention(**leaves, **options, backend=backend)
            results.append(torch.autograd.grad(output.sum() * sign, needed))  # an output gradient of one number
        torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_by_hooks_of_saved_tensors():
    inputs = make_inputs(Shape(2, 3, 1, 7, 7, 16, 3, left=2, right=2))
    leaves = [x.requires_grad_() for x in inputs.values()]
    cotangent = torch.randn(2, 3, 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradients(backend):
        output = relative_attention(*leaves, clip=2, backend=backend)
        return dict(enumerate(torch.autograd.grad(output, leaves, cotangent)))

    expected = gradients("reference")
    for change in (lambda x: x.clone(), lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):  # other memory, strides
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, change):
            assert_close(gradients("native"), expected)


def test_inputs_changed_before_the_backward_pass_are_an_error():
    leaves = [x.requires_grad_() for x in make_inputs(Shape(2, 3, 1, 7, 7, 16, 3, left=2, right=2)).values()]
    for _ in range(2):
        changed = leaves[0] * 1
        output = relative_attention(changed, *leaves[1:], clip=2, backend="native")
        changed.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@torch.no_grad()
def test_numbers_of_numpy_with_equal_bytes_have_other_results():
    inputs = make_inputs(Shape(2, 2, 1, 5, 300, dim=3, value_dim=3, left=2, right=2), dtype=torch.float32)
    for offset in (np.int8(-3), np.uint8(253), np.int16(-3)):
        for _ in range(2):
            got = relative_attention(**inputs, clip=2, query_offset=offset, backend="native")
            expected = relative_attention(**inputs, clip=2, query_offset=int(offset), backend="reference")
            torch.testing.assert_close(got, expected)


@torch.no_grad()
def test_values_are_checked_in_every_call():
    inputs = make_inputs(Shape(2, 2, 1, 5, 5, dim=3, value_dim=3, left=2, right=2), dtype=torch.float32)
    relations = torch.zeros(1, 1, 5, 5).long()
    for _ in range(2):
        relative_attention(**inputs, clip=2, lengths=torch.tensor([5, 3]), is_causal=True)
        relation_attention(**inputs, relations=relations, is_causal=True)
    with pytest.raises(ValueError, match=r"lengths must be in \[0, 5\], .* got values from 3 to 6"):
        relative_attention(**inputs, clip=2, lengths=torch.tensor([6, 3]), is_causal=True)
    with pytest.raises(ValueError, match=r"relations must be in \[-1, 5\)"):
        relation_attention(**inputs, relations=relations + 5, is_causal=True)
    relation_attention(**inputs, relations=relations - 1, is_causal=True, check=False)
    for options in ({"is_causal": 1, "clip": 2}, {"is_causal": True, "clip": 2.0}):
        with pytest.raises(ValueError, match="must be"):
            relative_attention(**inputs, lengths=torch.tensor([5, 3]), **options)
