"""Which compiled kernels are used: the best installed level that the processor runs; the reasons if there are none."""

import os
import platform
import shutil
import subprocess
import sys

import pytest
import torch
from relattn import relative_attention
from relattn.backends import native
from relattn.backends.native import levels, library, loader
from relattn.backends.native.int8 import DOTS, GENERIC, PAIRS

from testing.numerics import Shape, make_inputs

BEST = library.SUPPORTED["float32"][0]
SHAPE = Shape(batch=2, heads=2, key_heads=1, queries=5, keys=7, dim=3, value_dim=2, left=2, right=1)


V3 = {"avx", "avx2", "fma"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
BOTH = {"avx512_bf16", "amx_bf16"}
VNNI = V4 | {"avx512_vnni"}
VECTORS_OF_16 = ["x86-64"]
VECTORS_OF_32 = ["x86-64-v3", *VECTORS_OF_16]
VECTORS_OF_64 = ["x86-64-v4", *VECTORS_OF_32]


@pytest.mark.parametrize(
    ("machine", "flags", "exact", "pairs"),
    [
        ("x86_64", V4, VECTORS_OF_64, []),
        ("x86_64", V4 | BOTH, VECTORS_OF_64, ["x86-64-v4-amx", "x86-64-v4-bf16"]),
        ("AMD64", V4 | {"avx512_bf16"}, VECTORS_OF_64, ["x86-64-v4-bf16"]),
        ("AMD64", V3 | BOTH, VECTORS_OF_32, []),
        ("x86_64", V4 - {"avx512vl"}, VECTORS_OF_32, []),
        ("x86_64", V4 - {"fma"}, VECTORS_OF_16, []),
        ("x86_64", {"sve256"}, VECTORS_OF_16, []),
        ("aarch64", {"sve", "sve256"}, ["aarch64-sve256", "aarch64"], []),
        ("arm64", {"sve", "sve512", "bf16"}, ["aarch64"], []),
        ("ppc64le", set(), [], []),
    ],
)
def test_levels_of_a_processor(machine, flags, exact, pairs):
    machine = levels.machine_of(machine)
    has = levels.features_of(machine, flags)
    for dtype in levels.EXACT:
        assert levels.supported(machine, has, dtype) == exact
    assert levels.supported(machine, has, "bfloat16") == pairs


@pytest.mark.parametrize(
    ("machine", "flags", "has_dots"),
    [
        ("x86_64", VNNI, True),
        ("x86_64", V4, False),
        ("x86_64", VNNI - {"avx512f"}, False),
        ("x86_64", V3 | {"avx_vnni"}, True),
        ("x86_64", V3, False),
        ("x86_64", {"avx_vnni"}, False),
        ("aarch64", {"asimddp"}, True),
        ("aarch64", {"asimddp", "sve256"}, True),
        ("aarch64", set(), False),
    ],
)
def test_dot_products_of_a_processor(machine, flags, has_dots):
    features = levels.features_of(machine, flags)
    best = levels.supported(machine, features, "float32")[0]
    assert any(level.dots in features for level in levels.LEVELS[machine] if level.name == best) == has_dots


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        (VNNI | BOTH | {"avx_vnni"}, list(levels.LIMITS["x86_64"])),
        (VNNI, ["default", "avx2", "avx512", "avx512_vnni"]),
        (V4 | {"avx_vnni"}, ["default", "avx2", "avx2_vnni", "avx512"]),
        (V3 | {"avx_vnni"}, ["default", "avx2", "avx2_vnni"]),
        (set(), ["default"]),
    ],
)
def test_a_level_may_be_lower_than_the_processor(flags, allowed):
    for name, limited in levels.LIMITS["x86_64"].items():
        if name in allowed:
            assert levels.features_of("x86_64", flags, name) == limited
        else:
            with pytest.raises(ImportError, match=f"one of {', '.join(allowed)} on this processor, got '{name}'"):
                levels.features_of("x86_64", flags, name)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fma avx2\nvmx flags\t: ept\n\nprocessor\t: 1\nflags\t\t: amx\n", {"fma", "avx2"}),
        ("Features\t: fp asimd", {"fp", "asimd"}),
        ("isa\t\t: rv64imafdcv", set()),
        ("", set()),
    ],
)
def test_flags_of_the_first_processor(cpuinfo, expected, tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert levels.listed_flags(tmp_path / "cpuinfo") == expected


def test_pytorch_finds_the_same_features():
    """A level that the processor does not have would end the process."""
    found = levels.features_of(loader.MACHINE, levels.processor_flags())
    if os.environ.get("ATEN_CPU_CAPABILITY"):
        return  # PyTorch reports less than the processor has
    assert ("AVX2" in found) == torch.cpu.get_capabilities().get("avx2", False)
    for feature in found & {"AVX512_BF16", "AVX512_VNNI", "AVX_VNNI", "AMX_BF16"}:
        assert torch.cpu.get_capabilities()[feature.lower()]
    assert ("AVX512" in found) == (torch.backends.cpu.get_cpu_capability() == "AVX512")


def run_with(level, *command):
    environment = {**os.environ, "RELATTN_LEVEL": level, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


USED = """
import torch
from relattn.backends.native import library
from relattn.integrations.transformers import int8
from relattn_mt.engine import decoder
from testing.integer_sums import assert_sums_are_exact
print(*sorted({kernels.level for kernels in library.KERNELS.values()}), decoder.KERNELS.level, decoder.int8_kernel())
quantized = int8.quantize(torch.nn.Linear(64, 64))
print(int8.product(), len(quantized))
if quantized:
    assert_sums_are_exact()
"""


ALLOWED = [name for name, features in levels.LIMITS[loader.MACHINE].items() if features <= loader.FEATURES]


@pytest.mark.parametrize("name", ALLOWED)
def test_one_variable_sets_the_level_of_all_kernels(name):
    """Attention, the decoder, and products in 8 bits, which linear layers use where they are faster than float32."""
    features = levels.LIMITS[loader.MACHINE][name]
    level, *_ = levels.supported(loader.MACHINE, features, "float32")
    pairs = levels.supported(loader.MACHINE, features, "bfloat16")[:1]
    has_dots = features & {"AVX_VNNI", "AVX512_VNNI", "DOTPROD"}
    kernel = DOTS if has_dots else PAIRS if "AVX2" in features else GENERIC
    product = None if "AMX_BF16" in features else kernel
    expected = [*sorted({level, *pairs}), level, kernel, product, int(product != GENERIC)]
    used = run_with(name, "-c", USED)
    assert used.stdout.split() == list(map(str, expected)), used.stderr


def test_the_engine_and_attention_refuse_the_same_levels():
    """One chooses in C and one in Python. The command `relattn-mt` prints one line."""
    for name in ("avx3", *levels.LIMITS[loader.MACHINE].keys() - set(ALLOWED)):
        run = run_with(name, "-m", "relattn_mt", "translate", "nothing")
        assert run.returncode == 2
        with pytest.raises(ImportError) as refused:
            levels.features_of(loader.MACHINE, levels.processor_flags(), name)
        assert run.stderr == f"relattn-mt: error: {refused.value}\n"


@pytest.fixture
def folder(tmp_path):
    """An installation with the kernels of this processor's best level only."""
    for path in (library.FOLDER / "arguments.h", *library.FOLDER.glob(f"attention-{BEST}-float*.so")):
        shutil.copy(path, tmp_path)
    return tmp_path


def load(monkeypatch, folder, supported=(BEST,)):
    """Use the kernels of an installation, for a processor that runs some levels, and return their levels by dtype."""
    served = {dtype: list(supported) for dtype in levels.EXACT} | {"bfloat16": []}
    monkeypatch.setattr(library, "SUPPORTED", served)
    for name, value in zip(("KERNELS", "MISSING"), library.load_all(served, folder), strict=True):
        monkeypatch.setattr(library, name, value)
    return {dtype: kernels.level for dtype, kernels in library.KERNELS.items()}


def assert_refused(dtype, facts):
    """Assert that `native` gives its reason, in the error and in the list of backends, and that `auto` uses `dense`."""
    inputs = make_inputs(SHAPE, dtype=dtype)
    with pytest.raises(ValueError, match=f"native .*float.* kernels: .*{facts}.*dense"):
        relative_attention(**inputs, clip=(2, 1), backend="native")
    auto, dense = (relative_attention(**inputs, clip=(2, 1), backend=name) for name in ("auto", "dense"))
    assert torch.equal(auto, dense)
    assert library.MISSING[torch.float64 if dtype == torch.float64 else torch.float32] in native.installation()


def test_the_best_installed_level_is_used(folder, monkeypatch):
    assert set(load(monkeypatch, folder, ["better", BEST]).values()) == {BEST}
    assert f"compiled for {BEST}, not for this processor's better" in native.installation()
    (folder / "attention-better-float32.so").write_bytes(b"broken")
    assert set(load(monkeypatch, folder, ["better", BEST]).values()) == {BEST}


def test_an_installation_without_kernels(tmp_path, monkeypatch):
    assert load(monkeypatch, tmp_path) == {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert_refused(dtype, f"none in this installation for {BEST} on {platform.system()}")
    for level in ("another-machine", "higher"):
        (tmp_path / f"attention-{level}-float32.so").touch()
    assert load(monkeypatch, tmp_path) == {}
    assert_refused(torch.float32, f"none .* for {BEST} .*another-machine, higher")
    monkeypatch.setattr(loader, "MACHINE", "riscv64")
    assert load(monkeypatch, tmp_path, supported=[]) == {}
    assert_refused(torch.float64, "none .* for riscv64")


def compile_to(path, text):
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", path], input=text.encode(), check=True)


UNUSABLE = "const unsigned relattn_checksum = {}u; int relattn_usable(void) {{ return 0; }}"  # as where AMX is refused
BROKEN = {  # how the float64 kernels are broken, and a fact in the reason
    "missing": (lambda path: path.unlink(), f"none in this installation for {BEST}"),
    "no object": (lambda path: path.write_bytes(b"nothing"), "float64.so"),
    "another object": (lambda path: compile_to(path, "int nothing;"), "another version of arguments.h"),
    "another machine": (
        lambda path: path.write_bytes(path.read_bytes()[:18] + b"\x08\x00" + path.read_bytes()[20:]),
        "another machine",
    ),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:100_000]), "complete.*100,000 bytes"),
    "cut off in its header": (lambda path: path.write_bytes(path.read_bytes()[:40]), "complete.*40 bytes"),
    "refused by the system": (
        lambda path: compile_to(path, UNUSABLE.format(loader.checksum_of(library.KERNELS[torch.float32].library))),
        "this system cannot run",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_dtype_without_usable_kernels(broken, folder, monkeypatch):
    spoil, facts = BROKEN[broken]
    spoil(folder / f"attention-{BEST}-float64.so")
    assert load(monkeypatch, folder) == {torch.float32: BEST}
    assert_refused(torch.float64, facts)
    relative_attention(**make_inputs(SHAPE, dtype=torch.float32), clip=(2, 1), backend="native")


def test_kernels_compiled_with_another_header_are_not_used(folder, monkeypatch):
    header = folder / "arguments.h"
    header.write_text(header.read_text(encoding="utf-8").replace("idx batch, heads,", "idx heads, batch,"), "utf-8")
    assert load(monkeypatch, folder) == {}
    assert all("another version of arguments.h" in reason for reason in library.MISSING.values())
