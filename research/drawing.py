"""Save figures, and align tables."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110)
    return picture.getvalue()


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
