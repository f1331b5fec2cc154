"""Compile the kernels for the wheels of both distributions.

Kernels are, per processor level, one shared object per dtype that they compute in. Each distribution gets its objects,
and the header that declares their arguments, in the package that loads them.

By default, the C compiler of this machine compiles the best level of this processor and all levels below it, so that an
image also runs on processors with less. RELATTN_TARGET selects a machine and a system, for which `ziglang`, a cross
compiler on the package index, compiles all levels:

    x86_64-linux-gnu.2.28, aarch64-linux-gnu.2.28     Linux with a C library (glibc) of at least this version
    aarch64-macos.11.0                                macOS on ARM, from this version on
    none                                              no kernels, for all other machines

The objects do not depend on the versions of Python and PyTorch. Without a C compiler the package is built without them,
and uses the other backends.
"""

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent
NATIVE = Path("src/relattn/backends/native")  # of the attention kernels, below the root of their distribution
DECODER = Path("src/relattn_mt/engine")
LEVELS_MODULE = runpy.run_path(str(SOURCES.parent / "library/src/relattn/extension/levels.py"))  # its globals
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
WARNING_FLAGS = ["-Wno-psabi", "-Wno-unknown-warning-option"]  # some vectors are wider than the processor's
LIBRARIES = ["-lm", "-ldl", "-lpthread"]
DEFINES: dict[str, list[str]] = {"float32": [], "float64": ["-DREAL64"], "bfloat16": ["-DPAIRS"]}  # by dtype
DTYPES = {level.name: level.dtypes for levels in LEVELS_MODULE["LEVELS"].values() for level in levels}


class Target(NamedTuple):
    """The target of a wheel.

    Attributes:
        tag: Platform tag of the wheel.
        compilers: Command that compiles for a processor level, by level name.
    """

    tag: str
    compilers: dict[str, list[str]]


def levels(machine: str, is_macos: bool) -> list[Any]:
    """Return the processor levels to compile for. All Apple processors use the lowest level."""
    machine_levels = LEVELS_MODULE["LEVELS"].get(LEVELS_MODULE["machine_of"](machine), ())
    return list(machine_levels[-1:] if is_macos else machine_levels)


