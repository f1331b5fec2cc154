"""Compile the kernels for the wheels of both distributions.

The kernels of attention are, per processor level, one shared object per dtype that they compute in. The engine of the
toolkit is one library with all levels. Each distribution gets its objects, and the header that declares their
arguments, in the package that loads them.

By default, the C compiler of this machine compiles attention for the best level of this processor and all levels below
it, so that an image also runs on processors with less. RELATTN_TARGET selects a machine and a system, for which
`ziglang`, a cross compiler on the package index, compiles all levels:

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
ENGINE = Path("src/relattn_mt/engine")
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
WARNING_FLAGS = ["-Wno-psabi", "-Wno-unknown-warning-option"]  # some vectors are wider than the processor's
LIBRARIES = ["-lm", "-ldl", "-lpthread"]
DEFINES: dict[str, list[str]] = {"float32": [], "float64": ["-DREAL64"], "bfloat16": ["-DPAIRS"]}  # by dtype
_BF16 = ["-march=x86-64-v4", "-mavx512bf16"]
LEVELS: dict[str, dict[str, list[str]]] = {  # flags of GCC and Clang per level of a machine, best first
    "x86_64": {
        "x86-64-v4-amx": [*_BF16, "-mamx-tile", "-mamx-bf16"],
        "x86-64-v4-bf16": _BF16,
        "x86-64-v4": ["-march=x86-64-v4"],
        "x86-64-v3": ["-march=x86-64-v3"],
        "x86-64": ["-march=x86-64"],
    },
    "aarch64": {"aarch64-sve256": ["-mcpu=generic+sve", "-msve-vector-bits=256"], "aarch64": []},
}
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}  # names on Windows and macOS
EXACT = ["float32", "float64"]
DTYPES = {"x86-64-v4-amx": ["bfloat16"], "x86-64-v4-bf16": ["bfloat16"]}  # of attention per level; else EXACT


class Target(NamedTuple):
    """The target of a wheel.

    Attributes:
        tag: Platform tag of the wheel.
        compilers: Command that compiles for a processor level, by level name.
        is_host: Whether it is this machine.
    """

    tag: str
    compilers: dict[str, list[str]]
    is_host: bool = False


def levels(machine: str, is_macos: bool) -> dict[str, list[str]]:
    """Return the compiler flags of all processor levels, best first. All Apple processors use the lowest level."""
    machine_levels = list(LEVELS.get(ALIASES.get(machine.lower(), machine.lower()), {}).items())
    return dict(machine_levels[-1:] if is_macos else machine_levels)


def processor_levels(root: Path) -> set[str]:
    """Return the levels that this processor runs, by the module that chooses one in the distribution in `root`."""
    module = runpy.run_path(str(root / NATIVE / "levels.py"))  # its globals
    machine = module["machine_of"](platform.machine())
    features = module["features_of"](machine, module["processor_flags"]())
    return {level for dtype in DEFINES for level in module["supported"](machine, features, dtype)}


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
    host_levels = levels(platform.machine(), sys.platform == "darwin")
    tag = re.sub(r"\W", "_", sysconfig.get_platform()).replace("universal2", platform.machine())
    return Target(tag, {level: [*compiler(), *flags] for level, flags in host_levels.items()}, is_host=True)


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
    return Target(tag, {level: [*zig, *map(zig_flag, flags)] for level, flags in levels(machine, is_macos).items()})


def zig_flag(flag: str) -> str:
    """Return a compiler flag for zig, whose processor names have _ instead of -."""
    name, equals, value = flag.partition("=")
    return name + equals + value.replace("-", "_")


def all_commands(root: Path, target: Target) -> dict[Path, list[list[str]]]:
    """Return the commands that compile the distribution in `root`, by object file: the last one makes the file.

    They run in the directory of the file. Output files are names and not paths, since macOS writes them into objects.
    """
    return attention_commands(root, target) if (root / NATIVE).is_dir() else engine_commands(root, target)


def attention_commands(root: Path, target: Target) -> dict[Path, list[list[str]]]:
    """Return the commands for attention: an object per level and dtype, with the checksum of its header."""
    checksum = zlib.crc32((SOURCES / "attention/arguments.h").read_bytes())
    names = processor_levels(root) if target.is_host and sys.platform == "linux" else target.compilers.keys()
    commands = {}
    for level, level_compiler in ((level, found) for level, found in target.compilers.items() if level in names):
        for dtype in DTYPES.get(level, EXACT):
            path = root / NATIVE / f"attention-{level}-{dtype}.so"
            flags = [*FLAGS, *WARNING_FLAGS, *DEFINES[dtype], f"-DCHECKSUM={checksum}u", "-shared"]
            commands[path] = [
                [*level_compiler, *flags, str(SOURCES / "attention/attention.c"), *LIBRARIES, "-o", path.name]
            ]
    return commands


def engine_commands(root: Path, target: Target) -> dict[Path, list[list[str]]]:
    """Return the commands for the engine: an object per level, and `levels.c`, which chooses one, in one library."""
    commands, names = [], [level for level in target.compilers if level not in DTYPES]
    flags = [*FLAGS, *WARNING_FLAGS, "-fvisibility=hidden"]
    for level in names:
        defines = [f"-DENGINE=relattn_{level.replace('-', '_')}", f'-DLEVEL="{level}"']
        source = ["-c", str(SOURCES / "engine/decoder.c"), "-o", f"{level}.o"]
        commands.append([*target.compilers[level], *flags, *defines, *source])
    defines = ["-DLEVELS=" + " ".join(f"LEVEL({level.replace('-', '_')})" for level in names)]
    parts = [str(SOURCES / "levels.c"), *(f"{level}.o" for level in names), *LIBRARIES]
    path = root / ENGINE / "relattn_mt.so"
    link = [*target.compilers[names[-1]], *flags, *defines, "-shared", *parts, "-o", path.name]
    return {path: [*commands, link]}


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
        header = shutil.copy(
            SOURCES / ("attention/arguments.h" if folder == root / NATIVE else "engine/relattn_mt.h"), folder
        )
        build_data["artifacts"].append(f"/{Path(header).relative_to(root)}")
        self.app.display_info(f"relattn: compiling {len(commands)} objects for {', '.join(target.compilers)}")

        def run(command: list[str]) -> bool:
            return subprocess.run(command, cwd=folder).returncode == 0

        for path in commands:
            path.unlink(missing_ok=True)
        with ThreadPool(cores()) as pool:  # one compiler takes up to half a gigabyte
            parts = pool.map(run, [part for steps in commands.values() for part in steps[:-1]], chunksize=1)
            results = pool.map(lambda steps: all(parts) and run(steps[-1]), commands.values(), chunksize=1)
        for part in folder.glob("*.o"):
            part.unlink()
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
