"""The processes of a run end together: one that is lost ends the others, in a line that names it and says how to go on.

Whoever is left waits for the lost one in a collective operation. That may fail in the words of a library, or never end,
so the first process watches those that it started, and they watch it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from relattn.translation.errors import LostProcess

PARENT = "RELATTN_FIRST_PROCESS"  # in the environment of processes that the first one starts: its number
_log = logging.getLogger(__name__)
_GRACE = 5.0  # seconds that a process has to end by itself, once another has
_TICK = 0.2
_GONE = re.compile(  # what gloo, NCCL and PyTorch's store say when another process is not there any more
    r"closed by (remote )?peer|reset by peer|broken pipe|remote process|connection (was|refused)|remote error", re.I
)


class Together:
    """While it is entered, no process of a run outlives another, until the training is `over`.

    Args:
        processes: of the run.
        last_words: what a user is told of what happened, such as "process 2 of 2 was killed by SIGKILL".

    Attributes:
        children: the processes that this one has started, those of ranks 1, 2, ….
    """

    def __init__(self, processes: int, last_words: Callable[[str], str]) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self._processes, self._last_words = processes, last_words
        self._parent = os.environ.get(PARENT)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self._processes > 1:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def over(self) -> None:
        """From here on nobody waits for another process."""
        self._over.set()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if isinstance(error, Exception) and not self._over.is_set():
                if self._parent is not None:
                    time.sleep(_GRACE)  # the first process ends this one, where it failed too and says so itself
                elif what := self._lost(error):
                    raise LostProcess(self._last_words(what)) from error
        finally:
            if error is not None:
                self._end_children()
            self.over()

    def _lost(self, error: Exception) -> str | None:
        """Which process an error of this one comes from; None where it is this one's own."""
        if self._processes == 1 or not isinstance(error, RuntimeError) or not _GONE.search(str(error)):
            return None
        if not self.children:
            rank = rank_zero_only.rank  # type: ignore[attr-defined]
            return f"process {rank + 1} of {self._processes} lost the others"
        deadline = time.monotonic() + _GRACE
        while (ended := self._ended()) is None and time.monotonic() < deadline:
            time.sleep(_TICK)
        return ended

    def _ended(self) -> str | None:
        """Which of the processes that this one started has ended, and how; None while all run or end well."""
        for rank, child in enumerate(self.children, start=1):
            if code := child.poll():
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"process {rank + 1} of {self._processes} {how}"
        return None

    def _end_children(self) -> None:
        for child in self.children:
            child.kill()

    def _watch(self) -> None:
        while not self._over.wait(_TICK):
            if self._parent is not None and str(os.getppid()) != self._parent:
                if os.environ["LOCAL_RANK"] == "1":  # one says it for all
                    self._tell(f"process 1 of {self._processes} ended without a word")
                os._exit(2)
            if (what := self._ended()) and not self._over.wait(_GRACE):
                self._end_children()
                self._tell(what)
                os._exit(2)

    def _tell(self, what: str) -> None:
        _log.error(self._last_words(what))
