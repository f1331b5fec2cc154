"""Settings of the tests of the library: Triton's kernels run in its interpreter.

On a machine with a GPU, `python -m benchmarks.gpu first --out DIR` runs them compiled.
"""

import sys

import pytest


@pytest.fixture(autouse=True)
def _triton_is_quick(_globals_are_restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save time in Triton's interpreter: leave out work that changes nothing, and compute float32 products directly.

    On GPUs these are sums of three tf32 products, which `test_triton.py` tests. macOS has no Triton.
    """
    if sys.platform == "darwin":
        return
    from relattn.backends.triton import plan

    from tests.support.interpreter import quicken

    quicken(monkeypatch)
    monkeypatch.setattr(plan, "tensor_floats", lambda: True)
