"""Enable and disable the forward patches: on classes, for all their modules, or on the modules of one model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import MethodType, TracebackType

from torch import nn

from relattn.integrations.transformers.forward_patch import ORIGINAL, PACKAGE, ForwardPatch

TESTED = ("5.23.0", "5.24")  # tested versions of transformers: at least the first, below the second


class Enabled:
    """The classes or modules that one call of `enable` patched. As a context manager, it unpatches these on exit."""

    def __init__(self, patched: list[type[nn.Module] | nn.Module]) -> None:
        self.patched = patched

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for owner in self.patched:
            _restore(owner)


def enable(model: nn.Module | None = None) -> Enabled:
    """Compute relative attention with relattn in one model, or in all models of the supported families.

    What is already enabled stays as it is.

    Args:
        model: the model to patch. None patches the classes, and so all their models, including those created later.

    Returns:
        A context manager. Leaving its block undoes what this call changed. Without a block the change stays.

    Raises:
        ImportError: transformers is not installed.
        RuntimeError: the installed version of transformers was not tested. The message gives the tested versions.
    """
    _require_tested_version()
    patched: list[type[nn.Module] | nn.Module] = []
    if model is None:
        for patch in _patches():
            module_type = patch.load_class()
            if not hasattr(module_type.forward, ORIGINAL):
                module_type.forward = patch.wrap(module_type.forward)  # type: ignore[method-assign]
                patched.append(module_type)
        return Enabled(patched)
    for module, patch in _patchable_modules(model):
        if not hasattr(module.forward, ORIGINAL):
            module.forward = MethodType(patch.wrap(type(module).forward), module)  # type: ignore[method-assign]
            patched.append(module)
    return Enabled(patched)


def disable(model: nn.Module | None = None) -> None:
    """Undo `enable`.

    Args:
        model: the model to restore. None restores the classes; models that were enabled on their own stay enabled.
    """
    if model is None:
        for patch in _patches():
            _restore(patch.load_class())
    else:
        for module, _ in _patchable_modules(model):
            _restore(module)


def _restore(owner: type[nn.Module] | nn.Module) -> None:
    """Restore the original forward of a class or a module. Does nothing if it is not patched."""
    forward = owner.__dict__.get("forward")
    if not hasattr(forward, ORIGINAL):
        return
    if isinstance(owner, nn.Module):
        del owner.forward
    else:
        owner.forward = getattr(forward, ORIGINAL)  # type: ignore[method-assign]


def report(model: nn.Module) -> str:
    """Report which modules use relattn.

    Args:
        model: the model to inspect.

    Returns:
        One line per module of a supported class: its name, its class, and "relattn" or why it does not.
    """
    lines = []
    for name, module in model.named_modules():
        patch = _find_patch(module)
        if patch is None:
            continue
        reason = patch.unsupported_reason(module)
        if reason is None and not hasattr(module.forward, ORIGINAL):
            reason = "not enabled"
        lines.append(f"{name or 'the model'} ({type(module).__name__}): {'relattn' if reason is None else reason}")
    return "\n".join(lines) or f"{type(model).__name__}: no module of a supported class"


def _patchable_modules(model: nn.Module) -> Iterable[tuple[nn.Module, ForwardPatch]]:
    """Yield each module of `model` whose class has a patch, with that patch."""
    for module in model.modules():
        if (patch := _find_patch(module)) is not None:
            yield module, patch


def _find_patch(module: nn.Module) -> ForwardPatch | None:
    """Return the patch for the class of `module`, or None."""
    module_type = type(module)
    class_path = f"{module_type.__module__.removeprefix(f'{PACKAGE}.')}.{module_type.__qualname__}"
    return _patches_by_class_path().get(class_path)


@functools.cache
def _patches_by_class_path() -> dict[str, ForwardPatch]:
    return {patch.class_path: patch for patch in _patches()}


@functools.cache
def _patches() -> tuple[ForwardPatch, ...]:
    from relattn.integrations.transformers import families  # imports transformers

    return families.PATCHES


def _require_tested_version() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError('transformers must be installed: pip install "relattn[transformers]"') from error
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    first, end = (tuple(int(part) for part in bound.split(".")[:2]) for bound in TESTED)
    if not first <= version < end:
        raise RuntimeError(
            f"transformers must have a tested version (at least {TESTED[0]}, below {TESTED[1]}), got "
            f"{transformers.__version__}; install a tested version"
        )
