"""Translated files, kept in memory until they are downloaded."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import NamedTuple

from relattn_mt.serve.queue import QueueFull

LIFETIME = 1800.0  # seconds


class StoredFile(NamedTuple):
    """Translated file."""

    name: str
    content: bytes
    client: str  # address
    deadline: float  # when it is removed


class FileStore:
    """Files by random key, each kept for `LIFETIME`, of at most `size` bytes in total.

    One client can use half of the store. If it adds more, its own oldest files are removed, and no others. A file that
    is refused removes none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._files: dict[str, StoredFile] = {}  # oldest first

    def add(self, content: bytes, name: str, suffix: str, client: str) -> str:
        """Keep a file and return its key, which cannot be guessed and ends in `suffix`. Raises QueueFull."""
        self._drop_expired()
        kept = dict(self._files)
        own = [key for key, file in kept.items() if file.client == client]
        while own and len(content) + _total(kept[key] for key in own) > self._size // 2:
            del kept[own.pop(0)]
        if len(content) + _total(kept.values()) > self._size:
            raise QueueFull("too many translated files wait for their download")
        key = secrets.token_urlsafe(18) + suffix
        kept[key] = StoredFile(name, content, client, time.monotonic() + LIFETIME)
        self._files = kept
        return key

    def get(self, key: str) -> StoredFile | None:
        """Return a file; None if there is no such file or it has expired."""
        self._drop_expired()
        return self._files.get(key)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        self._files = {key: file for key, file in self._files.items() if file.deadline >= now}


def _total(files: Iterable[StoredFile]) -> int:
    """Return the size of files in bytes."""
    return sum(len(file.content) for file in files)
