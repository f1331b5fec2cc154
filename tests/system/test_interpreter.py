"""All Triton kernels in Triton's interpreter with every triple of options, and compiled for a GPU that is not there."""

import os
import subprocess
import sys

import pytest
import torch
from relattn import relative_attention

from benchmarks import errors
from benchmarks.forms import Case
from library.tests import test_triton
from library.tests.conftest import _triton_is_quick  # noqa: F401 - an autouse fixture
from library.tests.test_triton import _poison_and_forget, check, grid, small_call  # noqa: F401 - an autouse fixture
from tests.support.calls import call_of, cases, name_of
from tests.support.numerics import SHAPES, Shape, assert_within_budget, make_inputs


@pytest.mark.parametrize("case", grid(3, test_triton.SHAPES, ["float32", "tf32x3", "bfloat16", "float16"]), ids=name_of)
def test_small_tiles(monkeypatch, case):
    check(monkeypatch, case)


TERMS = {"has_pos_query": [False, True], "rel_bias": [False, True]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", [*cases(3, **TERMS), *cases(2, shape=list(SHAPES), **TERMS)], ids=name_of)
def test_common_grid(case, dtype):
    operator, inputs, options = call_of(case, SHAPES[case["shape"]], dtype)
    assert_within_budget(operator, inputs, "triton", **options)


@pytest.mark.parametrize(("dim", "value_dim", "rel_dim"), [(80, 200, None), (256, 16, 1), (3, 256, 129)])
@pytest.mark.parametrize("n", [63, 150])
def test_tiles_of_a_gpu(n, dim, value_dim, rel_dim):
    sizes = Shape(batch=1, heads=1, key_heads=1, queries=n, keys=n, dim=dim, value_dim=value_dim, left=16, right=3)
    inputs = make_inputs(sizes, rel_dim=rel_dim, dtype=torch.bfloat16)
    assert_within_budget(relative_attention, inputs, "triton", clip=(16, 3))


def test_long_sequences_lose_no_more_than_twice_what_plain_attention_loses():
    case = Case(batch=1, heads=1, n=256, dim=16, left=2, right=2, is_causal=False)
    ratios = {row["result"]: row["ratio"] for row in errors.rows("triton", case)}
    assert len(ratios) == 6
    assert max(ratios.values()) < errors.LIMIT, ratios


@pytest.mark.parametrize(
    "options",
    [
        {"window_left": 2, "window_right": 1},
        {"window_left": 3, "window_right": 2, "chunk": 3, "dropout_p": 0.2, "seed": torch.tensor(3)},
    ],
    ids=["window", "chunks and dropout"],
)
def test_operators_pass_opcheck(options):
    """With a bias per label, which reaches the kernels as a rel_query, and a pos_query."""
    bias, pos_query = torch.ones(1, 1, 1, 1).expand(2, 1, 5, 1), torch.ones(3, 8)
    call = small_call(5, 5, rel_query=bias, rel_key=torch.zeros(3, 1), pos_query=pos_query, **options)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.relattn.triton.default, tuple(call), test_utils=tests)
    results = torch.ops.relattn.triton.default(*call)
    torch.library.opcheck(torch.ops.relattn.triton_backward.default, (results[0], *results, *call), test_utils=tests)


FAR_APART = """
import torch
from relattn import relative_attention
from tests.support.numerics import Shape, make_inputs, outputs_and_gradients

def spread(x, dimension):  # steps of 2 ** 30 numbers, two of which need more than 32 bits, in memory never touched
    step = 2**30 + 8
    strides = [step if d == dimension else x.stride(d) for d in range(x.dim())]
    memory = torch.empty(step * (x.shape[dimension] - 1) + x.numel(), dtype=x.dtype)
    return memory.as_strided(x.shape, strides).copy_(x)

shape = Shape(batch=3, heads=3, key_heads=3, queries=3, keys=3, dim=3, value_dim=3, left=1, right=1)
inputs = make_inputs(shape, rel_dim=3, dtype=torch.float16)
want = outputs_and_gradients(relative_attention, inputs, clip=1, backend="triton")
for dimension in range(4):
    far = {name: spread(x, dimension) if x.dim() == 4 else x for name, x in inputs.items()}
    got = outputs_and_gradients(relative_attention, far, clip=1, backend="triton")
    assert all(torch.equal(got[name], want[name]) for name in want), dimension
"""

COMPILED = """
import torch
from triton.runtime import driver
from benchmarks.compiled import Case, rows
from relattn.backends.triton import operators

def variants(cases):  # kernels that Triton would compile for calls with gradients, by its cache keys
    def add(kernel, programs, tiles, call, **arguments):
        binder = kernel.device_caches[driver.active.get_current_device()][-1]
        _, specialization, options = binder(**operators.launch_arguments(tiles, arguments), debug=False)
        keys.add(f"{kernel.__name__} {specialization} {options}")

    keys = set()
    for call in (case.call() for case in cases):
        results = operators.run_forward(call, add)
        operators.run_backward(call, torch.empty_like(results[0]), *results, add)
    return len(keys)

several = Case("bfloat16", 64, 64, 64, True, 0.1, "mask+grouped+lengths+offsets+rel_query")
for case in (Case("bfloat16", 64, 16, 2048), several):
    for row in rows(90, case):
        assert not row["remarks"], row  # no product waits for another, and no kernel is a trap
        assert not row["far redundancy"] or row["far redundancy"] < 1.13, row  # no pair is computed twice
        assert row["far local"] in ("", 0), row
assert variants(Case("float16", 64, 16, n, batch=1024 // n) for n in range(5, 121, 5)) == 9
assert variants(Case("float16", 64, 16, n, True, queries=1) for n in range(1, 300, 7)) < 10
"""


LAUNCHES = """
import torch
from functools import partial
from relattn import relative_attention
from benchmarks import launches

launches.use_no_gpu()
CASES = (
    (16, 0, {}),
    (16, 1, {}),  # addresses are no multiples of 16, for which Triton compiles other kernels
    (200, 0, {"lengths": [200, 7], "is_causal": True}),
    (40, 0, {"key_lengths": [40, 7], "dropout_p": 0.1}),
    (3, 0, {}),  # rows of the tables that no pair takes are cut off
)
for n, start, options in CASES:
    rows = [torch.randn(2 * 8 * n * 64 + start, dtype=torch.bfloat16)[start:].view(2, n, 8, 64) for _ in "qkv"]
    inputs = [*(x.transpose(1, 2) for x in rows), *torch.randn(2, 33, 64, dtype=torch.bfloat16)]
    given = {name: torch.tensor(x) if isinstance(x, list) else x for name, x in options.items()}
    attend = partial(relative_attention, **given, backend="triton")
    launches.check_launches(f"forward {options}", lambda: attend(*inputs), inputs)
    launches.check_launches(f"both passes {options}", launches.both_passes(attend, inputs), inputs)
"""


@pytest.mark.parametrize(
    ("code", "interpreter"),
    [(FAR_APART, "1"), (COMPILED, "0"), (LAUNCHES, "0")],
    ids=["64 bits", "compiled", "launches"],
)
def test_addresses_and_machine_code(tmp_path, code, interpreter):
    """A short address ends the process. Compiled kernels meet the criteria of `configs.py`, with few variants.

    With plans, calls launch what they launch without them.
    """
    environment = {**os.environ, "TRITON_INTERPRET": interpreter, "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
