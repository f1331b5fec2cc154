"""Limits of a server. The command line imports them, so this module needs no package of the extra "serve"."""

from __future__ import annotations

from dataclasses import dataclass

from relattn_mt.support.errors import require


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on requests, and how sentences are batched

    Args:
        characters: Maximum number of characters per request.
        sentences: Maximum number of sentences per request.
        texts: Maximum number of texts per request.
        file: Maximum size of a file to translate, in bytes, and of its text, in characters.
        files: Maximum number of files that are translated at a time. One client can have half of them. A further one
            gets status 429.
        unpacked: Maximum size of the contents of a compressed file, in bytes.
        parsing: Maximum processor time to parse HTML or a file, in seconds. A request that exceeds it gets status 422.
        memory: Maximum memory of a process that parses, in bytes. A request that exceeds it gets status 422.
        stored: Maximum total size of the translated files that wait for their download, in bytes.
        waiting: Maximum number of sentences that wait for a model. A request that exceeds it gets status 429.
        batch: Maximum number of sentences per batch. A quarter of it while there are several clients.
        pause: Time that the first sentence of a batch waits for others, in milliseconds.
        seconds: Maximum time to receive a request, and to answer it, in seconds.
        header: Maximum time to receive the header of a request, in seconds.
        connections: Maximum number of connections. One client can have half of them. A further one gets status 429.
    """

    characters: int = 20_000
    sentences: int = 500
    texts: int = 100
    file: int = 5_000_000
    files: int = 10
    unpacked: int = 50_000_000
    parsing: int = 2
    memory: int = 400_000_000
    stored: int = 200_000_000
    waiting: int = 2_000
    batch: int = 64
    pause: float = 2.0
    seconds: float = 60.0
    header: float = 10.0
    connections: int = 800

    def __post_init__(self) -> None:
        counts = ("characters", "sentences", "texts", "file", "files", "unpacked", "stored", "waiting", "batch")
        for name in (*counts, "connections", "parsing"):
            value = getattr(self, name)
            require(1 <= value <= 10**10, f"{name} must be at least 1 and at most 10,000,000,000, got {value}")
        require(self.sentences <= self.waiting, f"sentences must be at most waiting, got {self.sentences}")
        require(0 <= self.pause <= 1000, f"pause must be at least 0 and at most 1,000 milliseconds, got {self.pause}")
        least = 100_000_000  # the libraries alone take half of it
        require(least <= self.memory <= 10**12, f"memory must be at least {least:,} bytes, got {self.memory}")
        for name, value in (("seconds", self.seconds), ("header", self.header)):
            require(0 < value <= 86400, f"{name} must be more than 0 and at most 86,400, got {value}")
