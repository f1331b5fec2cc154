"""Whether the kernels can run on a device, and how they are compiled. A compiler's error becomes one line."""

import contextlib
import importlib.util
import os
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

OLDEST = (8, 0)  # compute capability
ASSEMBLER = "TRITON_PTXAS_PATH"  # environment variable of Triton
SOUND_ASSEMBLER = (12, 9)  # version of ptxas
ASSEMBLER_LOCK = threading.RLock()  # Triton's settings are global


@torch.compiler.assume_constant_result
def tensor_floats() -> bool:
    """Return whether PyTorch's settings allow TF32 in float32 matrix products on GPUs."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def chip(device: torch.device) -> str:
    """Return the name of a GPU. Other devices run the kernels in Triton's interpreter."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} (Triton's interpreter)"


@torch.compiler.assume_constant_result
def unsupported_device(device: torch.device) -> str | None:
    """Return why the kernels cannot run on a device, or None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < OLDEST):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 8.0 or newer"
    return None


@torch.compiler.assume_constant_result
def is_hopper(device: torch.device) -> bool:
    """Return whether a device is a GPU of compute capability 9."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def device_of(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a device is the current one."""
    is_current = device.type != "cuda" or device.index == torch.cuda.current_device()
    return contextlib.nullcontext() if is_current else torch.cuda.device(device)


class NotCompiledError(RuntimeError):
    """A kernel that this version of Triton cannot compile for this GPU."""


@contextlib.contextmanager
def compiling(kernel: Any, device: torch.device) -> Iterator[None]:
    """Make a device the current one, and turn a compiler's error at the launch of a kernel into `NotCompiledError`."""
    if is_hopper(device):
        use_sound_assembler(kernel)
    try:
        with device_of(device):
            yield
    except Exception as error:
        if not is_from_compiler(error):
            raise
        import triton

        raise NotCompiledError(
            f"triton: {kernel.__name__} must be compiled for {chip(device)} by Triton {triton.__version__}, got "
            f"{first_line(error)}; backend='dense' runs everywhere"
        ) from None


@cache
def use_sound_assembler(kernel: Any) -> None:
    """Let a kernel for Hopper be compiled with the newer one of Triton's two assemblers.

    ptxas 12.8, which Triton 3.6 and 3.7 use for Hopper, may compute the address of a product's operand from an
    undefined register, so that a kernel reads outside of its memory. The ptxas for newer GPUs in the same package does
    not. An assembler that the environment names is used as it is. Launches of a compiled kernel do not pay for this.
    """
    path = newer_assembler()
    if path is None:
        return
    from triton import knobs

    compile_kernel = kernel._do_compile

    def compile_with_newer(*arguments: Any, **options: Any) -> Any:
        with ASSEMBLER_LOCK, knobs.nvidia.scope():
            knobs.nvidia.ptxas = path
            return compile_kernel(*arguments, **options)

    kernel._do_compile = compile_with_newer


@cache
def newer_assembler() -> str | None:
    """Return the path of the assembler to use instead of Triton's choice, or None."""
    from triton import knobs

    if os.environ.get(ASSEMBLER) or not hasattr(knobs.nvidia, "ptxas_blackwell"):
        return None
    is_faulty = version_of(knobs.nvidia.ptxas) < SOUND_ASSEMBLER <= version_of(knobs.nvidia.ptxas_blackwell)
    return str(knobs.nvidia.ptxas_blackwell.path) if is_faulty else None


def version_of(tool: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in tool.version.split("."))


def is_from_compiler(error: Exception) -> bool:
    """Return whether an error comes from Triton's compiler, and not from a launch, memory or files.

    Compiler passes raise a plain RuntimeError, which is recognised by `triton.compile` in its traceback.
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
    """Return the first line of the innermost error, without the source lines that Triton adds to it."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = getattr(error, "error_message", None) or str(error)
    return f"{type(error).__name__}: {next(iter(message.strip().splitlines()), 'no message')}"
