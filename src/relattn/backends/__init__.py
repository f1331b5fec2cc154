"""The backends by name, which of them `auto` takes, and why one cannot serve a call.

A backend is a module with `relative_attention(call)`, `relation_attention(call)` and `unsupported(call)`, imported
when first needed. `unsupported_reason` serves the choice, the error message and the skips of the tests alike.
"""

from types import ModuleType

import torch

from relattn.call import Call

NAMES = ("native", "triton", "dense", "merged", "reference")
MERGED_FROM = 2048  # keys from which "merged" is faster than "dense" on a CPU: docs/backends.md


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
    `dense` for short sequences and `merged` for long ones; `dense` elsewhere, where nothing has been measured.

    `triton` is to be asked for by name until it has been checked and timed on a GPU (`python -m benchmarks.gpu`)."""
    if unsupported_reason("native", call) is None:
        return ("native",)
    on_cpu = call.query.device.type == "cpu" and not torch.compiler.is_exporting()
    if on_cpu and call.key.shape[2] >= MERGED_FROM:
        return ("native", "merged", "dense", "reference")
    return ("native", "dense", "reference")
