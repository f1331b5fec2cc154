"""A translation toolkit: translate, serve, convert and evaluate models; training uses the operator of `relattn`.

Importing it is fast: its names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relattn_mt.version import __version__ as __version__

if TYPE_CHECKING:
    from relattn_mt.loading import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from relattn_mt.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
