"""The backends by name, in the order `auto` tries them, and why one cannot serve a call.

A backend is a module with `relative_attention(call)`, `relation_attention(call)` and `unsupported(call)`, imported
when first needed. `unsupported_reason` serves the choice, the error message and the skips of the tests alike.
"""

from types import ModuleType

from relattn.call import Call

NAMES = ("dense", "reference")  # the order in which "auto" tries them


def load(backend: str) -> ModuleType:
    """The module of a backend; ValueError for a name that is not one."""
    match backend:
        case "dense":
            from relattn.backends import dense

            return dense
        case "reference":
            from relattn.backends import reference

            return reference
    raise ValueError(f"backend {backend!r} is not known; the backends are {', '.join(NAMES)}, or 'auto'")


def unsupported_reason(backend: str, call: Call) -> str | None:
    """Why `backend` cannot serve `call`, or None where it can."""
    return load(backend).unsupported(call)


def choose(backend: str, call: Call) -> ModuleType:
    """The backend to run: the one named, or the first that can. ValueError lists the reasons where none can."""
    names = NAMES if backend == "auto" else (backend,)
    reasons = []
    for name in names:
        reason = unsupported_reason(name, call)
        if reason is None:
            return load(name)
        reasons.append(f"{name}: {reason}")
    raise ValueError("no backend can serve this call; " + "; ".join(reasons))
