"""The backends by name, which of them `auto` takes, and why one cannot serve a call.

A backend is a module with `CAPABILITIES` and `attend(call, return_lse)`. The choice, the error messages and the tests
read `unsupported_reason`. `python -m relattn.backends` prints what is available on a machine.
"""

from types import ModuleType

import torch

from relattn.backends import dense, native, reference, triton
from relattn.backends.autograd import has_gradients
from relattn.call import Call

BACKENDS: dict[str, ModuleType] = {"native": native, "triton": triton, "dense": dense, "reference": reference}
NAMES = tuple(BACKENDS)


def unsupported_reason(backend: str, call: Call) -> str | None:
    """Why `backend` cannot serve `call`, or None where it can; ValueError for a name that is not one."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; the backends are {', '.join(NAMES)}, or 'auto'")
    return BACKENDS[backend].CAPABILITIES.refusal_reason(call)


def choose(backend: str, call: Call) -> ModuleType:
    """The backend to run: the one named, or the fastest that can. ValueError lists the reasons where none can."""
    reasons = []
    for name in order(call) if backend == "auto" else (backend,):
        reason = unsupported_reason(name, call)
        if reason is None:
            return BACKENDS[name]
        reasons.append(f"{name}: {reason}")
    raise ValueError("no backend can serve this call; " + "; ".join(reasons))


def order(call: Call) -> tuple[str, ...]:
    """The backends from the fastest on, as measured: on a CPU the compiled kernels at every length.

    On a GPU nothing has been measured. There it is the Triton kernels from the length on where they need less memory,
    if they pass their self-test (`triton/selftest.py`), and `dense` otherwise."""
    if on_gpu(call.query.device):
        return ("triton",) if takes_triton(call) else ("dense",)
    return "native", "dense"


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available()


def takes_triton(call: Call) -> bool:
    return saves_memory(call) and unsupported_reason("triton", call) is None and triton.passed_selftest(call)


def saves_memory(call: Call) -> bool:
    """Whether `triton` needs less memory than `dense` beside inputs and results. Measured thresholds belong here.

    Without gradients it always does: `dense` makes an array of pairs all the same, and `triton` makes nothing.
    """
    tensors = (call.query, call.key, call.value, call.rel_key, call.rel_value, call.rel_query)
    return not has_gradients(tensors) or triton.bytes_for_backward(call) < bytes_of_dense(call)


def bytes_of_dense(call: Call) -> int:
    """What `dense` keeps of a head for its gradients: the probabilities of all pairs, which are dropped, and, where
    values have a table, the probabilities by label."""
    queries, keys, size = call.query.shape[2], call.key.shape[2], call.query.element_size()
    labels = 0 if call.rel_value is None else call.rel_value.shape[-2]
    return queries * ((keys + labels) * size + (keys if call.dropout_p > 0.0 else 0))
