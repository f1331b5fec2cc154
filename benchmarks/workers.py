"""Work in separate processes: one that dies, hangs or breaks its device takes nothing else with it.

With a GPU they are started afresh, not forked: CUDA does not survive a fork once anything has asked it for devices.
"""

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from benchmarks.measure import PROCESSES

Task = tuple[Callable[..., Any], tuple[Any, ...]]  # a module's own function, and plain values


@dataclass(frozen=True)
class Failure:
    reason: str


LEFT_OUT = Failure("left out: no time")
STALLED = Failure("no answer in time")


class Worker:
    """A process that calls functions, one at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn") if torch.cuda.is_available() else PROCESSES
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.closed = False

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        with contextlib.suppress(OSError):  # a process that is gone: `receive` says so
            self.connection.send((function, arguments))

    def receive(self, seconds: float) -> Any:
        """What the function gave, or a `Failure`; where it is the process that failed, the worker is closed."""
        if self.closed:
            return Failure("its process is gone")
        if not self.connection.poll(max(0.0, seconds)):
            self.close(wait=0.0)
            return STALLED
        try:
            result, healthy = self.connection.recv()
        except (EOFError, ConnectionError):
            result, healthy = Failure("its process died"), False
        if not healthy:
            self.close()
        return result

    def close(self, wait: float = 5.0) -> None:
        """Lets the process go, by force where it has not gone `wait` seconds later. One that hangs in the GPU's driver
        outlives even that, and is not waited for."""
        self.closed = True
        self.connection.close()
        self.process.join(wait)
        self.process.kill()
        self.process.join(5.0)


def close_all(workers: Sequence[Worker], wait: float = 5.0) -> None:
    for worker in workers:
        worker.connection.close()  # by which all go at once
    for worker in workers:
        worker.close(wait)


def serve(connection: Connection) -> None:
    healthy = True
    while healthy:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            result = function(*arguments)
        except Exception as error:
            result = Failure(reason(error))
        healthy = device_works()
        if not healthy and not isinstance(result, Failure):
            result = Failure("the GPU failed after it")
        if healthy and isinstance(result, Failure) and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what failed for want of memory leaves it to others
        connection.send((result, healthy))


def reason(error: Exception) -> str:
    """An error in one line, without the middle of a long one."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else f"{text[:200]} … {text[-200:]}"


def device_works() -> bool:
    """Whether CUDA still answers: after a kernel's fault nothing in the process does."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run_all(tasks: Sequence[Task], processes: int, patience: float, stop: float) -> Iterator[tuple[int, Any]]:
    """Numbers of tasks with what they give, or a `Failure`, as they end.

    A task has `patience` seconds; none is started after `stop`, on the monotonic clock.
    """
    waiting, busy, idle = deque(enumerate(tasks)), dict[Worker, tuple[int, float]](), list[Worker]()
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                index, (function, arguments) = waiting.popleft()
                if time.monotonic() > stop:
                    yield index, LEFT_OUT
                    continue
                worker = idle.pop() if idle else Worker()
                worker.send(function, *arguments)
                busy[worker] = index, time.monotonic() + patience
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker, (index, give_up) in list(busy.items()):
                if worker.connection in ready or time.monotonic() > give_up:
                    del busy[worker]
                    yield index, worker.receive(0.0)
                    if not worker.closed:
                        idle.append(worker)
    finally:
        close_all(list(busy), wait=0.0)
        close_all(idle)
