"""Kernels compiled for processors that this machine lacks: those of `native`, and products in 8 bits.

A call runs as always, except that its arguments and tensors are written to a file, on which `emulated.c` runs the
kernel under QEMU. The library chooses among the levels that it has. PyTorch is not emulated: the arguments are the same
bytes on all 64-bit little-endian Linux machines.
Calls of several threads run twice, without GNU OpenMP, which PyTorch loads, and with it, and must give the same bits.
"""

import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from relattn.backends.native import library, operators
from relattn.backends.native.int8 import DOTS, GENERIC, GROUP
from relattn.call import accumulation_dtype
from torch import Tensor

from kernels import build
from tests.support.calls import call_of, cases, name_of
from tests.support.numerics import SHAPES, Shape, assert_within_budget

OPENMP = "libgomp.so.1"
LINE = 64  # alignment of tensors in a file in bytes, as in PyTorch's memory
LONG = Shape(batch=2, heads=4, key_heads=2, queries=67, keys=131, dim=8, value_dim=24, left=5, right=0)
CASES = cases(n=3, shapes={**SHAPES, "long": LONG}, dtype=[torch.float32, torch.float64], threads=[1, 2])
ARM = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu")


class Level(NamedTuple):
    """How to run the kernels of a processor level."""

    machine: str
    tools: str  # prefix of the compiler and the disassembler
    emulator: tuple[str, ...]
    multiplies: str  # instructions that multiply whole vectors
    panel: int  # number of outputs per panel in the decoder


LEVELS = {
    "plain": Level("x86_64", "", (), r"\bmulp[sd]\b", 16),
    "neon": Level("aarch64", "aarch64-linux-gnu-", (*ARM, "cortex-a53"), r"\bfmla\s+v", 16),
    "sve256": Level(
        "aarch64", "aarch64-linux-gnu-", (*ARM, "max,sve-default-vector-length=32"), r"\bfm(la|ad)\s+z", 32
    ),
}


