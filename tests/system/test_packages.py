"""The calls of docs/reference/packages.md against the classes, installed here. Needs the package index.

PyTorch and what else fits come from this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

from benchmarks.packages import CLASSES
from tests.support.environments import ROOT


def test_classes_of_other_packages(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (packages / "fallback.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    python = tmp_path / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", "benchmarks/packages.txt"]
    done = subprocess.run(install, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    compare = [python, "-m", "benchmarks.packages"]
    done = subprocess.run(compare, capture_output=True, text=True, env=variables, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in CLASSES)
