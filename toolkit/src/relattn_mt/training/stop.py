"""Stopping a run on a signal: immediately if nothing would be lost, otherwise after the current step."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Literal, Self

import torch

from relattn_mt.support.errors import STOPPING_SIGNALS, Interrupted
from relattn_mt.training.worker import Worker

Mode = Literal["record", "raise", "kill"]


class Stop:
    """Context in which the first SIGINT, SIGTERM or SIGHUP requests the end of a run. A second has its usual effect.

    A second SIGHUP is ignored, which often comes from the shell and from the system. Under torchrun any second signal
    is ignored: a scheduler may signal all processes, and torchrun then signals them again. Signals are only handled in
    the main thread. One that the process ignores, such as SIGHUP under nohup, is still ignored.

    Attributes:
        signal: Number of the signal that requested the end, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._mode: Mode = "record"
        self._message = ""
        self._handlers: dict[int, Any] = {}
        self._group: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def switch(self, mode: Mode, message: str = "") -> None:
        """Set what signals do from now on, and let an earlier signal do it now.

        Args:
            mode: "record" only records signals, which `agreed` reports. "raise" raises `Interrupted(message)`. "kill"
                ends the process, even while it waits for other processes.
        """
        self._mode = mode
        self._message = message
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL if mode == "kill" else self._handle)
        if self.signal is None:
            return
        if mode == "kill":
            signal.raise_signal(self.signal)
        elif mode == "raise":
            raise Interrupted(message, self.signal)

    def agreed(self, worker: Worker) -> bool:
        """Return whether any process received a signal. All processes return the same.

        Processes ask each other through the CPU, so none of them waits for its GPU.
        """
        if worker.world_size == 1:
            return self.signal is not None
        if self._group is None:
            self._group = torch.distributed.new_group(backend="gloo")
        number = torch.tensor(self.signal or 0)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, group=self._group)
        if number > 0:
            self.signal = int(number)  # a signal that arrived here after the exchange waits for the next one
        return bool(number > 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        repeated = "TORCHELASTIC_RUN_ID" in os.environ or number not in (signal.SIGINT, signal.SIGTERM)
        signal.signal(number, signal.SIG_IGN if repeated else self._handlers[number])
        if self._mode == "raise":
            raise Interrupted(self._message, number)