@pytest.fixture(scope="module", params=LEVELS)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Level, Path]:
    """A level, and the folder of the library with this level alone, and of the program that runs it."""
    level, folder = LEVELS[request.param], tmp_path_factory.mktemp(request.param)
    compiler = f"{level.tools}gcc"
    if any(shutil.which(command) is None for command in (compiler, *level.emulator[:1])):
        pytest.skip("run: apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    source, include = Path(__file__).with_name("emulated.c"), build.SOURCES / "attention"
    subprocess.run([compiler, f"-I{include}", source, "-ldl", "-o", folder / "driver"], check=True)
    target = build.Target("linux", level.machine, [compiler])
    with pytest.MonkeyPatch.context() as patch:
        levels = build.levels
        patch.setattr(build, "levels", lambda target: {request.param: levels(target)[request.param]})
        assert build.build(build.ATTENTION, target, folder) == []
        assert build.build(build.ENGINE, target, folder) == []
    return level, folder


def memory_of(x: Tensor) -> Any:
    """Return the bytes from the first number of a tensor to its last."""
    numbers = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (ctypes.c_char * (numbers * x.element_size())).from_address(x.data_ptr())


def file_of(task: operators.Task) -> tuple[bytes, dict[str, int]]:
    """Return a call as `emulated.c` reads it, and the positions of the tensors in it."""
    tensors = {name: x for name, x in task.tensors.items() if x.numel() > 0}
    arguments = 8 * (2 + 2 * len(tensors))
    file, starts = bytearray(arguments) + task.layout.pack(task.values), {}
    for name, x in tensors.items():
        file += bytes(-len(file) % LINE)
        starts[name] = len(file)
        file += memory_of(x)
    offsets = {name: getattr(task.kernels.types["attention"], name).offset for name in starts}
    pointers = [number for name, start in starts.items() for number in (arguments + offsets[name], start)]
    file[:arguments] = struct.pack(f"<{2 + len(pointers)}q", arguments, len(starts), *pointers)
    return bytes(file), starts


@pytest.fixture
def ran(machine: tuple[Level, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the kernels in the emulator, and return the list of those that ran."""
    level, folder = machine
    names: list[str] = []

    def run(task: operators.Task, kernel: str) -> None:
        names.append(kernel)
        before, starts = file_of(task)
        path, results = folder / "call", set()
        for libraries in ([], [OPENMP])[: task.values[task.layout.positions["threads"]]]:
            path.write_bytes(before)
            dtype = library.REALS.index(accumulation_dtype(task.tensors["query"].dtype))
            command = [*level.emulator, folder / "driver", path, kernel, str(dtype), *libraries, folder / "relattn.so"]
            subprocess.run(command, check=True)
            results.add(path.read_bytes()[min(starts.values(), default=0) :])
        assert len(results) == 1, "results must not depend on the pool of threads"
        after = path.read_bytes()
        for name, start in starts.items():
            memory = memory_of(task.tensors[name])
            memory[:] = after[start : start + len(memory)]

    exact = {real: library.KERNELS[real] for real in (torch.float32, torch.float64)}
    monkeypatch.setattr(library, "KERNELS", exact)
    monkeypatch.setattr(operators.Task, "run", run)
    return names


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_kernels_agree_with_the_reference(case, ran, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: case["threads"])
    shape = LONG if case["shape"] == "long" else SHAPES[case["shape"]]
    operator, inputs, options = call_of(case, shape, case["dtype"])
    assert_within_budget(operator, inputs, "native", **options)
    assert {"forward", "backward"} <= set(ran)


@pytest.mark.parametrize("kernel", [GENERIC, DOTS])
def test_products_in_8_bits_are_exact(kernel, machine):
    level, folder = machine
    emulator = [part.replace("cortex-a53", "max") if kernel == DOTS else part for part in level.emulator]
    if kernel == DOTS and not emulator:
        return  # the lowest level of x86 has no such instructions
    torch.manual_seed(1)
    fields = library.KERNELS[torch.float32].types["linear"]
    for rows, outputs, inputs in [(1, 1, 1), (2, 17, 16), (3, 70, 33), (7, 65, 130), (50, 33, 64)]:
        x, weight = (torch.randint(-127, 128, (count, inputs)).float() for count in (rows, outputs))
        x[:, 0] = -127.0  # so that all scales are 1
        codes = F.pad(weight.to(torch.int8), (0, -inputs % GROUP, 0, -outputs % level.panel))
        panels = codes.view(-1, level.panel, codes.shape[1] // 4, 4).transpose(1, 2)
        sizes = {"rows": rows, "x_row": inputs, "inputs": inputs, "outputs": outputs, "kernel": kernel, "threads": 1}
        arrays = {
            "x": x,
            "to": torch.full((rows, outputs), torch.nan),
            "weight": panels,
            "bias": torch.zeros(len(codes)),
            "scales": torch.ones(len(codes)),
            "sums": -128 * codes.sum(1, dtype=torch.int32),
            "codes": torch.empty(rows, codes.shape[1], dtype=torch.uint8),
            "row_scales": torch.empty(rows, 2),
        }
        start = 8 * (2 + 2 * len(arrays))
        file, pointers = bytearray(start) + bytes(fields(**sizes)), dict[str, tuple[int, int]]()
        for name, array in arrays.items():
            file += bytes(-len(file) % LINE)
            pointers[name] = start + getattr(fields, name).offset, len(file)
            file += array.contiguous().numpy().tobytes()
        numbers = [number for pair in pointers.values() for number in pair]
        file[:start] = struct.pack(f"<{2 + len(numbers)}q", start, len(arrays), *numbers)
        path, at = folder / "int8", pointers["to"][1]
        path.write_bytes(bytes(file))
        subprocess.run([*emulator, folder / "driver", path, "linear", "0", folder / "relattn.so"], check=True)
        found = torch.frombuffer(bytearray(path.read_bytes()[at : at + 4 * rows * outputs]), dtype=torch.float32)
        assert torch.equal(found.view(rows, outputs), x @ weight.T)


def test_kernels_multiply_whole_vectors(machine):
    level, folder = machine
    for name in ("relattn.so", "relattn_mt.so"):
        command = [f"{level.tools}objdump", "--disassemble", folder / name]
        assert re.search(level.multiplies, subprocess.run(command, capture_output=True, text=True, check=True).stdout)
