"""The wheels of this checkout, and new environments to install them in. Imports pytest and filelock alone."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


def build_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the wheels: RELATTN_DIST, or a new one that the processes of pytest share."""
    if given := os.environ.get("RELATTN_DIST"):
        return Path(given).resolve()
    if missing := [name for name in ("ziglang", "auditwheel", "twine") if not find_spec(name)]:
        pytest.skip(f"run: make .venv/wheels, which installs {', '.join(missing)}")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(base / "wheels.lock"):
        if not (base / "wheels").exists():
            script = f"import pathlib, wheels; wheels.DIST = pathlib.Path({str(base / 'wheels.part')!r}); wheels.main()"
            done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            (base / "wheels.part").rename(base / "wheels")
    return base / "wheels"


def requirements_of(name: str) -> set[str]:
    """Return the names of the installed packages that a package requires without extras, and its own."""
    found, waiting = set(), [name]
    while waiting:
        current = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            requires = metadata.requires(current) or []
        except metadata.PackageNotFoundError:  # for another platform
            continue
        if current not in found:
            found.add(current)
            waiting += [re.match(r"[\w.-]+", line)[0] for line in requires if "extra ==" not in line]
    return found


def new_environment(directory: Path, packages: Iterable[str] | None = None) -> Path:
    """Create an environment with links to packages that are installed here, and return its programs' directory.

    Args:
        directory: Directory of the environment.
        packages: Names of the packages; all but relattn by default.
    """
    venv.create(directory, symlinks=True)
    pip = directory / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {directory}/bin/python -m pip "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    (to,) = directory.glob("lib/python*/site-packages")
    names = {each.name for each in metadata.distributions()} if packages is None else {*packages, "pip"}
    for package in map(metadata.distribution, names - {"relattn", "relattn-mt"}):
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}:
            if not (to / top).exists():
                (to / top).symlink_to(str(package.locate_file(top)))
    return directory / "bin"


def environment_with(directory: Path, *requirements: str) -> Path:
    """Create an environment with the packages of this one and others from the index. Return its programs' directory."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "fallback.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    install = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory / "bin"
