"""Translations of files, until they are fetched: in memory, under names that cannot be guessed."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict

MOST = 20  # files
SECONDS = 1800.0  # that each is kept


class Files:
    """Files by name; the oldest gives way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def keep(self, content: bytes, ending: str) -> str:
        """The name that a file can be had by."""
        self._forget()
        name = secrets.token_urlsafe(18) + ending
        self._kept[name] = time.monotonic() + SECONDS, content
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> bytes | None:
        """A file, while it is kept."""
        self._forget()
        return self._kept[name][1] if name in self._kept else None

    def _forget(self) -> None:
        now = time.monotonic()
        while self._kept and next(iter(self._kept.values()))[0] < now:
            self._kept.popitem(last=False)
