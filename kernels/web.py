"""Compile the engine to WebAssembly, with `ziglang`: python web.py DIRECTORY

It writes simd.wasm, and relaxed.wasm for browsers with relaxed SIMD. A file that cannot be compiled ends it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "engine"
ENGINES: dict[str, list[str]] = {"simd.wasm": [], "relaxed.wasm": ["-mrelaxed-simd"]}  # flags of each
TARGET = ["-target", "wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-s", "-Wl,-z,stack-size=262144"]
# A fused product and sum would give other scores than a processor that has no such instruction.
FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wno-psabi"]
NAMES = ["-DPART=relattn_wasm", '-DLEVEL_NAME="wasm"', '-DLEVEL_FILE="wasm.h"']


def main(folder: str) -> None:
    sources = [str(SOURCES / name) for name in ("web.c", "engine.c")]
    for name, flags in ENGINES.items():
        compiler = [sys.executable, "-m", "ziglang", "cc", *TARGET, *FLAGS, *NAMES, *flags]
        with tempfile.TemporaryDirectory(dir=folder) as own:  # several processes may compile at once
            part = Path(own) / name
            if subprocess.run([*compiler, *sources, "-o", str(part)]).returncode != 0:
                raise SystemExit(f"{name} could not be compiled")
            part.replace(Path(folder) / name)


if __name__ == "__main__":
    main(sys.argv[1])
