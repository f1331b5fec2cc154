"""Which kernels are taken: the machine's, of the best level that the processor has and the installation holds; and what
is said where there are none."""

import platform
import shutil
import subprocess
from functools import partial

import pytest
import torch

from relattn import backends, relative_attention
from relattn.backends import native
from relattn.backends.native import levels, library
from relattn.call import Call
from tests.support.numerics import Shape, make_inputs

BEST = library.SUPPORTED["float32"][0]
SHAPE = Shape(batch=2, heads=2, key_heads=1, queries=5, keys=7, dim=3, value_dim=2, left=2, right=1)


@pytest.mark.parametrize(
    ("machine", "capability", "expected"),
    [
        ("x86_64", "AVX512", ["x86-64-v4", "x86-64-v3", "x86-64"]),
        ("AMD64", "AVX2", ["x86-64-v3", "x86-64"]),
        ("x86_64", "DEFAULT", ["x86-64"]),
        ("x86_64", "SVE256", ["x86-64"]),
        ("aarch64", "SVE256", ["aarch64-sve256", "aarch64"]),
        ("arm64", "DEFAULT", ["aarch64"]),
        ("aarch64", "a word of later versions", ["aarch64"]),
        ("ppc64le", "VSX", []),
    ],
)
def test_the_machine_comes_first_and_then_what_the_processor_has(machine, capability, expected):
    for number in levels.EXACT:
        assert levels.supported(levels.machine_of(machine), capability, {}, number) == expected


@pytest.mark.parametrize(
    ("machine", "capability", "others", "expected"),
    [
        ("x86_64", "AVX512", {"avx512_bf16": True, "amx_bf16": True}, ["x86-64-v4-amx", "x86-64-v4-bf16"]),
        ("x86_64", "AVX512", {"avx512_bf16": True, "amx_bf16": False, "avx2": True}, ["x86-64-v4-bf16"]),
        ("x86_64", "AVX512", {}, []),
        ("x86_64", "AVX2", {"avx512_bf16": True, "amx_bf16": True}, []),  # ATEN_CPU_CAPABILITY=avx2
        ("aarch64", "DEFAULT", {"bf16": True}, []),
    ],
)
def test_bfloat16_has_levels_where_processors_multiply_it(machine, capability, others, expected):
    assert levels.supported(machine, capability, others, "bfloat16") == expected


def test_the_lowest_level_of_a_machine_needs_nothing_and_each_name_is_one_levels():
    assert all(of_machine[-1].needs == frozenset() for of_machine in levels.LEVELS.values())
    names = [level.name for of_machine in levels.LEVELS.values() for level in of_machine]
    assert len(names) == len(set(names))


@pytest.fixture
def installation(tmp_path):
    """A folder with this processor's objects and their header, as if it had been installed, and nothing else."""
    for path in (library.HERE / "arguments.h", *library.HERE.glob(f"attention-{BEST}-float*.so")):
        shutil.copy(path, tmp_path)
    return tmp_path


def found_in(folder, monkeypatch, served=(BEST,), pairs=()):
    """What this library finds in an installation for levels of processor; from here on it works with that."""
    served = {number: list(served) for number in levels.EXACT} | {"bfloat16": list(pairs)}
    monkeypatch.setattr(library, "SUPPORTED", served)
    for name, value in zip(("KERNELS", "MISSING"), library.load_all(served, folder), strict=True):
        monkeypatch.setattr(library, name, value)
    return library.KERNELS


def assert_left_to_dense(dtype, reason):
    inputs = make_inputs(SHAPE, dtype=dtype)
    with pytest.raises(ValueError, match=f"native: {reason}; use dense"):
        relative_attention(**inputs, clip=(2, 1), backend="native")
    auto, dense = (relative_attention(**inputs, clip=(2, 1), backend=name) for name in ("auto", "dense"))
    assert torch.equal(auto, dense)


def test_the_best_level_that_is_there_is_taken(installation, monkeypatch):
    kernels = found_in(installation, monkeypatch, ["better", BEST])
    assert {kernel.level for kernel in kernels.values()} == {BEST}
    assert native.installation() == f"compiled for {BEST}, not for this processor's better"


def test_an_installation_without_kernels_is_left_to_dense(tmp_path, monkeypatch):
    assert found_in(tmp_path, monkeypatch) == {}
    here = f"{BEST} on {platform.system()}"
    for dtype, number in ((torch.float32, "float32"), (torch.float64, "float64"), (torch.bfloat16, "float32")):
        assert_left_to_dense(dtype, f"{number} kernels: none in this installation for {here}")
    assert native.installation() == f"float32 and float64 kernels: none in this installation for {here}"


def test_kernels_of_other_machines_and_higher_levels_are_named(tmp_path, monkeypatch):
    for level in ("another-machine", "higher"):
        (tmp_path / f"attention-{level}-float32.so").touch()
    assert found_in(tmp_path, monkeypatch) == {}
    assert_left_to_dense(torch.float32, "float32 kernels: none .* for .*, only for another-machine, higher")
    assert_left_to_dense(torch.float64, rf"float64 kernels: none .* for {BEST} on \w+")


def test_a_machine_that_nobody_compiles_for_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "MACHINE", "riscv64")
    assert found_in(tmp_path, monkeypatch, served=[]) == {}
    assert_left_to_dense(torch.float32, r"float32 kernels: none in this installation for riscv64 on \w+")


def compiled_from(text: str, path) -> None:
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", path], input=text.encode(), check=True)


BROKEN = {
    "not there": (lambda path: path.unlink(), rf"none in this installation for {BEST} on \w+"),
    "not an object": (lambda path: path.write_bytes(b"nothing"), r".*attention-.*-float64\.so.*"),
    "another object": (partial(compiled_from, "int nothing;"), ".* was compiled with another version of arguments.h.*"),
    "another machine's": (
        lambda path: path.write_bytes(b"\x7fELF" + bytes(14) + b"\x08\x00"),  # as its head says
        r"attention-.*\.so must be compiled for .*, got another machine .*",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_precision_without_kernels_is_left_to_dense(broken, installation, monkeypatch):
    spoil, reason = BROKEN[broken]
    spoil(installation / f"attention-{BEST}-float64.so")
    kernels = found_in(installation, monkeypatch)
    assert list(kernels) == [torch.float32]
    assert native.installation() == f"compiled for {BEST}; float64 kernels: {library.MISSING[torch.float64]}"
    assert_left_to_dense(torch.float64, f"float64 kernels: {reason}")
    single = Call(**make_inputs(SHAPE, dtype=torch.float32), left=2, right=1, scale=0.25)
    assert backends.unsupported_reason("native", single) is None
    assert backends.choose("auto", single) is native


def test_a_broken_object_is_passed_over_for_the_next_level(installation, monkeypatch):
    (installation / "attention-better-float32.so").write_bytes(b"nothing")
    kernels = found_in(installation, monkeypatch, ["better", BEST])
    assert {kernel.level for kernel in kernels.values()} == {BEST}


def test_objects_compiled_with_other_arguments_are_not_used(installation, monkeypatch):
    header = installation / "arguments.h"
    header.write_text(header.read_text(encoding="utf-8").replace("idx batch, heads,", "idx heads, batch,"), "utf-8")
    assert found_in(installation, monkeypatch) == {}
    assert all("was compiled with another version of arguments.h" in reason for reason in library.MISSING.values())
