"""Firefox's models by name: Mozilla's lists of them, and the cache of this user. Importing this imports no library."""

from pathlib import Path

PREFIX = "firefox:"
PIVOT = "en"  # the language of all pairs


def is_name(path: str | Path) -> bool:
    """Return whether a path is the name of a model of Firefox."""
    return str(path).startswith(PREFIX)
