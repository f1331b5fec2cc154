"""Who may use a server: a file of keys, one a line."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from relattn.translation.errors import InputError, reading


class Keys:
    """Keys that are let in.

    Args:
        path: of a file with a key a line; empty lines and those that begin with # are none.

    Raises:
        InputError: the file cannot be read, or has no key.
    """

    def __init__(self, path: Path) -> None:
        with reading(path, "no keys"):
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        self._digests = [_digest(line) for line in lines if line and not line.startswith("#")]
        if not self._digests:
            raise InputError(f"{path}: has no key")

    def admit(self, key: str) -> bool:
        """Whether a key is one of them. How long that takes does not depend on which, or on how much of it is right."""
        given = _digest(key)
        return sum(hmac.compare_digest(given, one) for one in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
