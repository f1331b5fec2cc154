"""What the command line shows of what is logged: a line each on standard error, beside a bar if one is drawn."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tqdm import tqdm


@contextmanager
def shown() -> Iterator[None]:
    """Show what this package says from INFO on, and what is logged elsewhere from WARNING on."""
    ours, everyone, lines = logging.getLogger("relattn"), logging.getLogger(), _Lines()
    level = ours.level
    ours.setLevel(logging.INFO)
    everyone.addHandler(lines)
    try:
        yield
    finally:
        everyone.removeHandler(lines)
        ours.setLevel(level)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # standard error is closed
            tqdm.write(self.format(record), file=sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Information as it is; from warnings on, who says it and how bad it is."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"relattn: {record.levelname.lower()}: {text}"
