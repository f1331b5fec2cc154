"""Log messages on standard error, one line each, above a progress bar if there is one, and times in words."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tqdm import tqdm

from relattn.translation.errors import escape


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print log messages: those of this package from level INFO, those of other packages from WARNING."""
    package, root, handler = logging.getLogger("relattn"), logging.getLogger(), _Lines()
    level = package.level
    package.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        package.setLevel(level)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # standard error is closed
            tqdm.write(self.format(record), file=sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message. From level WARNING, it begins with the program's name and the level."""
        text = "\n".join(map(escape, super().format(record).split("\n")))
        return text if record.levelno < logging.WARNING else f"relattn: {record.levelname.lower()}: {text}"


def duration(seconds: float) -> str:
    """Return a time in the largest unit of which there are at least two."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
