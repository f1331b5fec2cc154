"""Names and options of the position schemes. Importing this module does not import PyTorch."""

from __future__ import annotations

from typing import Any, Literal

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

OPTIONS: dict[str, dict[str, Any]] = {  # of each scheme, and what they are by default; any other means nothing for it
    "relative": _TABLES,
    "relative+sinusoidal": _TABLES,
    "learned": {"max_positions": 1024},
    "cnn": {"kernel_size": 3},
}
OPTION_NAMES = sorted({name for options in OPTIONS.values() for name in options})
