"""The kernels of `native` on processors that need not be there: the tests' own cases, by an emulator.

The kernels are compiled for each level of processor, by a cross compiler where it is another machine's, and the tests
that hold `native` to the equations run as always, but that a call's arguments and tensors go into a file, on which a
small program (`emulated.c`) runs the kernel under QEMU. PyTorch itself is not emulated: the arguments are the same
bytes on all 64-bit Linux machines that put the low byte first. Calls of several threads run twice, without GNU
OpenMP, whose threads PyTorch brings along, and with it, and have to come to the same bits. Exits 1 where a case fails.
"""

import argparse
import contextlib
import ctypes
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor

import hatch_build
from relattn.backends.native import levels, library, operators
from relattn.backends.native.library import name_of
from relattn.call import accumulation_dtype
from tests.support import numerics

SOURCE = Path(__file__).with_suffix(".c")
TESTS = ("tests/test_backends.py", "tests/test_native.py")
LEFT_OUT = (
    "test_long_sequences",  # calls too long
    "test_gradients_are_limits_of_differences",  # or too many
    "test_the_kernels_are_compiled_where_tests_run",  # these look at objects of this process, which do not run here
    "test_each_way_to_multiply_bfloat16_is_taken_where_it_is_asked_for",
    "test_where_there_is_no_pool_kernels_run_on_as_many_new_threads_as_there_are",
)
SHARE = 11  # one case in so many: a prime, so that the sample meets each of a test's options with each other
OPENMP = "libgomp.so.1"
LINE = 64  # bytes that tensors are aligned to in a file, as in PyTorch's memory
PACKAGES = {
    "gcc": "gcc",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "qemu-aarch64": "qemu-user",
}  # Debian's, by the commands that they bring


class Level(NamedTuple):
    """How a level of processor is tried: what compiles for it, what runs its programs, and what multiplies there."""

    tools: str  # how the names of compiler and disassembler start
    emulator: tuple[str, ...]
    multiplies: str  # instructions that multiply whole vectors


ARM, EMULATOR = "aarch64-linux-gnu-", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu")
LEVELS = {
    "x86-64": Level("", (), r"\bmulp[sd]\b"),
    "aarch64": Level(ARM, (*EMULATOR, "cortex-a53"), r"\bfmla\s+v"),
    "aarch64-sve256": Level(ARM, (*EMULATOR, "max,sve-default-vector-length=32"), r"\bfm(la|ad)\s+z"),
}
FLAGS = {level.name: level.flags for of_machine in levels.LEVELS.values() for level in of_machine}


def missing(level: Level) -> list[str]:
    """Commands that are not there for a level."""
    return [command for command in (f"{level.tools}gcc", *level.emulator[:1]) if shutil.which(command) is None]


def compile_into(folder: Path, name: str) -> None:
    """The kernels of each number, as they are compiled for a wheel, and the program that runs them."""
    compiler, kernels = f"{LEVELS[name].tools}gcc", str(library.HERE / "attention.c")
    start = [compiler, *hatch_build.FLAGS, *hatch_build.QUIET, *FLAGS[name], "-DCHECKSUM=0", kernels]
    commands = [[compiler, str(SOURCE), "-ldl", "-o", str(folder / "driver")]]
    for real in levels.EXACT:
        commands.append([*start, *hatch_build.DEFINES[real], *hatch_build.LIBRARIES, "-o", str(folder / f"{real}.so")])
    for command in commands:
        subprocess.run(command, check=True)


def multiplies(folder: Path, level: Level, real: str) -> int:
    """Instructions of an object that multiply whole vectors."""
    command = [f"{level.tools}objdump", "--disassemble", str(folder / f"{real}.so")]
    return len(re.findall(level.multiplies, subprocess.run(command, capture_output=True, text=True, check=True).stdout))


class Machine:
    """Where kernels are run, in processes of their own: the objects and the program in a folder, and an emulator."""

    def __init__(self, folder: Path, emulator: tuple[str, ...] = ()) -> None:
        self.folder, self.emulator = folder, emulator

    def run(self, task: operators.Task, kernel: str, **tensors: Tensor) -> None:
        """Stands in for `Task.run`. Several threads run without GNU OpenMP and then with it, to the same bits."""
        task.point(**tensors)
        before, starts = written(task)
        file, name = self.folder / "call", f"relattn_{kernel}"
        program = [*self.emulator, str(self.folder / "driver"), str(file), name]
        results = set()
        for given in ([], [OPENMP])[: task.arguments.threads]:
            file.write_bytes(before)
            subprocess.run([*program, *given, str(self.folder / f"{name_of(task.real)}.so")], check=True)
            after = file.read_bytes()
            results.add(after[min(starts.values(), default=0) :])
        assert len(results) == 1, "results depend on whose threads they are made by"
        for tensor, start in starts.items():
            memory = memory_of(task.tensors[tensor])
            memory[:] = after[start : start + len(memory)]


def memory_of(x: Tensor) -> Any:
    """The bytes from a tensor's first number to its last."""
    numbers = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (ctypes.c_char * (numbers * x.element_size())).from_address(x.data_ptr())


