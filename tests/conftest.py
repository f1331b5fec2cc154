"""One thread a process: the tensors of tests are too small to share out, and threads that wait would only burn.

Triton's kernels run in its interpreter, which is all that a machine without a GPU can do with them; on one that has a
GPU, `python -m benchmarks.gpu core --check-only` runs them compiled.
"""

import os
import sys
from collections import Counter

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, and kernels are

SHARE = 50  # of the cases marked `sampled`, one in so many is run, and all with WHOLE_GRID=1 in the environment


@pytest.fixture(autouse=True)
def _whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter makes products of float32 whole, in a third of the time; `test_triton.py` has tests of the
    three parts that GPUs make them of. macOS has no Triton, and the tests that need none run there."""
    if sys.platform == "darwin":
        return
    from relattn.backends.triton import plan

    monkeypatch.setattr(plan, "tensor_floats", lambda: True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("WHOLE_GRID") == "1":
        return
    seen: Counter[str] = Counter()
    left_out = []
    for item in items:
        if item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % SHARE > 0:
                left_out.append(item)
            seen[test] += 1
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=left_out)
