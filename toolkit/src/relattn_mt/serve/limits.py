"""Limits of a server. The command line imports them, so this module needs no package of the extra "serve"."""

from __future__ import annotations

from dataclasses import dataclass

from relattn_mt.config.base import Config, number
from relattn_mt.support.errors import require


@dataclass(frozen=True, kw_only=True)
class Limits(Config):
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

    characters: int = number(20_000, "[1, 1e10]")
    sentences: int = number(500, "[1, 1e10]")
    texts: int = number(100, "[1, 1e10]")
    file: int = number(5_000_000, "[1, 1e10]")
    files: int = number(10, "[1, 1e10]")
    unpacked: int = number(50_000_000, "[1, 1e10]")
    parsing: int = number(2, "[1, 1e10]")
    memory: int = number(400_000_000, "[1e8, 1e12]")  # the libraries alone take half of the least
    stored: int = number(200_000_000, "[1, 1e10]")
    waiting: int = number(2_000, "[1, 1e10]")
    batch: int = number(64, "[1, 1e10]")
    pause: float = number(2.0, "[0, 1000]")
    seconds: float = number(60.0, "(0, 86400]")
    header: float = number(10.0, "(0, 86400]")
    connections: int = number(800, "[1, 1e10]")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sentences <= self.waiting, f"sentences must be at most waiting, got {self.sentences}")
