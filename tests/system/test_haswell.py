"""Tests on an emulated processor with AVX2 and nothing newer.

Variables lower the levels of PyTorch, oneDNN, MKL and our kernels (`make test-avx2`), but CTranslate2 and others still
see the real processor. QEMU shows the emulated one to all of them. Processes that a test starts are not emulated.
"""

import os
import platform
import shutil
import subprocess
import sys

import pytest

from tests.support.environments import ROOT

NAMED = (  # at most ten
    "library/tests/test_native.py::test_kernels_are_compiled_where_tests_run",
    "library/tests/test_native.py::test_bfloat16_is_multiplied_by_the_instructions_of_its_level",
    "library/tests/integrations/test_int8.py::test_sums_are_exact",
    "library/tests/integrations/test_int8.py::test_a_model_is_close_in_any_batch_and_restored",
    "toolkit/tests/engine/test_int8.py::test_sums_are_exact",
    "toolkit/tests/engine/test_int8.py::test_a_search_in_one_call_finds_what_steps_find",
    "toolkit/tests/engine/test_decoder.py::test_scores_and_attention_of_given_translations",
    "toolkit/tests/formats/test_ctranslate2.py::test_types_of_weights",
    "toolkit/tests/formats/test_ctranslate2.py::test_commands",
)


def test_named_tests_pass_on_a_haswell():
    if platform.machine() != "x86_64" or not (emulator := shutil.which("qemu-x86_64")):
        pytest.skip("run: apt-get install qemu-user")
    python = [emulator, "-cpu", "Haswell", sys.executable]
    command = [*python, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "600", "-v", *NAMED]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
