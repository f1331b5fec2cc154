"""The engine in WebAssembly. Wheels have it; a clone compiles it when it is needed, and when its sources change."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from relattn_mt.support.errors import require

FOLDER = Path(__file__).parent
ENGINES = "simd", "relaxed"  # names of the files, and in a manifest


def engines(compiler: Path = FOLDER.parents[3] / "kernels/web.py") -> dict[str, bytes]:
    """Return the files of the engine by name. `compiler` is a script beside the sources, which compiles them.

    Raises:
        InputError: They are missing, and there are no sources or no compiler, or it fails.
    """
    paths = {name: FOLDER / f"{name}.wasm" for name in ENGINES}
    changed = max((path.stat().st_mtime for path in compiler.parent.rglob("*.[ch]")), default=0.0)
    if not all(path.exists() and path.stat().st_mtime >= changed for path in paths.values()):
        require(
            compiler.exists(),
            "this installation has no WebAssembly: install a wheel of relattn-mt, or in a clone: "
            "pip install --editable ./toolkit ziglang",
        )
        require(find_spec("ziglang"), "WebAssembly requires the compiler ziglang once: pip install ziglang")
        process = subprocess.run([sys.executable, str(compiler), str(FOLDER)], capture_output=True, encoding="locale")
        require(process.returncode == 0, f"WebAssembly could not be compiled: {process.stderr.strip()[-400:]}")
    return {name: path.read_bytes() for name, path in paths.items()}
