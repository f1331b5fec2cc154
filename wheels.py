"""Build both distributions for a package index into dist/: their sources, and a wheel per target (`make wheels`).

A wheel must contain the library of its target and no other compiled files. On Linux, `auditwheel` must confirm that the
library runs with the C library of the wheel's tag. `twine` must accept all distributions.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kernels.build import parse_target

ROOT = Path(__file__).parent
DISTRIBUTIONS = ("library", "toolkit")  # their folders
DIST = ROOT / "dist"
WEB = ["relaxed.wasm", "simd.wasm"]  # in all wheels of the toolkit
COMPILED = ".so", ".dylib", ".pyd", ".wasm"
TARGETS = ("x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28", "aarch64-macos.11.0", "none")  # values of RELATTN_TARGET


def build(format_flag: str, source: Path, target: str = "") -> Path:
    """Build a distribution and return its path in dist/.

    Args:
        format_flag: "--sdist" or "--wheel".
        source: Directory or source distribution to build from.
        target: Value of RELATTN_TARGET.
    """
    existing = set(DIST.iterdir())
    command = [sys.executable, "-m", "build", format_flag, "--no-isolation", "--outdir", str(DIST), str(source)]
    process = subprocess.run(command, env=os.environ | {"RELATTN_TARGET": target}, capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit(f"{process.stdout}{process.stderr}{source.name} could not be built for {target or 'an index'}")
    (distribution,) = set(DIST.iterdir()) - existing
    return distribution


def check_objects(wheel: Path, target_name: str) -> list[str]:
    """Return the compiled files of a wheel; exit with an error if they or its tag are not the target's."""
    target = parse_target(target_name)
    tag = target.tag if target else "any"
    name = wheel.name.partition("-")[0]
    expected = [f"{name}.so"] if target else []
    if name == "relattn_mt":
        expected += WEB
    with zipfile.ZipFile(wheel) as archive:
        objects = sorted(Path(name).name for name in archive.namelist() if name.endswith(COMPILED))
    if not wheel.name.endswith(f"-py3-none-{tag}.whl") or objects != sorted(expected):
        raise SystemExit(
            f"a wheel for {target_name} must have the tag {tag} and {expected}, got {wheel.name}, {objects}"
        )
    return objects


def audit_platform(wheel: Path) -> str:
    """Return the platform of a wheel's objects by `auditwheel`; exit if it is newer than the wheel's tag."""
    process = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    platform = re.search(r'following platform tag: "(manylinux_(\d+)_(\d+)_\w+)"', " ".join(process.stdout.split()))
    tagged = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if not platform or not tagged or tuple(map(int, platform.groups()[1:])) > tuple(map(int, tagged.groups())):
        raise SystemExit(
            f"{process.stdout}{process.stderr}{wheel.name}: the objects require a newer platform than the tag"
        )
    return platform[1]


def report(path: Path, details: str = "") -> None:
    """Print the name and the size of a distribution."""
    print(f"{path.name:50} {path.stat().st_size / 1000:4.0f} kB  {details}", flush=True)


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for distribution in DISTRIBUTIONS:
        source = build("--sdist", ROOT / distribution)
        report(source)
        for target in TARGETS:
            wheel = build("--wheel", source, target)
            objects = check_objects(wheel, target)
            platform = f"; auditwheel: {audit_platform(wheel)}" if "linux" in target else ""
            report(wheel, f"{', '.join(objects) or 'no kernels'}{platform}")
    names = sorted(path.name for path in DIST.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *names], cwd=DIST, check=True)


if __name__ == "__main__":
    main()
