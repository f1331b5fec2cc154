"""Settings of all tests.

PyTorch's random state is the same at the start of every test, whichever tests ran before it in the process. Each
process uses one thread: the tensors of tests are too small to divide. Triton's kernels run in its interpreter. On a
machine with a GPU, `python -m benchmarks.gpu check --out DIR` runs them compiled.
"""

import os
import signal
import sys

import pytest
from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=20, database=None)
settings.load_profile("suite")
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background process ignores it, as would its children
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch  # after the number of threads is set

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _full_float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels compute float32 products directly, which takes a third of the interpreter's time.

    On GPUs they are sums of three tf32 products, which `test_triton.py` tests. macOS has no Triton.
    """
    if sys.platform == "darwin":
        return
    from relattn.backends.triton import plan

    monkeypatch.setattr(plan, "tensor_floats", lambda: True)
