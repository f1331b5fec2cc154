"""`benchmarks.emulated` rehearsed on this machine's own processor, where no emulator is needed."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hatch_build
from benchmarks import emulated
from relattn import relative_attention
from relattn.backends.native import levels, library, operators
from tests.support.numerics import Shape, make_inputs, outputs_and_gradients

SHAPE = Shape(batch=2, heads=4, key_heads=2, queries=67, keys=131, dim=8, value_dim=24, left=5, right=0)


@pytest.fixture
def machine(tmp_path):
    """The program, compiled here, with the objects that are used here."""
    for real in levels.EXACT:
        shutil.copy(library.object_of(library.SUPPORTED[real][0], real, library.HERE), tmp_path / f"{real}.so")
    source = emulated.SOURCE
    subprocess.run([*hatch_build.compiler(), str(source), "-ldl", "-o", tmp_path / "driver"], check=True)
    return emulated.Machine(tmp_path)


def results(dtype: torch.dtype):
    """Of a call with all that can be pointed to: tables, a mask, offsets and lengths; rows apart in memory."""
    inputs = make_inputs(SHAPE, dtype=dtype)
    inputs["key"] = inputs["key"].transpose(1, 2).contiguous().transpose(1, 2)
    each = torch.tensor([4, 60])
    mask = torch.rand(1, 4, 67, 131, generator=torch.Generator().manual_seed(1)) < 0.6
    options = {"query_offset": each, "key_lengths": 2 * each, "query_lengths": each, "mask": mask, "backend": "native"}
    return outputs_and_gradients(relative_attention, inputs, clip=(5, 0), **options)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_call_in_a_process_of_its_own_changes_no_bit(dtype, threads, machine, monkeypatch):
    monkeypatch.delitem(library.KERNELS, torch.bfloat16, raising=False)  # of which there are none on the other side
    want, ran = results(dtype), []

    def run(task, kernel, **tensors):
        task.arguments.threads = threads
        machine.run(task, kernel, **tensors)
        ran.append(kernel)

    monkeypatch.setattr(operators.Task, "run", run)
    got = results(dtype)
    assert ran == ["forward", "backward"]
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_whose_threads_a_call_is_run_by_is_seen(machine, monkeypatch, tmp_path):
    """A pool in place of GNU OpenMP's that runs nothing leaves results that are not those without it."""
    pool = tmp_path / "pool.so"
    nothing = b"void GOMP_parallel(void (*worker)(void *), void *data, unsigned threads, unsigned flags) {}"
    command = [*hatch_build.compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", pool]
    subprocess.run(command, input=nothing, check=True)
    monkeypatch.setattr(emulated, "OPENMP", str(pool))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(operators.Task, "run", lambda task, *rest, **tensors: machine.run(task, *rest, **tensors))
    with pytest.raises(AssertionError, match="depend on whose threads"):
        results(torch.float32)


def test_what_would_not_run_there_is_left_out():
    """Tests, by how their names start; cases of other backends and levels, and of this processor's own bfloat16."""
    source = (Path(__file__).parent / "test_native.py").read_text(encoding="utf-8")
    assert all(f"def {name}" in source for name in emulated.LEFT_OUT)
    best = library.SUPPORTED["float32"][0]
    given = [
        {},
        {"level": best, "dtype": torch.bfloat16},
        {"level": "x86-64-v2"},
        {"backend": "dense"},
        {"products": "float32"},
        {"products": "x86-64-v4-amx"},
    ]
    items = [SimpleNamespace(nodeid="a test", callspec=SimpleNamespace(params=params)) for params in given]
    emulated.Sample(None, share=1).pytest_collection_modifyitems(items)
    assert [item.callspec.params for item in items] == [*given[:2], given[4]]


def test_a_kernel_that_fails_is_an_error(machine, monkeypatch):
    monkeypatch.setattr(operators.Task, "run", lambda task, kernel, **tensors: machine.run(task, "sideward", **tensors))
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        results(torch.float32)


def test_what_is_not_installed_is_named_with_its_packages(monkeypatch):
    monkeypatch.setattr("sys.argv", ["emulated", "--levels", "aarch64", "aarch64-sve256"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as left:
        emulated.main()
    compiler, emulator = str(left.value).splitlines()
    assert compiler == "no aarch64-linux-gnu-gcc: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    assert emulator == "no qemu-aarch64: apt-get install qemu-user"
