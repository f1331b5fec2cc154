"""Reasons why the kernels cannot run: Triton is missing, the GPU is not supported, or a kernel did not compile.

A kernel that the compiler rejects raises an error of one line. From then on, calls of the same kind are refused with
that line for the rest of the process.
"""

import contextlib
import importlib.util
import os
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from relattn.backends.triton.configs import padded
from relattn.call import Call

OLDEST = (8, 0)  # compute capability
ASSEMBLER = "TRITON_PTXAS_PATH"  # environment variable of Triton
SOUND_ASSEMBLER = (12, 9)  # version of ptxas
ASSEMBLER_LOCK = threading.RLock()  # Triton's settings are global


class Kind(NamedTuple):
    """Properties of a call that select the compiled kernels. Calls of one kind run nearly the same machine code."""

    dtype: torch.dtype
    dim: int  # of query and key, padded
    value_dim: int  # padded
    relations: bool  # the caller labels the pairs, not the position
    mask: bool
    dropout: bool
    tf32: bool  # products of float32 are computed in TF32
    rel_dim: int | None = None  # of rel_query, padded; None without a rel_query
    window: bool = False
    chunks: bool = False  # the window moves from chunk to chunk
    pos_query: bool = False

    def __str__(self) -> str:
        dtype = "float32 as tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        traits = "relations" if self.relations else "positions"
        traits += ", mask" * self.mask + ", dropout" * self.dropout
        traits += ", chunks" if self.chunks else ", window" * self.window
        traits += ", pos_query" * self.pos_query
        dims = f"dim {self.dim}, value_dim {self.value_dim}"
        if self.rel_dim is not None:
            dims += f", rel_dim {self.rel_dim}"
        return f"{dtype}, {dims}, {traits}"


COMPILE_ERRORS: dict[tuple[str, Kind], str] = {}  # by chip and kind of call


def kind_of(call: Call) -> Kind:
    """Return the kind of a call."""
    dtype, rel_query, dropout, chunks = call.query.dtype, call.rel_query, False, False
    if call.dropout_p > 0.0:  # `torch.compile` keeps the comparison symbolic unless a branch depends on it
        dropout = True
    if call.chunk > 1:
        chunks = True
    return Kind(
        dtype,
        dim=padded(call.query.shape[3]),
        value_dim=padded(call.value.shape[3]),
        relations=call.relations is not None,
        mask=call.mask is not None,
        dropout=dropout,
        tf32=dtype == torch.float32 and tensor_floats(),
        rel_dim=None if rel_query is None else padded(rel_query.shape[3]),
        window=call.window_left is not None or call.window_right is not None,
        chunks=chunks,
        pos_query=call.pos_query is not None,
    )


@torch.compiler.assume_constant_result
def tensor_floats() -> bool:
    """Return whether PyTorch's settings allow TF32 in float32 matrix products on GPUs."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def chip(device: torch.device) -> str:
    """Return the name of a GPU. Other devices run the kernels in Triton's interpreter."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} (Triton's interpreter)"


def unavailable_reason(call: Call) -> str | None:
    """Return why the kernels cannot run for a call, or None if they can."""
    device = call.query.device
    reason = unsupported_device(device)
    if reason is None and COMPILE_ERRORS:
        reason = compile_error(device, *kind_of(call))
    return reason


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


@torch.compiler.assume_constant_result
def compile_error(device: torch.device, *kind: Any) -> str | None:
    """Return why calls of a kind are refused on a device, or None if no kernel of that kind failed to compile."""
    return COMPILE_ERRORS.get((chip(device), Kind(*kind)))


class NotCompiledError(RuntimeError):
    """A kernel that this version of Triton cannot compile for this GPU."""


@contextlib.contextmanager
def compiling(kernel: Any, call: Call) -> Iterator[None]:
    """Wrap the launch of a kernel. A compiler error is remembered for the kind of call and becomes
    `NotCompiledError`."""
    try:
        yield
    except Exception as error:
        if not is_from_compiler(error):
            raise
        import triton

        name = chip(call.query.device)
        compiler = f"Triton {triton.__version__}"
        reason = f"could not be compiled for {name} by {compiler}: {first_line(error)} ({kernel.__name__})"
        COMPILE_ERRORS[name, kind_of(call)] = reason
        raise NotCompiledError(f"triton: {reason}") from None


@contextlib.contextmanager
def assembler(generation: int) -> Iterator[None]:
    """Let kernels for Hopper be compiled with the newer one of Triton's two assemblers.

    ptxas 12.8, which Triton 3.6 and 3.7 use for Hopper, may compute the address of a product's operand from an
    undefined register, so that a kernel reads outside of its memory. The ptxas for newer GPUs in the same package does
    not. An assembler that the environment names is used as it is.
    """
    path = newer_assembler() if generation == 9 else None
    if path is None:
        yield
        return
    from triton import knobs

    with ASSEMBLER_LOCK, knobs.nvidia.scope():
        knobs.nvidia.ptxas = path
        yield


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
