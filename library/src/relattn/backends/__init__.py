"""The backends by name, the choice of `auto`, and the reasons why a backend refuses a call.

A backend is a module with `CAPABILITIES` and `attend(call, return_lse)`. The choice, the error messages and the tests
read `unsupported_reason`. `python -m relattn.backends` prints what is available on a machine.
"""

from types import ModuleType

import torch

from relattn.backends import dense, native, reference, triton
from relattn.call import Call

BACKENDS: dict[str, ModuleType] = {"native": native, "triton": triton, "dense": dense, "reference": reference}
NAMES = tuple(BACKENDS)


def check_name(backend: str) -> None:
    """Check the name of a backend, or "auto"."""
    if backend != "auto" and backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, or 'auto', got {backend!r}")


def unsupported_reason(backend: str, call: Call) -> str | None:
    """Return why `backend` refuses `call`, or None if it supports it.

    Raises:
        ValueError: `backend` is not the name of a backend.
    """
    check_name(backend)
    return BACKENDS[backend].CAPABILITIES.refusal_reason(call)


def choose(backend: str, call: Call) -> ModuleType:
    """Return the backend to run: the one named, or for "auto" the fastest that supports the call.

    Raises:
        ValueError: No such backend supports the call. The message has the reasons, and the backends that support it.
    """
    check_name(backend)
    reasons = {}
    for name in order(call) if backend == "auto" else (backend,):
        reason = BACKENDS[name].CAPABILITIES.refusal_reason(call)
        if reason is None:
            return BACKENDS[name]
        reasons[name] = reason
    supporting = [name for name in NAMES if BACKENDS[name].CAPABILITIES.refusal_reason(call) is None]
    hint = f"; backends that support it: {', '.join(supporting) or 'none'}"
    raise ValueError(f"{'; '.join(f'{name} does not support this call: {why}' for name, why in reasons.items())}{hint}")


def order(call: Call) -> tuple[str, ...]:
    """Return the backends for "auto", fastest first.

    On a CPU the compiled kernels were measured to be fastest at every length, and on a Hopper GPU the Triton kernels.
    They have not been run on other GPUs, and are used there only if they are named.
    """
    if on_gpu(call.query.device):
        is_best = triton.is_measured(call.query.device) and unsupported_reason("triton", call) is None
        return ("triton",) if is_best else ("dense",)
    return "native", "dense"


def on_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU that PyTorch can use."""
    return device.type == "cuda" and torch.cuda.is_available()