def processor_levels(machine: str, flags: set[str]) -> list[Any]:
    """Return the processor levels that a Linux machine runs, best first.

    Args:
        machine: The system's name of the machine.
        flags: Features of the processor in Linux's names.
    """
    name = LEVELS_MODULE["machine_of"](machine)
    usable = LEVELS_MODULE["features_of"](name, flags)
    names = {level for dtype in DEFINES for level in LEVELS_MODULE["supported"](name, usable, dtype)}
    return [level for level in levels(machine, is_macos=False) if level.name in names]


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler() -> list[str]:
    """Return the command of the C compiler: CC, which may have a wrapper and flags, or `cc`."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def host_target() -> Target | None:
    """Return this machine as a target of its C compiler, or None if there is no compiler."""
    if sys.platform not in ("linux", "darwin") or not shutil.which(compiler()[0]):
        return None
    host_levels = (
        levels(platform.machine(), True)
        if sys.platform == "darwin"
        else processor_levels(platform.machine(), LEVELS_MODULE["processor_flags"]())
    )
    tag = re.sub(r"\W", "_", sysconfig.get_platform()).replace("universal2", platform.machine())
    return Target(tag, {level.name: [*compiler(), *level.flags] for level in host_levels})


def parse_target(target: str) -> Target | None:
    """Return the target that a value of RELATTN_TARGET names, or None for "none"."""
    if target == "none":
        return None
    match = re.fullmatch(r"(x86_64|aarch64)-linux-gnu\.(\d+)\.(\d+)|(aarch64)-macos\.(\d+)\.(\d+)", target)
    if not match:
        raise SystemExit(f"RELATTN_TARGET must be MACHINE-linux-gnu.X.Y, aarch64-macos.X.Y or none, got {target!r}")
    if not find_spec("ziglang"):
        raise SystemExit(f"RELATTN_TARGET={target} requires the compiler ziglang: pip install ziglang")
    machine, major, minor = (group for group in match.groups() if group)
    is_macos = "macos" in target
    tag = f"macosx_{major}_{minor}_arm64" if is_macos else f"manylinux_{major}_{minor}_{machine}"
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s"]
    return Target(tag, {level.name: [*zig, *map(zig_flag, level.flags)] for level in levels(machine, is_macos)})


def zig_flag(flag: str) -> str:
    """Return a compiler flag for zig, whose processor names have _ instead of -."""
    name, equals, value = flag.partition("=")
    return name + equals + value.replace("-", "_")


def all_commands(root: Path, target: Target) -> dict[Path, list[str]]:
    """Return the commands that compile all objects of the distribution in `root`, by object file."""
    if (root / NATIVE).is_dir():
        return compile_commands("attention", "arguments.h", root / NATIVE, target, tuple(DEFINES))
    return compile_commands("decoder", "decoder.h", root / DECODER, target, ("float32",))


def compile_commands(
    kernel: str, header: str, folder: Path, target: Target, dtypes: tuple[str, ...]
) -> dict[Path, list[str]]:
    """Return the commands that compile a source file for all levels of a target, by object file.

    Output files are names and not paths, since macOS writes them into the objects.

    Args:
        kernel: Name of the source file without suffix.
        header: Name of the header whose checksum the objects contain.
        folder: Directory of the objects.
        target: The target.
        dtypes: Dtypes that the kernel supports. Levels may support fewer.
    """
    checksum = zlib.crc32((SOURCES / header).read_bytes())
    commands = {}
    for level, level_compiler in target.compilers.items():
        for dtype in (dtype for dtype in DTYPES[level] if dtype in dtypes):
            path = folder / f"{kernel}-{level}-{dtype}.so"
            flags = [*FLAGS, *WARNING_FLAGS, *DEFINES[dtype], f"-DCHECKSUM={checksum}u"]
            commands[path] = [*level_compiler, *flags, str(SOURCES / f"{kernel}.c"), *LIBRARIES, "-o", path.name]
    return commands


class CompileKernels(BuildHookInterface):
    """Compile all kernels and add them to the wheel.

    For this machine, kernels that cannot be compiled are left out with a warning. With RELATTN_TARGET this is an error.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        target_name = os.environ.get("RELATTN_TARGET", "")
        target = parse_target(target_name) if target_name else host_target()
        if target is None:
            if not target_name:
                self.app.display_warning(
                    "relattn: no C compiler for the kernels of backend 'native'; building without them"
                )
            return
        root = Path(self.root)
        commands = all_commands(root, target)
        folder = next(iter(commands)).parent
        header = shutil.copy(SOURCES / ("arguments.h" if folder == root / NATIVE else "decoder.h"), folder)
        build_data["artifacts"].append(f"/{Path(header).relative_to(root)}")
        self.app.display_info(f"relattn: compiling {len(commands)} kernels for {', '.join(target.compilers)}")

        def is_compiled_by(path: Path, command: list[str]) -> bool:
            path.unlink(missing_ok=True)
            return subprocess.run(command, cwd=path.parent).returncode == 0

        with ThreadPool(cores()) as pool:  # one compiler takes up to half a gigabyte
            results = pool.starmap(is_compiled_by, commands.items(), chunksize=1)
        is_compiled = {path.relative_to(root): result for path, result in zip(commands, results, strict=True)}
        for path, succeeded in is_compiled.items():
            if succeeded:
                build_data["artifacts"].append(f"/{path}")
            elif target_name:
                raise SystemExit(f"relattn: {path.name} could not be compiled for {target_name}")
            else:
                self.app.display_warning(f"relattn: {path.name} could not be compiled; building without it")
        if any(is_compiled.values()):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{target.tag}"  # for every version of Python
