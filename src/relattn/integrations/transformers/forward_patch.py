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
ORIGINAL = "_relattn_original_forward"  # attribute of a patched forward; it holds the forward that was replaced
WINDOW = "_relattn_window"  # attribute of a patched forward; it holds the window it was enabled with


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

    def load_class(self) -> type[nn.Module]:
        """Import and return the class."""
        module_name, _, class_name = self.class_path.rpartition(".")
        module_type: type[nn.Module] = getattr(importlib.import_module(f"{PACKAGE}.{module_name}"), class_name)
        return module_type

    def wrap(self, original_forward: Callable[..., Any], window: Window = None) -> Callable[..., Any]:
        """Return a forward that calls the replacement, or `original_forward` for modules that are not supported.

        With a window, a call that would need `original_forward`, which has no window, raises ValueError.
        """
        replacement, own_forward = self.forward, original_forward
        if window is not None:
            replacement = functools.partial(self.forward, window=window)
            own_forward = functools.partial(_refuse, window)

        @functools.wraps(original_forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.unsupported_reason(module) is not None:
                return original_forward(module, *args, **kwargs)
            return replacement(own_forward, module, *args, **kwargs)

        forward.__dict__.update({ORIGINAL: original_forward, WINDOW: window})
        return forward


def _refuse(window: Window, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    raise ValueError(
        f"window must be None for calls that {type(module).__name__}'s own code answers, such as those that return "
        f"attention weights, got {window}; call disable on the model first"
    )
