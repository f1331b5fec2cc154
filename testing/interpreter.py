"""Triton's interpreter in two thirds of its time."""

import pytest


def patch_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip repeated work of the interpreter: each call of a device function replaces all functions of the language.

    They have been replaced at the launch of the kernel, and stay so until it ends. An internal function of Triton is
    wrapped; results are the same.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_unless_done(fn):
        modules = [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]
        if any(tl.core.is_builtin(module.arange) for module in modules):
            return patch(fn)
        return interpreter._LangPatchScope()

    monkeypatch.setattr(interpreter, "_patch_lang", patch_unless_done)
