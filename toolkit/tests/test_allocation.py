"""Tests of memory that is kept, and memory that is returned to the system."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.foreign_bundles import make_bundle

ROOT = Path(__file__).parents[2]
SIZE = 256 << 20  # bytes
CODE = f"""
import resource
from pathlib import Path
import numpy as np
from relattn_mt.support.allocation import freed_memory_kept

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


QUANTIZED = """
import ctypes, resource, sys
from pathlib import Path
from relattn_mt import load

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

translator = load(sys.argv[1], precision="int8", threads=1)
before = resident()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident(), Path(sys.argv[1], "model.safetensors").stat().st_size)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has such settings")
def test_a_quantized_model_keeps_no_memory_of_its_weights(tmp_path):
    make_bundle(tmp_path / "bundle", dim=256, heads=4, feed_forward_dim=1024, encoder_layers=6, decoder_layers=6)
    arguments = [sys.executable, "-c", QUANTIZED, str(tmp_path / "bundle")]
    run = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    left, weights = map(int, run.stdout.split())
    assert left < weights / 20
