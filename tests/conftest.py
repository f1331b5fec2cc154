"""Two tiers of tests: `make test` runs the first, in about three minutes, `make test-all` all (`pytest --all`).

The first tier has every test but those marked `whole`, which take long by nature (they install, compile for GPUs, train
in several processes), or long for what they add; and of a test marked `sampled(n)` its first case and every n-th from
there on. A test's mark, or else a case's, goes before its file's. Every command and every backend, Triton's
by its interpreter, has tests in it.

One thread a process: the tensors of tests are too small to share out, and threads that wait would only burn.

Triton's kernels run in its interpreter, which is all that a machine without a GPU can do with them; on one that has a
GPU, `python -m benchmarks.gpu core --check-only` runs them compiled.
"""

import os
import signal
import sys
from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=20, database=None)
settings.load_profile("suite")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background would have what tests start ignore it
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, and kernels are


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the whole tier, not the first alone")


@pytest.fixture(autouse=True)
def _whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter makes products of float32 whole, in a third of the time; `test_triton.py` has tests of the
    three parts that GPUs make them of. macOS has no Triton, and the tests that need none run there."""
    if sys.platform == "darwin":
        return
    from relattn.backends.triton import plan

    monkeypatch.setattr(plan, "tensor_floats", lambda: True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    cases: Counter[tuple[str, int]] = Counter()
    chosen, left_out = [], []
    for item in items:
        sampled = item.get_closest_marker("sampled")
        share = 1 if sampled is None else sampled.args[0]
        test = item.nodeid.partition("[")[0], share
        chosen_now = item.get_closest_marker("whole") is None and cases[test] % share == 0
        (chosen if chosen_now else left_out).append(item)
        cases[test] += 1
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)
