"""The calls of examples/other_packages.py against the classes, installed here. Needs the package index.

PyTorch and what else fits come from this environment.
"""

import os
import subprocess

from benchmarks.packages import CLASSES
from tests.support.environments import ROOT, environment_with


def test_classes_of_other_packages(tmp_path):
    python = environment_with(tmp_path, "--no-deps", "--requirement", str(ROOT / "benchmarks/packages.txt")) / "python"
    variables = os.environ | {"PYTHONPATH": str(ROOT / "library/src")}
    compare = [python, "-m", "benchmarks.packages"]
    done = subprocess.run(compare, capture_output=True, text=True, env=variables, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in CLASSES)
