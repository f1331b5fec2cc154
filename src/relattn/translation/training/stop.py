"""Stopping a run when a signal asks for it: at once where nothing would be lost, else after the step in hand."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

import torch
from lightning.fabric import Fabric

from relattn.translation.errors import Interrupted


class Stop:
    """While it is entered, the first Ctrl-C or SIGTERM asks for an end; a second one acts as it does elsewhere.

    Signals reach the main thread alone; in another, nothing is changed.

    Attributes:
        asked: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._last_words: str | None = None
        self._before: dict[int, Any] = {}
        self._group: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def at_once(self, last_words: str) -> None:
        """From here on, and if it was asked for before, the end comes as `Interrupted(last_words)`."""
        self._last_words = last_words
        if self.asked is not None:
            raise Interrupted(last_words, self.asked)

    def when_agreed(self) -> None:
        """From here on the end waits until `agreed` is asked."""
        self._last_words = None

    def agreed(self, fabric: Fabric) -> bool:
        """Whether any rank was asked to end, the same answer on all. Ranks ask each other past their devices' queues,
        so nobody waits for a device."""
        if fabric.world_size == 1:
            return self.asked is not None
        if self._group is None:
            self._group = torch.distributed.new_group(backend="gloo")
        asked = torch.tensor(self.asked or 0)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX, group=self._group)
        if int(asked):
            self.asked = int(asked)  # one that comes to this rank meanwhile is for the next time
        return bool(asked)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        signal.signal(number, self._before[number])
        if self._last_words is not None:
            raise Interrupted(self._last_words, number)
