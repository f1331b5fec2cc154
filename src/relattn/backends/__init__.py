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
NUMBERS = 13  # of a query, at most, that "triton" keeps for its gradients or makes of them


def check_name(backend: str) -> None:
    """Check the name of a backend, or "auto"."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, or 'auto', got {backend!r}")


def unsupported_reason(backend: str, call: Call) -> str | None:
    """Return why `backend` refuses `call`, or None if it supports it."""
    check_name(backend)
    return BACKENDS[backend].CAPABILITIES.refusal_reason(call)


def choose(backend: str, call: Call) -> ModuleType:
    """Return the backend to run: the one named, or for "auto" the fastest that supports the call.

    Raises:
        ValueError: No such backend supports the call; the message lists the reasons.
    """
    check_name(backend)
    reasons = []
    for name in order(call) if backend == "auto" else (backend,):
        reason = BACKENDS[name].CAPABILITIES.refusal_reason(call)
        if reason is None:
            return BACKENDS[name]
        reasons.append(f"{name}: {reason}")
    raise ValueError(f"a backend must support the call, got {'; '.join(reasons)}")


def order(call: Call) -> tuple[str, ...]:
    """The backends from the fastest on, as measured: on a CPU the compiled kernels at every length.

    On a GPU nothing has been measured. There it is the Triton kernels from the length on where they need less memory,
    once a trial has seen them agree with the equations there (`triton/trust.py`), and `dense` otherwise."""
    if on_gpu(call.query.device):
        return ("triton",) if takes_triton(call) else ("dense",)
    return "native", "dense"


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available()


def takes_triton(call: Call) -> bool:
    if not saves_memory(call) or unsupported_reason("triton", call) is not None:
        return False
    from relattn.backends.triton import trust

    return trust.trusted(call)


def saves_memory(call: Call) -> bool:
    """Whether `triton` needs less memory than `dense` beside inputs and results. Measured thresholds belong here.

    Without gradients it always does: `dense` makes an array of pairs all the same, and `triton` makes nothing.
    """
    tensors = (call.query, call.key, call.value, call.rel_key, call.rel_value, call.rel_query)
    return not has_gradients(tensors) or bytes_of_triton(call) < bytes_of_dense(call)


def bytes_of_dense(call: Call) -> int:
    """What `dense` keeps of a head for its gradients: the probabilities of all pairs, which are dropped, and, where
    values have a table, the probabilities by label."""
    queries, keys, size = call.query.shape[2], call.key.shape[2], call.query.element_size()
    labels = 0 if call.rel_value is None else call.rel_value.shape[-2]
    return queries * ((keys + labels) * size + (keys if call.dropout_p > 0.0 else 0))


def bytes_of_triton(call: Call) -> int:
    """The most that `triton` has of a head for its gradients: numbers of each query, and backward, which `dense` is not
    charged for, the gradients of the tables for each block of about 64 queries: of all rows, or, where labels are by
    position, of about as many as there are keys and queries of a block. All are float32."""
    queries, tables = call.query.shape[2], [table for table in (call.rel_key, call.rel_value) if table is not None]
    of_tables = sum(table.shape[-2] * table.shape[-1] for table in tables)
    if call.relations is None and call.query_offsets is None:
        of_tables = min(of_tables, sum((call.key.shape[2] + 64) * table.shape[-1] for table in tables))
    return 4 * (queries * NUMBERS + max(queries, 64) * of_tables // 64)
