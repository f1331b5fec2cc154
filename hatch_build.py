"""Builds the compiled kernels into the wheel by the C compiler at hand: for each level of processor a shared object
that computes in float32 and one that computes in float64.

The objects know nothing of Python or PyTorch versions. Where there is no C compiler, or no Linux, the package is
whole without them: the other backends do their work.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from itertools import product
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/relattn/backends/native")
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
QUIET = ["-Wno-psabi", "-Wno-unknown-warning-option"]  # vectors wider than a processor's are taken apart: as intended
REALS: dict[str, list[str]] = {"float32": [], "float64": ["-DREAL64"]}  # numbers to compute in


def levels() -> dict[str, list[str]]:
    """The processors to compile for, with the flags that name them."""
    match platform.machine():
        case "x86_64" | "AMD64":
            return {"x86-64-v3": ["-march=x86-64-v3"], "x86-64-v4": ["-march=x86-64-v4"]}
        case "aarch64":
            return {"aarch64": []}
    return {}


def compiler() -> list[str]:
    """The compiler that CC names, perhaps by a wrapper and with flags; nothing where it is not there."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    return command if shutil.which(command[0]) else []


def commands(folder: Path) -> dict[Path, list[str]]:
    """How each object is compiled."""
    checksum = zlib.crc32((folder / "arguments.h").read_bytes())
    start = [*compiler(), *FLAGS, *QUIET, f"-DCHECKSUM={checksum}u", str(folder / "attention.c"), "-lm", "-ldl"]
    found = {}
    for (level, flags), (real, defines) in product(levels().items(), REALS.items()):
        target = folder / f"attention-{level}-{real}.so"
        found[target] = [*start, *flags, *defines, "-o", str(target)]
    return found


class CompileKernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform != "linux" or not compiler():
            self.app.display_warning(
                "relattn: no C compiler for the kernels of backend 'native'; going on without them"
            )
            return
        running = {}
        for target, command in commands(Path(self.root) / NATIVE).items():
            target.unlink(missing_ok=True)
            running[target] = subprocess.Popen(command)
        compiled = {target.name: process.wait() == 0 for target, process in running.items()}
        for name in compiled:
            if compiled[name]:
                build_data["artifacts"].append(f"/{NATIVE}/{name}")
            else:
                self.app.display_warning(f"relattn: {name} could not be compiled; going on without it")
        if any(compiled.values()):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_')}"  # no Python of its own inside
