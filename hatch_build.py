"""Builds the compiled kernels into the wheel: for each level of processor a shared object that computes in float32 and
one that computes in float64, or one for bfloat16 where it has instructions for that.

They are compiled for the machine at hand by its own C compiler; or for the machine and system that RELATTN_TARGET
names, by `ziglang`, a compiler for all of them that the package index has:

    x86_64-linux-gnu.2.28, aarch64-linux-gnu.2.28     Linux with a C library (glibc) of at least that version
    aarch64-macos.11.0                                macOS on ARM, from that version on
    none                                              no kernels, for all other machines

The objects know nothing of Python or PyTorch versions. Where there is no C compiler, the package is whole without
them: the other backends do their work.
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
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/relattn/backends/native")
DECODER = Path("src/relattn/translation/kernels")
PROCESSORS = runpy.run_path(str(Path(__file__).parent / NATIVE / "levels.py"))
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
QUIET = ["-Wno-psabi", "-Wno-unknown-warning-option"]  # vectors wider than a processor's are taken apart: as intended
LIBRARIES = ["-lm", "-ldl", "-lpthread"]
DEFINES: dict[str, list[str]] = {"float32": [], "float64": ["-DREAL64"], "bfloat16": ["-DPAIRS"]}  # by number
NUMBERS = {level.name: level.dtypes for levels in PROCESSORS["LEVELS"].values() for level in levels}


class Target(NamedTuple):
    """What the wheel is for: its platform tag, and for each level of processor the command that compiles for it."""

    tag: str
    compilers: dict[str, list[str]]


def levels(machine: str, is_macos: bool) -> list[Any]:
    """The processors to compile for. Apple's are of one level, the lowest."""
    found = PROCESSORS["LEVELS"].get(PROCESSORS["machine_of"](machine), ())
    return list(found[-1:] if is_macos else found)


def compiler() -> list[str]:
    """The compiler that CC names, perhaps by a wrapper and with flags."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def at_hand() -> Target | None:
    """This machine, by its compiler; None where that is not there."""
    if sys.platform not in ("linux", "darwin") or not shutil.which(compiler()[0]):
        return None
    found = levels(platform.machine(), sys.platform == "darwin")
    tag = re.sub(r"\W", "_", sysconfig.get_platform()).replace("universal2", platform.machine())
    return Target(tag, {level.name: [*compiler(), *level.flags] for level in found})


def named(target: str) -> Target | None:
    """What RELATTN_TARGET says; None for no kernels."""
    if target == "none":
        return None
    found = re.fullmatch(r"(x86_64|aarch64)-linux-gnu\.(\d+)\.(\d+)|(aarch64)-macos\.(\d+)\.(\d+)", target)
    if not found:
        raise SystemExit(f"RELATTN_TARGET is {target!r}, not MACHINE-linux-gnu.X.Y, aarch64-macos.X.Y or none")
    if not find_spec("ziglang"):
        raise SystemExit(f"RELATTN_TARGET={target} is compiled by ziglang, which is not there: pip install ziglang")
    machine, major, minor = (group for group in found.groups() if group)
    is_macos = "macos" in target
    tag = f"macosx_{major}_{minor}_arm64" if is_macos else f"manylinux_{major}_{minor}_{machine}"
    start = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s"]
    return Target(tag, {level.name: [*start, *map(in_zig, level.flags)] for level in levels(machine, is_macos)})


def in_zig(flag: str) -> str:
    """A compiler's flag as zig takes it, which has _ for - in the names of processors."""
    name, equals, value = flag.partition("=")
    return name + equals + value.replace("-", "_")


def commands(folder: Path, target: Target) -> dict[Path, list[str]]:
    """Return the commands that compile the objects of attention, to be run in `folder`.

    Outputs are names and not paths, since macOS writes them into the objects.
    """
    return commands_of("attention", "arguments.h", folder, target, tuple(DEFINES))


def decoder_commands(folder: Path, target: Target) -> dict[Path, list[str]]:
    """The same for the decoder of the toolkit, which computes in float32 and includes headers of attention."""
    found = commands_of("decoder", "decoder.h", folder, target, ("float32",))
    return {made: [*command, f"-I{os.path.relpath(NATIVE, DECODER)}"] for made, command in found.items()}


def all_commands(root: Path, target: Target) -> dict[Path, list[str]]:
    """Return the commands that compile all objects of the project below `root`."""
    return {**commands(root / NATIVE, target), **decoder_commands(root / DECODER, target)}


def commands_of(
    kernel: str, header: str, folder: Path, target: Target, numbers: tuple[str, ...]
) -> dict[Path, list[str]]:
    checksum = zlib.crc32((folder / header).read_bytes())
    found = {}
    for level, start in target.compilers.items():
        for number in (number for number in NUMBERS[level] if number in numbers):
            made = folder / f"{kernel}-{level}-{number}.so"
            given = [*FLAGS, *QUIET, *DEFINES[number], f"-DCHECKSUM={checksum}u", f"{kernel}.c", *LIBRARIES]
            found[made] = [*start, *given, "-o", made.name]
    return found


class CompileKernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = os.environ.get("RELATTN_TARGET", "")
        target = named(asked) if asked else at_hand()
        if target is None:
            if not asked:
                self.app.display_warning(
                    "relattn: no C compiler for the kernels of backend 'native'; going on without them"
                )
            return
        root, running = Path(self.root), {}
        for made, command in all_commands(root, target).items():
            made.unlink(missing_ok=True)
            running[made] = subprocess.Popen(command, cwd=made.parent)
        compiled = {made.relative_to(root): process.wait() == 0 for made, process in running.items()}
        for path, is_made in compiled.items():
            name = path.name
            if is_made:
                build_data["artifacts"].append(f"/{path}")
            elif asked:
                raise SystemExit(f"relattn: {name} could not be compiled for {asked}")
            else:
                self.app.display_warning(f"relattn: {name} could not be compiled; going on without it")
        if any(compiled.values()):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{target.tag}"  # no Python of its own inside
