"""Exact attention with relative position representations (Shaw, Uszkoreit, Vaswani 2018) for any PyTorch model.

PyTorch is imported on the first use of a public name, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relattn.cache import AttentionCache
    from relattn.functional import relation_attention, relative_attention
    from relattn.multihead import RelativeMultiheadAttention
    from relattn.nn import RelativeAttention, RelativePositionTable, RelativeSelfAttention, SelfAttention

__version__ = "0.1.0"

__all__ = [
    "AttentionCache",
    "RelativeAttention",
    "RelativeMultiheadAttention",
    "RelativePositionTable",
    "RelativeSelfAttention",
    "SelfAttention",
    "relation_attention",
    "relative_attention",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, ("relattn.cache", "relattn.functional", "relattn.nn", "relattn.multihead")):
            globals().update({public: getattr(module, public) for public in __all__ if hasattr(module, public)})
        return globals()[name]
    if name in ("backends", "cache", "functional", "multihead", "nn", "positions"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
