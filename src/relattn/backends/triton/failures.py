"""Why kernels cannot run: no Triton, too old a GPU, or a compiler that gave up on one.

Where it did, the error says so in one line, and calls of the kind are refused from then on.
"""

import contextlib
import importlib.util
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from relattn.backends.triton import verdicts
from relattn.backends.triton.kinds import Kind, kind_of_call
from relattn.call import Call

OLDEST = (8, 0)  # compute capability
REASONS: dict[tuple[str, Kind], str] = {}  # of the compiler, by chip and kind, as met by this process


@torch.compiler.assume_constant_result
def lacking_for(device: torch.device) -> str | None:
    """Why the kernels run for no tensor on a device of a type that they serve, or None where they do."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton); use dense"
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < OLDEST):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 8.0 or newer; use dense"
    return None


class NotCompiledError(RuntimeError):
    """A kernel that this version of Triton does not compile for this chip."""


@contextlib.contextmanager
def compiling(kernel: Any, call: Call) -> Iterator[None]:
    """Around the launch of a kernel of a call: where the compiler fails, `NotCompiledError` says so, and calls of the
    kind are refused with the same words from then on."""
    try:
        yield
    except Exception as error:
        if not of_compiler(error):
            raise
        device, kind = call.query.device, kind_of_call(call)
        name, of = verdicts.chip(device), verdicts.triton_version()
        why = f"could not be compiled for {name} by Triton {of}: {first_line(error)} ({kernel.__name__})"
        REASONS[name, kind] = why
        verdicts.record(device, kind, verdicts.Verdict(False, why))
        raise NotCompiledError(f"triton: {why}") from None


@torch.compiler.assume_constant_result
def reason(device: torch.device, *traits: object) -> str | None:
    """Why calls of the kind with these traits are refused on a device, where a kernel of theirs did not compile."""
    return REASONS.get((verdicts.chip(device), Kind(*traits)))  # type: ignore[arg-type]


def of_compiler(error: Exception) -> bool:
    """Whether an error is from Triton's compiler, not from the launch, memory or files.

    Compiler passes fail with a plain RuntimeError, which is known by having come out of `triton.compile`.
    """
    import triton
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    if isinstance(error, CompilationError | OutOfResources | PTXASError):
        return True
    code = triton.compile.__code__
    inside = any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))
    return inside and not isinstance(error, OSError | MemoryError)


def first_line(error: BaseException) -> str:
    """What went wrong in the innermost function, without the source lines that Triton puts in front."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = getattr(error, "error_message", None) or str(error)
    return f"{type(error).__name__}: {next(iter(words.strip().splitlines()), 'no more is known')}"
