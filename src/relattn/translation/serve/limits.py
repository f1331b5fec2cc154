"""Limits of a server. The command line imports them, so this module needs no package of the extra "serve"."""

from __future__ import annotations

from dataclasses import dataclass

from relattn.translation.errors import require


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on requests, and how sentences are batched

    Args:
        characters: Maximum number of characters per request.
        sentences: Maximum number of sentences per request.
        texts: Maximum number of texts per request.
        file: Maximum size of a file to translate, in bytes.
        unpacked: Maximum size of the contents of a compressed file, in bytes.
        waiting: Maximum number of sentences that wait for a model. A request that exceeds it gets status 429.
        batch: Maximum number of sentences per batch.
        pause: Time that the first sentence of a batch waits for others, in milliseconds.
        seconds: Maximum time to receive a request, and to answer it, in seconds.
    """

    characters: int = 20_000
    sentences: int = 500
    texts: int = 100
    file: int = 5_000_000
    unpacked: int = 50_000_000
    waiting: int = 2_000
    batch: int = 64
    pause: float = 2.0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("characters", "sentences", "texts", "file", "unpacked", "waiting", "batch"):
            value = getattr(self, name)
            require(1 <= value <= 10**10, f"{name} must be at least 1 and at most 10,000,000,000, got {value}")
        require(self.sentences <= self.waiting, f"sentences must be at most waiting, got {self.sentences}")
        require(0 <= self.pause <= 1000, f"pause must be at least 0 and at most 1,000 milliseconds, got {self.pause}")
        require(0 < self.seconds <= 86400, f"seconds must be more than 0 and at most 86,400, got {self.seconds}")
