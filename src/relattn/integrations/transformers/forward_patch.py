"""A replacement for the forward method of one class; `families/` defines one per supported class."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from relattn.functional import Window

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


@dataclass(frozen=True)
class ForwardPatch:
    """A replacement for the forward method of one class.

    Attributes:
        class_path: path of the class below transformers.models, such as "vits.modeling_vits.VitsAttention".
        forward: the replacement. It is called as forward(original_forward, module, …) with the arguments of the call.
        unsupported_reason: returns why a module of the class must keep its own forward, or None if it is supported.
        takes_window: whether `forward` has the keyword argument `window`, the sliding window (left, right).
    """

    class_path: str
    forward: Callable[..., Any]
    unsupported_reason: Callable[[Any], str | None] = lambda module: None
    takes_window: bool = False

    def wrap(self, original_forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that calls the replacement for enabled modules, and `original_forward` for the others.

        With a window, a call that would need `original_forward`, which has no window, raises ValueError.
        """

        @functools.wraps(original_forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            setting = getattr(module, SETTING, None)
            if setting is None or self.unsupported_reason(module) is not None:
                return original_forward(module, *args, **kwargs)
            if setting.window is None:
                return self.forward(original_forward, module, *args, **kwargs)
            refuse = functools.partial(_refuse, setting.window)
            return self.forward(refuse, module, *args, window=setting.window, **kwargs)

        return forward


def _refuse(window: Window, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    raise ValueError(
        f"window must be None for calls that {type(module).__name__}'s own code answers, such as those that return "
        f"attention weights, got {window}; call disable on the model first"
    )
