"""Which compiled kernels are used: the best level that the processor runs; the reasons if there are none."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch
from relattn import relative_attention
from relattn.backends import native, plans
from relattn.backends.native import library
from relattn.backends.native.int8 import DOTS, GENERIC, PAIRS

from tests.support.levels import allowed_levels
from tests.support.numerics import Shape, make_inputs

SHAPE = Shape(batch=2, heads=2, key_heads=1, queries=5, keys=7, dim=3, value_dim=2, left=2, right=1)


def test_pytorch_finds_the_same_features():
    """A level that the processor does not have would end the process."""
    if os.environ.get("ATEN_CPU_CAPABILITY") or os.environ.get("RELATTN_LEVEL"):
        return  # they report less than the processor has
    names = allowed_levels()
    has = torch.cpu.get_capabilities()
    for level, feature in (
        ("avx2", "avx2"),
        ("avx2_vnni", "avx_vnni"),
        ("amx", "amx_bf16"),
        ("amx", "amx_int8"),
        ("avx512_bf16", "avx512_bf16"),
    ):
        assert level not in names or has[feature]
    assert ("avx2" in names) == has.get("avx2", False)
    assert ("avx512" in names) == (torch.backends.cpu.get_cpu_capability() == "AVX512")


def run_with(level, *command):
    environment = {**os.environ, "RELATTN_LEVEL": level, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


USED = """
import json
import os
import sys
import torch

def used():
    from relattn.backends.native import library
    from relattn.integrations.transformers import int8
    from relattn_mt.engine import decoder
    from tests.support.integer_sums import assert_sums_are_exact
    engine = decoder.KERNELS
    quantized = int8.quantize(torch.nn.Linear(64, 64))
    if quantized:
        assert_sums_are_exact()
    levels = sorted({kernels.level for kernels in library.KERNELS.values()})
    return [*levels, engine.level, engine.int8_kernels[-1], int8.product(), len(quantized)]

for level in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["RELATTN_LEVEL"] = level
        try:
            found = used()
        except Exception as error:
            found = repr(error)
        print(json.dumps(found), flush=True)
        os._exit(0)
    os.wait()
"""  # a fork does not import PyTorch again
WRONG = ("AVX2", "avx512_amx", "avx3")


@pytest.fixture(scope="module")
def used_kernels():
    """The kernels that a process uses with each allowed level, and its error with one of the wrong names."""
    levels = [*allowed_levels(), WRONG[-1]]
    run = run_with("default", "-c", USED, *levels)
    return dict(zip(levels, map(json.loads, run.stdout.splitlines()), strict=True))


BEST = {"default": "plain" if platform.machine() == "x86_64" else "neon"}  # where it is not the value itself


@pytest.mark.parametrize("name", allowed_levels())
def test_one_variable_sets_the_level_of_all_kernels(name, used_kernels):
    """Attention, the decoder, and products in 8 bits, which linear layers use where they are faster than float32."""
    names = allowed_levels()
    exact = [
        BEST.get(value, value)
        for value in names[: names.index(name) + 1]
        if value in {"default", "avx2", "avx512", "sve256"}
    ]
    has_tiles = name.startswith("amx")  # of the engine too
    pairs = ["amx"] if has_tiles else [name] if name == "avx512_bf16" else []
    best = "amx" if has_tiles else exact[-1]
    suffixes = [
        value for value in names[: names.index(name) + 1] if value.startswith(f"{best}_") and value not in pairs
    ]
    has_dots = bool(suffixes)
    kernel = DOTS if has_dots else PAIRS if exact[-1] in {"avx2", "avx512"} else GENERIC
    product = None if has_tiles else kernel
    assert used_kernels[name] == [*sorted({exact[-1], *pairs}), best, kernel, product, int(product != GENERIC)]


def test_both_libraries_refuse_the_same_values(used_kernels):
    """They have one function for it. The command `relattn-mt` prints one line."""
    for name in WRONG:
        with pytest.raises(ImportError, match=rf"^RELATTN_LEVEL must be one of default.* got '{name}'$") as refused:
            library.load(torch.float32, name)
    run = run_with(name, "-m", "relattn_mt", "translate", "nothing")
    assert (run.returncode, run.stderr) == (2, f"relattn-mt: error: {refused.value}\n")
    assert used_kernels[name] == repr(refused.value)


@pytest.fixture
def folder(tmp_path):
    """An installation with the library."""
    for path in library.FOLDER.glob("relattn.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def load(monkeypatch, folder):
    """Use the library of an installation, and return its kernels."""
    for name, value in zip(("KERNELS", "MISSING"), library.load_all(folder), strict=True):
        monkeypatch.setattr(library, name, value)
    monkeypatch.setattr(plans, "PLANS", {})  # plans hold kernels
    return library.KERNELS


def assert_refused(dtype, facts):
    """Assert that `native` gives its reason, in the error and in the list of backends, and that `auto` uses `dense`."""
    inputs = make_inputs(SHAPE, dtype=dtype)
    with pytest.raises(ValueError, match=f"native .*float.* kernels: .*{facts}.*dense"):
        relative_attention(**inputs, clip=(2, 1), backend="native")
    auto, dense = (relative_attention(**inputs, clip=(2, 1), backend=name) for name in ("auto", "dense"))
    assert torch.equal(auto, dense)
    assert library.MISSING[torch.float64 if dtype == torch.float64 else torch.float32] in native.installation()


def overwrite(path, content):
    """Write a new file: the process ends with SIGBUS if a library that it has loaded becomes shorter."""
    path.unlink()
    path.write_bytes(content)


def another_build(folder):
    data = json.loads((folder / "relattn.json").read_text(encoding="utf-8"))
    (folder / "relattn.json").write_text(json.dumps({**data, "crc32": 1}), encoding="utf-8")


BROKEN = {  # how an installation is broken, and a fact in the reason
    "missing": (
        lambda folder: (folder / "relattn.so").unlink(),
        f"none in this installation for {platform.machine()} on",
    ),
    "no structures": (lambda folder: (folder / "relattn.json").unlink(), "relattn.json"),
    "no library": (lambda folder: overwrite(folder / "relattn.so", b"nothing"), "must be as it was compiled"),
    "cut off": (
        lambda folder: overwrite(folder / "relattn.so", (folder / "relattn.so").read_bytes()[:100_000]),
        "must be as it was compiled",
    ),
    "another build": (another_build, "must be as it was compiled"),
    "damaged structures": (lambda folder: (folder / "relattn.json").write_bytes(b'{"crc'), "relattn.json"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_installation_without_usable_kernels(broken, folder, monkeypatch):
    assert set(load(monkeypatch, folder)) >= {torch.float32, torch.float64}
    spoil, facts = BROKEN[broken]
    spoil(folder)
    assert load(monkeypatch, folder) == {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert_refused(dtype, facts)
