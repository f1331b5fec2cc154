"""What a server takes, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from relattn.translation.errors import require


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a server takes.

    Attributes:
        characters: of a request's texts.
        sentences: of a request's texts.
        texts: of a request.
        file: bytes of a file to be translated.
        unpacked: bytes of what is in it.
        waiting: sentences that wait for a model; a request that finds so many is told to come back.
        batch: sentences that are translated together.
        pause: milliseconds that a sentence waits for others.
        seconds: that a request may take.
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
        require(self.sentences <= self.waiting, "sentences of a request must not be more than may wait")
        require(0 <= self.pause <= 1000, f"pause must be at least 0 and at most 1,000 milliseconds, got {self.pause}")
        require(0 < self.seconds <= 86400, f"seconds must be more than 0 and at most 86,400, got {self.seconds}")
