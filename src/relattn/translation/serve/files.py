"""Translated files, kept in memory until they are downloaded."""

from __future__ import annotations

import secrets
import time

MAX_FILES = 20
LIFETIME = 1800.0  # seconds


class FileStore:
    """Files by random name. Each is kept for `LIFETIME`, or until `MAX_FILES` newer ones were added."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[float, bytes]] = {}  # deadline and content, oldest first

    def add(self, content: bytes, suffix: str) -> str:
        """Keep a file and return its name, which cannot be guessed and ends in `suffix`."""
        self._drop_expired()
        if len(self._files) == MAX_FILES:
            del self._files[next(iter(self._files))]
        name = secrets.token_urlsafe(18) + suffix
        self._files[name] = time.monotonic() + LIFETIME, content
        return name

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file or it has expired."""
        self._drop_expired()
        return self._files[name][1] if name in self._files else None

    def _drop_expired(self) -> None:
        now = time.monotonic()
        self._files = {name: file for name, file in self._files.items() if file[0] >= now}
