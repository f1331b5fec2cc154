"""Names and options of the position schemes. Importing this module does not import PyTorch."""

from __future__ import annotations

from typing import Any, Literal

from relattn.translation.errors import require

Positions = Literal[
    "relative",
    "sinusoidal",
    "relative+sinusoidal",
    "learned",
    "none",
    "xl",
    "t5",
    "alibi",
    "rope",
    "rove",
    "lstm",
    "cnn",
]

_TABLES = {"clip": 16, "clip_right": None, "beyond": "clip", "relative_tables": "both", "tables_per_head": False}

OPTIONS: dict[str, dict[str, Any]] = {  # defaults of the options of each scheme; other schemes have no options
    "relative": _TABLES,
    "relative+sinusoidal": _TABLES,
    "learned": {"max_positions": 1024},
    "cnn": {"kernel_size": 3},
}
OPTION_NAMES = sorted({name for options in OPTIONS.values() for name in options})


def complete_options(positions: Positions, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a scheme, with defaults for those that are None.

    Raises:
        InputError: an option of another scheme is set.
    """
    defaults = OPTIONS.get(positions, {})
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        require(name in defaults, f"{name} must not be set for {positions} positions, got {value}")
    return {**defaults, **given}


def require_even_dims(positions: Positions, dim: int, heads: int) -> None:
    """Raise an InputError if a scheme cannot have this model dimension or this number of heads."""
    if positions in ("sinusoidal", "relative+sinusoidal", "xl", "lstm"):
        require(dim % 2 == 0, f"dim must be even for {positions} positions, got {dim}")
    if positions in ("rope", "rove"):
        head_dim = dim // heads
        require(head_dim % 2 == 0, f"dim / heads must be even for {positions} positions, got {head_dim}")
