"""Enable and disable the forward patches: on classes, for all their modules, or on the modules of one model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import MethodType, TracebackType

from torch import nn

from relattn.checks import check_window
from relattn.functional import Window
from relattn.integrations.transformers.forward_patch import ORIGINAL, PACKAGE, WINDOW, ForwardPatch

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


def enable(model: nn.Module | None = None, *, window: Window = None) -> Enabled:
    """Compute relative attention with relattn in one model, or in all models of the supported families.

    What is already enabled stays as it is.

    Args:
        model: the model to patch. None patches the classes, and so all their models, including those created later.
        window: the sliding window (left, right) of one model, in positions of its attention, as in
            `relative_attention`. Time and memory are then linear in the length. It changes the outputs, unless no
            input is longer than the window. Default: the model's own attention.

    Returns:
        A context manager. Leaving its block undoes what this call changed. Without a block the change stays.

    Raises:
        ImportError: transformers is not installed.
        RuntimeError: the installed version of transformers was not tested. The message gives the tested versions.
        ValueError: the window has no valid form, is given without a model, or is not supported by a part of the model.
    """
    _require_tested_version()
    window = None if window is None else check_window(window)
    patched: list[type[nn.Module] | nn.Module] = []
    if model is None:
        if window is not None:
            raise ValueError(f"window must be given with a model, because it changes the outputs, got window={window}")
        for patch in _patches():
            module_type = patch.load_class()
            if not hasattr(module_type.forward, ORIGINAL):
                module_type.forward = patch.wrap(module_type.forward)  # type: ignore[method-assign]
                patched.append(module_type)
        return Enabled(patched)
    if window is not None:
        _check_model_takes_window(model, window)
    for module, patch in _patchable_modules(model):
        forward = module.forward if window is None else module.__dict__.get("forward")  # classes have no window
        if not hasattr(forward, ORIGINAL):
            original_forward = getattr(type(module).forward, ORIGINAL, type(module).forward)
            module.forward = MethodType(patch.wrap(original_forward, window), module)  # type: ignore[method-assign]
            patched.append(module)
    return Enabled(patched)


def _check_model_takes_window(model: nn.Module, window: Window) -> None:
    """Check that each relative attention of a model can have a window, before any is patched."""
    modules = list(_patchable_modules(model))
    families = "Parakeet, Wav2Vec2-BERT or Wav2Vec2-Conformer"
    if not modules:
        raise ValueError(f"window must be given with a model of {families}, got {type(model).__name__}")
    for module, patch in modules:
        name = type(module).__name__
        if not patch.takes_window:
            raise ValueError(f"window must be given with a model of {families}, got a model with {name}")
        if (reason := patch.unsupported_reason(module)) is not None:
            raise ValueError(f"window must be given with a model that is supported as a whole, got {name}: {reason}")
        forward = module.__dict__.get("forward")
        if hasattr(forward, ORIGINAL) and getattr(forward, WINDOW) != window:
            enabled = getattr(forward, WINDOW)
            raise ValueError(f"window must be {enabled}, with which {name} is enabled, got {window}; disable it first")


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
        One line per module of a supported class: its name, its class, and "relattn", with its window, or why it does
        not.
    """
    lines = []
    for name, module in model.named_modules():
        patch = _find_patch(module)
        if patch is None:
            continue
        reason = patch.unsupported_reason(module)
        if reason is None and not hasattr(module.forward, ORIGINAL):
            reason = "not enabled"
        if reason is None and (window := getattr(module.forward, WINDOW)) is not None:
            reason = f"relattn, window {window}"
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