def written(task: operators.Task) -> tuple[bytes, dict[str, int]]:
    """A call as `emulated.c` reads it, and where in it the tensors start."""
    kind = type(task.arguments)
    there = {name: x for name, x in task.tensors.items() if x.numel() > 0}
    arguments = 8 * (2 + 2 * len(there))
    file = bytearray(arguments) + bytes(task.arguments)
    starts = {}
    for name, x in there.items():
        file += bytes(-len(file) % LINE)
        starts[name] = len(file)
        file += memory_of(x)
    pointers = [(arguments + getattr(kind, name).offset, start) for name, start in starts.items()]
    head = [arguments, len(pointers), *(place for pointer in pointers for place in pointer)]
    file[:arguments] = struct.pack(f"<{len(head)}q", *head)
    return bytes(file), starts


class Sample:
    """A plugin of pytest's: takes one in so many of each test's cases on `native`, and keeps count by number."""

    def __init__(self, machine: Machine, share: int) -> None:
        self.machine, self.share = machine, share
        self.cases: defaultdict[str, set[str]] = defaultdict(set)
        self.worst: defaultdict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))  # error, and its case
        self.case = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seen: Counter[str] = Counter()
        taken = []
        for item in items:
            test, case = item.nodeid.partition("[")[0], getattr(item, "callspec", None)
            best = library.SUPPORTED["float32"][0]
            usual = {"backend": "native", "level": best, "products": "float32"}
            given = usual | ({} if case is None else case.params)
            if all(given[name] == value for name, value in usual.items()):  # or it is another case once more
                if seen[test] % self.share == 0:
                    taken.append(item)
                seen[test] += 1
        items[:] = taken

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.case = item.nodeid

    def run(self, task: operators.Task, kernel: str, **tensors: Tensor) -> None:
        self.cases[name_of(task.real)].add(self.case)
        self.machine.run(task, kernel, **tensors)

    def note(self, inputs: dict[str, Tensor | None], found: dict[str, tuple[float, float]]) -> None:
        assert inputs["query"] is not None
        number = name_of(accumulation_dtype(inputs["query"].dtype))
        shares = [(off / allowed, self.case) for off, allowed in found.values() if off > 0]
        self.worst[number] = max([self.worst[number], *shares])

    def test(self) -> bool:
        """Runs the tests. Whether they passed."""
        measured = numerics.measured

        def noted(operator: Callable[..., Any], inputs: Any, *rest: Any, **options: Any) -> Any:
            found = measured(operator, inputs, *rest, **options)
            self.note(inputs, found)
            return found

        def run(task: operators.Task, kernel: str, **tensors: Tensor) -> None:
            self.run(task, kernel, **tensors)

        numbers = {real: kernels for real, kernels in library.KERNELS.items() if name_of(real) in levels.EXACT}
        patches = ((operators.Task, "run", run), (numerics, "measured", noted), (library, "KERNELS", numbers))
        with contextlib.ExitStack() as held:
            for patch in patches:
                held.enter_context(mock.patch.object(*patch))
            options = [f"--deselect=tests/test_native.py::{name}" for name in LEFT_OUT]
            return pytest.main([*TESTS, *options, "-p", "no:cacheprovider", "--tb=short"], plugins=[self]) == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated", description=__doc__)
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS), help="levels of processor")
    parser.add_argument("--share", type=int, default=SHARE, help="run one case in so many; 1 for all")
    options = parser.parse_args()
    lacking = {command for level in options.levels for command in missing(LEVELS[level])}
    if lacking:
        sys.exit("\n".join(f"no {command}: apt-get install {PACKAGES[command]}" for command in sorted(lacking)))

    torch.set_num_threads(1)
    ends = [held(name, options.share) for name in options.levels]
    print(*(line for _, lines in ends for line in lines), sep="\n")
    sys.exit(not all(passed for passed, _ in ends))


def held(name: str, share: int) -> tuple[bool, list[str]]:
    """A level of processor, held to the equations: whether it passed, and what there is to say."""
    level, start = LEVELS[name], perf_counter()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        compile_into(folder, name)
        sample = Sample(Machine(folder, level.emulator), share)
        passed = sample.test()
        found = {real: multiplies(folder, level, real) for real in levels.EXACT}
    passed = passed and all(found.values()) and all(sample.cases[real] for real in found)
    end = f"{'passed' if passed else 'FAILED'} in {perf_counter() - start:.0f} s"
    lines = [f"{name} {end}: {version(f'{level.tools}gcc')}; {version(*level.emulator[:1])}"]
    for real, multiplications in found.items():
        worst, case = sample.worst[real]
        counts = f"{len(sample.cases[real])} cases; {multiplications} multiplications of vectors in the code"
        lines.append(f"  {real}: {counts}; worst error {worst:.2f} of what is allowed, {case}")
    return passed, lines


def version(command: str = "") -> str:
    """What a command says of itself in its first line."""
    if not command:
        return "not emulated"
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
