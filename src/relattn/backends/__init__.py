"""The backends by name, which of them `auto` takes, and why one cannot serve a call.

A backend is a module with `relative_attention(call)`, `relation_attention(call)` and `unsupported(call)`, imported
when first needed. `unsupported_reason` serves the choice, the error message and the skips of the tests alike.
"""

from types import ModuleType

import torch

from relattn.call import Call

NAMES = ("native", "triton", "dense", "merged", "reference")
MERGED_FROM = 2048  # keys from which "merged" is faster than "dense" on a CPU: docs/backends.md
NUMBERS = 13  # of a query, at most, that "triton" keeps for its gradients or makes of them


def load(backend: str) -> ModuleType:
    """The module of a backend; ValueError for a name that is not one."""
    match backend:
        case "native":
            from relattn.backends import native

            return native
        case "triton":
            from relattn.backends import triton

            return triton
        case "dense":
            from relattn.backends import dense

            return dense
        case "merged":
            from relattn.backends import merged

            return merged
        case "reference":
            from relattn.backends import reference

            return reference
    raise ValueError(f"backend {backend!r} is not known; the backends are {', '.join(NAMES)}, or 'auto'")


def unsupported_reason(backend: str, call: Call) -> str | None:
    """Why `backend` cannot serve `call`, or None where it can."""
    return load(backend).unsupported(call)


def choose(backend: str, call: Call) -> ModuleType:
    """The backend to run: the one named, or the fastest that can. ValueError lists the reasons where none can."""
    reasons = []
    for name in order(call) if backend == "auto" else (backend,):
        reason = unsupported_reason(name, call)
        if reason is None:
            return load(name)
        reasons.append(f"{name}: {reason}")
    raise ValueError("no backend can serve this call; " + "; ".join(reasons))


def order(call: Call) -> tuple[str, ...]:
    """The backends from the fastest on, as measured: on a CPU the compiled kernels at every length. Without them
    `dense` for short sequences and `merged` for long ones.

    On a GPU nothing has been measured. There it is the Triton kernels from the length on where they need less memory,
    once a trial has seen them agree with the equations there (`trust.py`), and `dense` otherwise."""
    if on_gpu(call.query.device):
        return ("triton",) if takes_triton(call) else ("dense", "reference")
    if unsupported_reason("native", call) is None:
        return ("native",)
    on_cpu = call.query.device.type == "cpu" and not torch.compiler.is_exporting()
    if on_cpu and call.key.shape[2] >= MERGED_FROM:
        return ("native", "merged", "dense", "reference")
    return ("native", "dense", "reference")


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available()


def takes_triton(call: Call) -> bool:
    if not saves_memory(call) or unsupported_reason("triton", call) is not None:
        return False
    from relattn.backends import trust

    return trust.trusted(call)


def saves_memory(call: Call) -> bool:
    """Whether `triton` needs less memory than `dense` beside inputs and results. Measured thresholds belong here.

    Without gradients it always does: `dense` makes an array of pairs all the same, and `triton` makes nothing.
    """
    tensors = (call.query, call.key, call.value, call.rel_key, call.rel_value)
    has_gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return not has_gradients or bytes_of_triton(call) < bytes_of_dense(call)


def bytes_of_dense(call: Call) -> int:
    """What `dense` keeps of a head for its gradients: the probabilities of all pairs, which are dropped, and, where
    values have a table, the probabilities by label."""
    queries, keys, size = call.query.shape[2], call.key.shape[2], call.query.element_size()
    labels = 0 if call.rel_value is None else call.rel_value.shape[-2]
    return queries * ((keys + labels) * size + (keys if call.dropout_p > 0.0 else 0))


def bytes_of_triton(call: Call) -> int:
    """The most that `triton` has of a head for its gradients: numbers of each query, and backward, which `dense` is not
    charged for, the gradients of the tables for each block of about 64 queries. All are float32."""
    queries, tables = call.query.shape[2], (call.rel_key, call.rel_value)
    of_tables = sum(table.shape[-2] * table.shape[-1] for table in tables if table is not None)
    return 4 * (queries * NUMBERS + max(queries, 64) * of_tables // 64)
