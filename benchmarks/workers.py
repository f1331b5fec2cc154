"""Run tasks in separate processes: a task that dies, hangs or breaks its device does not affect the others.

With a GPU, processes are spawned and not forked, since CUDA does not survive a fork.
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

Task = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of a module, and arguments that can be pickled


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
        with contextlib.suppress(OSError):  # if the process died, `receive` reports it
            self.connection.send((function, arguments))

    def receive(self) -> Any:
        """Return the result of the function, or a `Failure`. If the process failed, it is closed."""
        if not self.connection.poll():
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
        """End the process, and kill it after `wait` seconds. A process that hangs in the GPU's driver is left."""
        self.closed = True
        self.connection.close()
        self.process.join(wait)
        self.process.kill()
        self.process.join(5.0)


def serve(connection: Connection) -> None:
    """Call functions that arrive through a connection, until it closes or the GPU fails."""
    healthy = True
    while healthy:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        result = call(function, arguments)
        healthy = device_works()
        if not healthy and not isinstance(result, Failure):
            result = Failure("the GPU failed after it")
        if healthy and isinstance(result, Failure) and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # after an out-of-memory error, others need the memory
        connection.send((result, healthy))


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function, or a `Failure` with the error it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return Failure(reason(error))


def reason(error: Exception) -> str:
    """Return an error as one line, without the middle of a long message."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else f"{text[:200]} … {text[-200:]}"


def device_works() -> bool:
    """Return whether CUDA still works. After a fault of a kernel it does not, in this process."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run_all(tasks: Sequence[Task], processes: int, patience: float, stop: float) -> Iterator[tuple[int, Any]]:
    """Run tasks in a number of processes. Yield the index of each task with its result or a `Failure`, as they end.

    Args:
        tasks: Tasks, the first to start first.
        processes: Number of processes.
        patience: Seconds per task.
        stop: Time of the monotonic clock after which no task starts.
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
                    yield index, worker.receive()
                    if not worker.closed:
                        idle.append(worker)
    finally:
        for worker in idle:
            worker.connection.close()  # so that all processes end at the same time
        for worker in (*busy, *idle):
            worker.close(wait=0.0 if worker in busy else 5.0)
