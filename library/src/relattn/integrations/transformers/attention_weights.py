"""Calls for attention weights, which are not computed, so that the model's own code answers them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

try:  # a private name; the check of each family finds out whether calls for attention weights are recognised
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

_log = logging.getLogger(__name__)
_warned_modules: set[str] = set()  # Python modules whose classes have already caused the warning below


def needs_attention_weights(module: nn.Module, output_attentions: bool | None = False) -> bool:
    """Return True if a call of an attention module or encoder must return attention weights, which are not computed.

    The first such call of each model family logs a warning, because the model's own code is slower.
    """
    is_requested = bool(output_attentions) or any("attentions" in name for name in captured() or ())
    module_type = type(module)
    if is_requested and module_type.__module__ not in _warned_modules:
        _warned_modules.add(module_type.__module__)
        _log.warning(
            "%s: attention weights were requested, so the model's own code computes them", module_type.__name__
        )
    return is_requested


def captured() -> dict[str, Any] | None:
    """Return what the model that runs collects from its layers, by name."""
    if _active_collector is None:
        return None
    # The compiler cannot trace a ContextVar. A model that collects something stores it here too while it is compiled.
    return _active_collector.global_var if torch.compiler.is_compiling() else _active_collector.get()


@contextmanager
def without_warnings(modules: set[str]) -> Iterator[None]:
    """Do not log the warning of `needs_attention_weights` for the classes of these Python modules."""
    added = modules - _warned_modules
    _warned_modules.update(added)
    try:
        yield
    finally:
        _warned_modules.difference_update(added)
