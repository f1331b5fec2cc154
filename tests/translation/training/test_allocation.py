"""Tests of memory that training keeps."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIZE = 256 << 20  # bytes
CODE = f"""
import resource
from pathlib import Path
import numpy as np
from relattn.translation.training.allocation import freed_memory_kept

def allocate():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty({SIZE}, dtype=np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = resident()
with freed_memory_kept():
    allocate()
    print(resident() - before, allocate())
print(resident() - before, allocate())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has such settings")
def test_freed_memory_is_used_again_and_returned_at_the_end():
    """Memory beyond that at the start, and pages that the system had to provide, inside and after."""
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    (kept, faults), (left, faults_after) = (map(int, line.split()) for line in run.stdout.splitlines())
    assert left < SIZE / 2 < kept
    assert faults < 20 < faults_after
