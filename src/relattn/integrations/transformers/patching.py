"""How one forward stands in for another: on a class, for all its modules, or on one module."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MethodType, TracebackType
from typing import Any

from torch import nn

TESTED = ("5.23.0", "5.24")  # of transformers, from the first up to and without the second
_PACKAGE = "transformers.models"


@dataclass(frozen=True)
class ForwardPatch:
    """What stands in for the forward of a class.

    Attributes:
        place: of the class, after transformers.models: "vits.modeling_vits.VitsAttention".
        forward: called as the class's own is, with that one before: forward(own, module, …).
        why_not: of a module of the class, why it keeps its own; None where it need not.
    """

    place: str
    forward: Callable[..., Any]
    why_not: Callable[[Any], str | None] = lambda module: None

    def find(self) -> type[nn.Module]:
        """The class."""
        module, _, name = self.place.rpartition(".")
        found: type[nn.Module] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        return found

    def instead_of(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A forward that calls ours, or a module's own where that is to stay."""

        @functools.wraps(own)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.why_not(module) is not None:
                return own(module, *args, **kwargs)
            return self.forward(own, module, *args, **kwargs)

        forward.__dict__[_OWN] = own
        return forward


_OWN = "_relattn_instead_of"  # an attribute of a forward that stands in: the one it stands in for


class Enabled:
    """What a call of `enable` changed; as a context manager it is undone at the end, and nothing else."""

    def __init__(self, changed: list[type[nn.Module] | nn.Module]) -> None:
        self.changed = changed

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for owner in self.changed:
            _undo(owner)


def enable(model: nn.Module | None = None) -> Enabled:
    """Let the operator compute in one model, or in all there are and will be. A second call changes nothing.

    Args:
        model: the one; all where None.

    Raises:
        ImportError: transformers is not installed.
        RuntimeError: it is of a version that was not tested; the message has those that were.
    """
    _require_version()
    changed: list[type[nn.Module] | nn.Module] = []
    if model is None:
        for stand_in in _all():
            found = stand_in.find()
            if not hasattr(found.forward, _OWN):
                found.forward = stand_in.instead_of(found.forward)  # type: ignore[method-assign]
                changed.append(found)
        return Enabled(changed)
    for module, stand_in in _within(model):
        if not hasattr(module.forward, _OWN):
            module.forward = MethodType(stand_in.instead_of(type(module).forward), module)  # type: ignore[method-assign]
            changed.append(module)
    return Enabled(changed)


def disable(model: nn.Module | None = None) -> None:
    """Undo `enable` of one model, or of all; what was enabled for one alone stays with it."""
    owners = [stand_in.find() for stand_in in _all()] if model is None else [module for module, _ in _within(model)]
    for owner in owners:
        _undo(owner)


def _undo(owner: type[nn.Module] | nn.Module) -> None:
    """Give a class, or a module, the forward back that it had; nothing where none stands in."""
    held = owner.__dict__.get("forward")
    if not hasattr(held, _OWN):
        return
    if isinstance(owner, nn.Module):
        del owner.forward
    else:
        owner.forward = getattr(held, _OWN)  # type: ignore[method-assign]


def report(model: nn.Module) -> str:
    """What is replaced in a model, a line for each module of a class that can be, and why where it is not."""
    lines = []
    for name, module in model.named_modules():
        stand_in = _of(module)
        if stand_in is None:
            continue
        reason = stand_in.why_not(module)
        if reason is None and not hasattr(module.forward, _OWN):
            reason = "not enabled"
        lines.append(f"{name or 'the model'} ({type(module).__name__}): {'relattn' if reason is None else reason}")
    return "\n".join(lines) or f"{type(model).__name__}: none of its modules is of a class that is known"


def _within(model: nn.Module) -> Iterable[tuple[nn.Module, ForwardPatch]]:
    for module in model.modules():
        if (stand_in := _of(module)) is not None:
            yield module, stand_in


def _of(module: nn.Module) -> ForwardPatch | None:
    """What stands in for the forward of a module's class."""
    kind = type(module)
    return _by_place().get(f"{kind.__module__.removeprefix(f'{_PACKAGE}.')}.{kind.__qualname__}")


@functools.cache
def _by_place() -> dict[str, ForwardPatch]:
    return {stand_in.place: stand_in for stand_in in _all()}


@functools.cache
def _all() -> tuple[ForwardPatch, ...]:
    from relattn.integrations.transformers import families

    return families.PATCHES


def _require_version() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError('transformers cannot be imported: pip install "relattn[transformers]"') from error
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    first, end = (tuple(int(part) for part in bound.split(".")[:2]) for bound in TESTED)
    if not first <= version < end:
        raise RuntimeError(
            f"transformers {transformers.__version__} was not tested with this relattn: {TESTED[0]} up to, and not, "
            f"{TESTED[1]}"
        )
