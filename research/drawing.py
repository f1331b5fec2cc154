"""Save figures."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110)
    return picture.getvalue()
