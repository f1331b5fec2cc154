"""Builds the compiled kernels into the wheel: one shared object for each level of processor, by the C compiler at hand.

The objects know nothing of Python or PyTorch versions. Where there is no C compiler, or no Linux, the package is
whole without them: the other backends do their work.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/relattn/backends/native")
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
QUIET = ["-Wno-psabi", "-Wno-unknown-warning-option"]  # vectors wider than a processor's are taken apart: as intended


def levels() -> dict[str, list[str]]:
    """The processors to compile for, with the flags that name them."""
    match platform.machine():
        case "x86_64" | "AMD64":
            return {"x86-64-v3": ["-march=x86-64-v3"], "x86-64-v4": ["-march=x86-64-v4"]}
        case "aarch64":
            return {"aarch64": []}
    return {}


class CompileKernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if sys.platform != "linux" or compiler is None:
            self.app.display_warning(
                "relattn: no C compiler for the kernels of backend 'native'; going on without them"
            )
            return
        folder = Path(self.root) / NATIVE
        for level, flags in levels().items():
            target = folder / f"attention-{level}.so"
            command = [compiler, *FLAGS, *QUIET, *flags, str(folder / "attention.c"), "-o", str(target), "-lm", "-ldl"]
            if subprocess.run(command, check=False).returncode != 0:
                self.app.display_warning(f"relattn: {compiler} could not compile for {level}; going on without")
                continue
            build_data["artifacts"].append(f"/{NATIVE}/{target.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_')}"  # no Python of its own inside
