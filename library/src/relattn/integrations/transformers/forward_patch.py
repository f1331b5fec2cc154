"""A replacement for the forward method of one class; `families/` defines one per supported class."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from relattn.backends import capabilities
from relattn.functional import Window

Forward = Callable[..., Any]  # of a module
PACKAGE = "transformers.models"
SETTING = "_relattn_setting"  # attribute of an enabled module, or of an enabled class for all its modules


def load_class(class_path: str) -> type[nn.Module]:
    """Import and return a class, by its path below transformers.models."""
    module_name, _, class_name = class_path.rpartition(".")
    module_type: type[nn.Module] = getattr(importlib.import_module(f"{PACKAGE}.{module_name}"), class_name)
    return module_type


def path_of(module_type: type) -> str:
    """Return the path of a class below transformers.models."""
    return f"{module_type.__module__.removeprefix(f'{PACKAGE}.')}.{module_type.__qualname__}"


@dataclass(eq=False)
class Scope:
    """How long the changes of one call of `enable` last: until the end of a block, or until `disable`."""

    is_block: bool = False


@dataclass(frozen=True)
class ForwardPatch:
    """A replacement for the forward method of one class.

    Attributes:
        class_path: Path of the class below transformers.models, such as "vits.modeling_vits.VitsAttention".
        forward: The replacement. It is called as forward(own, module, …) with the arguments of the call by name.
            `own()` runs the model's own code on the same call, and `own(name=value)` with another value of an argument.
        unsupported_reason: Returns why a module of the class must keep its own forward, or None if it is supported.
        padded_reason: Returns why a module cannot leave out padding, or None.
        has_attention: Whether modules of the class contain attention. Others have no window and no line in reports.
        takes_window: Whether `forward` has the keyword argument `window`, the sliding window (left, right).
        answers_weights: Whether `forward` is also called for attention weights, which it does not compute. Other calls
            for them run the model's own code.
    """

    class_path: str
    forward: Forward
    unsupported_reason: Callable[[Any], str | None] = lambda module: None
    takes_window: bool = False
    has_attention: bool = True
    padded_reason: Callable[[Any], str | None] = lambda module: None
    answers_weights: bool = False

    @property
    def takes_unpad(self) -> bool:
        """Whether the replacement can leave out padding: whether it has the keyword argument `unpad`."""
        return "unpad" in inspect.signature(self.forward).parameters

    def wrap(self, original_forward: Forward) -> Forward:
        """Return a forward that calls the replacement for enabled modules, and `original_forward` for the others.

        The model's own code also runs while a model is traced or exported, because a graph of the replacement may hold
        for one length only, and if an argument is used that the replacement does not have. With a window, which the
        own code does not have, such a call raises ValueError.
        """
        from relattn.integrations.transformers import attention_weights  # imports transformers

        checks_weights = self.has_attention and not self.answers_weights
        names = _argument_names(original_forward) or _argument_names(self.forward)[1:]
        ignored = [name for name in names[1:] if name not in inspect.signature(self.forward).parameters]

        @functools.wraps(original_forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            setting = getattr(module, SETTING, None)
            if setting is None or self.unsupported_reason(module) is not None:
                return original_forward(module, *args, **kwargs)
            own = original_forward
            options = {"unpad": True} if setting.unpad and self.takes_unpad else {}
            if setting.window is not None and self.has_attention:
                own = functools.partial(_refuse, setting.window)
                options = options | {"window": setting.window}
            arguments = dict(zip(names[1:], args, strict=False))
            is_invalid = len(args) >= len(names) or any(name in kwargs for name in arguments)
            if is_invalid or is_exporting():
                return own(module, *args, **kwargs)
            arguments |= kwargs
            own = functools.partial(own, module, **arguments)
            if checks_weights and attention_weights.needs_attention_weights(module, arguments.get("output_attentions")):
                return own()
            unknown = [name for name in ignored if arguments.get(name) is not None and arguments[name] is not False]
            if unknown and setting.is_check:
                raise TypeError(f"{type(module).__name__} has the arguments {', '.join(unknown)}")
            if unknown:
                return own()
            return self.forward(own, module, **arguments, **options)

        return forward


def is_exporting() -> bool:
    """Return whether a model is being traced or exported, rather than run or compiled."""
    return torch.jit.is_tracing() or capabilities.is_exporting()


def _argument_names(forward: Forward) -> list[str]:
    """Return the names of the arguments that may be given by position, or none if a wrapper hides them."""
    parameters = inspect.signature(forward).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return []
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def _refuse(window: Window, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    raise ValueError(
        f"window must be None for calls that {type(module).__name__}'s own code answers, such as exports and those "
        f"that return attention weights, got {window}; call disable on the model first"
    )
