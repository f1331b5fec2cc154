"""Log messages on standard error, one line each, above a progress bar if there is one."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from relattn_mt.support.errors import escape


@contextmanager
def log_to_stderr(*, quiet: bool = False) -> Iterator[None]:
    """Print log messages: those of this package from level INFO unless `quiet`, and all others from WARNING.

    A `UserWarning` is printed as such a message, once.
    """
    package = logging.getLogger("relattn_mt")
    root = logging.getLogger()
    handler = _Lines()
    show_warning = warnings.showwarning
    shown = set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **to: Any) -> None:
        if category is not UserWarning:
            show_warning(message, category, *place, **to)
        elif str(message) not in shown:
            shown.add(str(message))
            package.warning("%s", message)

    with warnings.catch_warnings(), log_level(logging.WARNING if quiet else logging.INFO, package.name):
        warnings.showwarning = show
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


def is_quiet() -> bool:
    """Return whether the logger of this package is set to print warnings and errors only, as by `--quiet`."""
    return logging.getLogger("relattn_mt").level > logging.INFO


def shows_progress() -> bool:
    """Return whether to show progress: standard error is a terminal, and `is_quiet` is False."""
    return sys.stderr.isatty() and not is_quiet()


@contextmanager
def progress_bar(total: int | None, unit: str, *, shown: bool, initial: int = 0) -> Iterator[Callable[[int], object]]:
    """Show a progress bar on standard error if `shown`, and yield the function that advances it."""
    if not shown:
        yield lambda count: None
        return
    from tqdm import tqdm  # takes longer than a short translation

    with tqdm(total=total, initial=initial, unit=unit, file=sys.stderr) as bar:
        yield bar.update


@contextmanager
def log_level(level: int, name: str) -> Iterator[None]:
    """Set the level of a logger, and restore it at the end."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # standard error is closed
            if "tqdm" in sys.modules:
                sys.modules["tqdm"].tqdm.write(self.format(record), file=sys.stderr)
            else:
                sys.stderr.write(f"{self.format(record)}\n")

    def format(self, record: logging.LogRecord) -> str:
        """Return the message. From level WARNING, it begins with the program's name and the level."""
        text = "\n".join(map(escape, super().format(record).split("\n")))
        return text if record.levelno < logging.WARNING else f"relattn-mt: {record.levelname.lower()}: {text}"
