"""Triton's interpreter in half of its usual time."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out work of the interpreter that changes no result. Internal functions of Triton are wrapped.

    - Each call of a device function replaces all functions of the language. They have been replaced at the launch of
      the kernel, and stay so until it ends.
    - Every sum and product of 32-bit integers is computed in 64 bits too, to detect overflows, whose results would be
      wrong in any case. The test of far addresses in `tests/system/test_interpreter.py`, in its own process, does so.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch, builder = interpreter._patch_lang, interpreter.interpreter_builder

    def patch_unless_done(fn):
        modules = [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]
        if any(tl.core.is_builtin(module.arange) for module in modules):
            return patch(fn)
        return interpreter._LangPatchScope()

    monkeypatch.setattr(interpreter, "_patch_lang", patch_unless_done)
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


def launch_of(kernel: Any, programs: int, arguments: dict[str, Any]) -> Any:
    """Return what launches a kernel like a compiled one: with arguments in order, and addresses instead of tensors."""

    def tensor_at(address: int, recorded: Any) -> Any:
        if isinstance(recorded, torch.Tensor):
            memory = (ctypes.c_char * 8).from_address(address)  # the kernel computes further addresses itself
            return torch.frombuffer(memory, dtype=recorded.dtype)
        return address

    def with_tensors(x: Any, recorded: Any) -> Any:
        if isinstance(recorded, tuple):
            return type(recorded)(*map(with_tensors, x, recorded))
        return tensor_at(x, recorded)

    def launch(*given: Any) -> None:
        recorded = [arguments[name] for name in kernel.arg_names]
        tensors = map(with_tensors, given, recorded)
        kernel[(programs,)](**dict(zip(kernel.arg_names, tensors, strict=True)))

    return launch
