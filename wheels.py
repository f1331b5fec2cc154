"""Builds what an index takes into dist/: the source distribution, and from that a wheel for each target. `make wheels`.

A wheel has to hold the kernels of its target and nothing compiled besides, and, on Linux, objects of which `auditwheel`
says that they need no newer C library than the wheel's tag does. `twine` has to take all of them.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import hatch_build

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
TARGETS = ("x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28", "aarch64-macos.11.0", "none")  # of RELATTN_TARGET


def build(kind: str, source: Path, target: str = "") -> Path:
    """What a build writes into dist/."""
    before = set(DIST.iterdir())
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(DIST), str(source)]
    done = subprocess.run(command, env=os.environ | {"RELATTN_TARGET": target}, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{done.stderr}{source.name} could not be built for {target or 'an index'}")
    (made,) = set(DIST.iterdir()) - before
    return made


def checked(wheel: Path, target: str) -> list[str]:
    """The objects of a wheel; it ends with an error where they or its tag are not the target's."""
    found = hatch_build.named(target)
    tag = found.tag if found else "any"
    expected = sorted(path.name for path in hatch_build.all_commands(ROOT, found)) if found else []
    with zipfile.ZipFile(wheel) as archive:
        objects = sorted(Path(name).name for name in archive.namelist() if name.endswith((".so", ".dylib", ".pyd")))
    if not wheel.name.endswith(f"-py3-none-{tag}.whl") or objects != expected:
        raise SystemExit(f"{wheel.name} holds {objects}, and for {target} it is to be tagged {tag} and hold {expected}")
    return objects


def audited(wheel: Path) -> str:
    """The platform that `auditwheel` reads off a wheel's objects; an error where the tag says less."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    platform = re.search(r'following platform tag: "(manylinux_(\d+)_(\d+)_\w+)"', " ".join(done.stdout.split()))
    tagged = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if not platform or not tagged or tuple(map(int, platform.groups()[1:])) > tuple(map(int, tagged.groups())):
        raise SystemExit(f"{done.stdout}{done.stderr}{wheel.name}: its objects are not what its tag says")
    return platform[1]


def report(path: Path, *words: str) -> None:
    print(f"{path.name:50} {path.stat().st_size / 1000:4.0f} kB ", *words, flush=True)


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    source = build("--sdist", ROOT)
    report(source)
    for target in TARGETS:
        wheel = build("--wheel", source, target)
        objects = checked(wheel, target)
        platform = f"; auditwheel: {audited(wheel)}" if "linux" in target else ""
        report(wheel, f"{len(objects)} objects{platform}")
    made = sorted(path.name for path in DIST.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *made], cwd=DIST, check=True)


if __name__ == "__main__":
    main()
