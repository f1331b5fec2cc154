"""Run tasks in separate processes: a task that dies, hangs or breaks its device does not affect the others."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks.measure import context

Task = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of a module, and arguments that can be pickled


@dataclass(frozen=True)
class Failure:
    reason: str
    trace: str = ""  # all exceptions, with what they replaced


LEFT_OUT = Failure("left out: no time")


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function, or a `Failure` with the error it raises."""
    try:
        result = function(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # raises an error if a kernel broke the device
        return result
    except Exception as error:
        return Failure(reason(error), trace(error))


def reason(error: BaseException) -> str:
    """Return an error as one line, without the middle of a long message."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else f"{text[:200]} … {text[-200:]}"


def trace(error: BaseException) -> str:
    """Return the stack traces of an error and of those it replaced, `from None` included, the first one first."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return "\n".join("".join(traceback.format_exception(each, chain=False)) for each in reversed(chain))


class Worker:
    """A process that runs tasks one after the other. It ends when the connection is closed."""

    def __init__(self) -> None:
        self.connection, other = context().Pipe()
        self.process = context().Process(target=serve, args=(other, torch.get_num_threads()), daemon=True)
        self.process.start()
        other.close()

    def run(self, task: Task, patience: float) -> Any:
        """Return the result of a task, or a `Failure` if it raises an error, dies or takes more than `patience`."""
        try:
            self.connection.send(task)
            return self.connection.recv() if self.connection.poll(patience) else Failure("no answer in time")
        except (EOFError, OSError):
            return Failure("its process died")

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(5.0)  # a process that hangs in the GPU's driver never ends


def serve(connection: Connection, threads: int) -> None:
    """Run tasks and send their results until the connection is closed."""
    torch.set_num_threads(threads)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(call(*task))


def run_all(tasks: Sequence[Task], processes: int, patience: float, stop: float) -> Iterator[tuple[int, Any]]:
    """Run tasks in processes, each of which is replaced after a failure.

    Yield the index of each task with its result or a `Failure`, as they end.

    Args:
        tasks: Tasks, the first to start first.
        processes: Number of processes at the same time.
        patience: Seconds per task, after which its process is killed.
        stop: Time of the monotonic clock at which no task starts, and those that run are killed.
    """
    idle: SimpleQueue[Worker | None] = SimpleQueue()  # one entry per thread; None: no process yet
    for _ in range(processes):
        idle.put(None)

    def run(task: Task) -> Any:
        if time.monotonic() >= stop:
            return LEFT_OUT
        worker = idle.get() or Worker()
        result = worker.run(task, min(patience, stop - time.monotonic()))
        is_failure = isinstance(result, Failure)
        if is_failure:
            worker.close()
        idle.put(None if is_failure else worker)
        return result

    with ThreadPoolExecutor(processes) as pool:
        indices = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for future in as_completed(indices):
            yield indices[future], future.result()
    while not idle.empty():
        if worker := idle.get():
            worker.close()
