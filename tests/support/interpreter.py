"""Triton's interpreter in a third of its usual time."""

import ctypes
import functools
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
    - Each operation checks and describes the type and the shape of its result. Results of equal types share them.
    """
    for owner, name, value in quicker():
        monkeypatch.setattr(owner, name, value)


@functools.cache
def quicker() -> list[tuple[Any, str, Any]]:
    """Return what is replaced, each with its owner and its name."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, builder, dtype_of = interpreter._patch_lang, interpreter.interpreter_builder, interpreter._get_np_dtype
    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    types: dict[tuple[int, ...], Any] = {}
    dtypes: dict[str, Any] = {}
    tensors: dict[str, dict[str, Any]] = {}

    @functools.cache
    def modules_of(fn):
        return [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]

    def patch_unless_done(fn):
        if any(tl.core.is_builtin(module.arange) for module in modules_of(fn)):
            return patch(fn)
        return interpreter._LangPatchScope()

    def known_dtype_of(kind):
        if kind.name not in dtypes:
            dtypes[kind.name] = dtype_of(kind)
        return dtypes[kind.name]

    def type_like_earlier(self, element, shape):
        key = id(element), *(x.value if isinstance(x, tl.constexpr) else x for x in shape)
        if key not in types:
            make_type(self, element, shape)
            types[key] = self  # which keeps the address of `element`
        vars(self).update(vars(types[key]))

    def tensor_like_earlier(self, handle, kind):
        if kind.name not in tensors:
            make_tensor(self, handle, kind)
            tensors[kind.name] = vars(self) | {"handle": None}
        vars(self).update(tensors[kind.name], handle=handle, type=kind)

    return [
        (interpreter, "_patch_lang", patch_unless_done),
        (interpreter, "_get_np_dtype", known_dtype_of),
        (builder, "options", replace(builder.options, sanitize_overflow=False)),
        (tl.block_type, "__init__", type_like_earlier),
        (tl.tensor, "__init__", tensor_like_earlier),
    ]


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
