"""Run tasks in separate processes: a task that dies, hangs or breaks its device does not affect the others."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measure import apart

Task = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of a module, and arguments that can be pickled


@dataclass(frozen=True)
class Failure:
    reason: str


LEFT_OUT = Failure("left out: no time")


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function, or a `Failure` with the error it raises."""
    try:
        result = function(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # raises an error if a kernel broke the device
        return result
    except Exception as error:
        return Failure(reason(error))


def reason(error: Exception) -> str:
    """Return an error as one line, without the middle of a long message."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else f"{text[:200]} … {text[-200:]}"


def run_all(tasks: Sequence[Task], processes: int, patience: float, stop: float) -> Iterator[tuple[int, Any]]:
    """Run each task in a new process. Yield the index of each task with its result or a `Failure`, as they end.

    Args:
        tasks: Tasks, the first to start first.
        processes: Number of processes at the same time.
        patience: Seconds per task, after which its process is killed.
        stop: Time of the monotonic clock after which no task starts.
    """

    def run(task: Task) -> Any:
        if time.monotonic() > stop:
            return LEFT_OUT
        try:
            return apart(call, *task, seconds=patience)
        except (MemoryError, TimeoutError) as error:
            return Failure(str(error))

    with ThreadPoolExecutor(processes) as pool:
        indices = {pool.submit(run, task): index for index, task in enumerate(tasks)}
        for future in as_completed(indices):
            yield indices[future], future.result()
