"""Settings of all tests.

PyTorch's random state is the same at the start of every test, whichever tests ran before it in the process. Each
process uses one thread: the tensors of tests are too small to divide.
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=20, database=None)
settings.load_profile("suite")
# Signals that the shell has the process ignore, as in the background and under nohup: children would ignore them too.
# A process under nohup still survives the end of its terminal.
HANDLERS = {"SIGINT": signal.default_int_handler, "SIGHUP": lambda *_: None, "SIGTERM": None, "SIGCHLD": None}
IGNORED = [
    number
    for number in (getattr(signal, name, None) for name in HANDLERS)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN
]
for number in IGNORED:
    signal.signal(number, HANDLERS[number.name] or signal.SIG_DFL)
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]  # a proxy cannot reach the servers of tests
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
gc.disable()  # until the tests are collected


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave the objects of imported modules out of garbage collections, which take a fifth of the time of imports."""
    os.environ.pop("PYTHONWARNDEFAULTENCODING", None)  # pytest's workers have read it; other processes would warn
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Ignore the signals again that the process ignored before the tests."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch  # after the number of threads is set

    torch.default_generator.manual_seed(0)  # `torch.manual_seed` takes 0.2 ms on a machine without a GPU
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


def global_state() -> dict[str, object]:
    """Return what a test may change and has to restore: settings of Python, of PyTorch and of modules here, by name."""
    import torch

    plain = {bool, int, float, str, type(None)}
    modules = [
        (name, module)
        for name, module in sys.modules.items()
        if name.startswith(("relattn.", "relattn_mt.", "benchmarks."))
    ]
    return {
        f"{module}.{name}": value
        for module, namespace in modules
        for name, value in vars(namespace).items()
        if type(value) in plain
    } | {
        **{f"${name}": value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "directory": os.getcwd(),
        "sys.path": [*sys.path],
        **{name: signal.getsignal(getattr(signal, name)) for name in HANDLERS if hasattr(signal, name)},
        "logging": (logging.root.level, logging.root.manager.disable),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
    }


@pytest.fixture(autouse=True, scope="module")  # for each test, it would take a tenth of the time of all
def _globals_are_restored() -> Iterator[None]:
    """Assert that a test file leaves the process as it was. Libraries may add environment variables when imported."""
    before = global_state()
    yield
    after = global_state()
    changed = {name: (value, after.get(name)) for name, value in before.items() if value != after.get(name)}
    assert changed == {}
