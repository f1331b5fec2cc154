"""The queue: order, refusals, and results that belong to their requests."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relattn.translation.serve.limits import Limits
from relattn.translation.serve.queue import CLIENT, BatchQueue, QueueFull


class Work:
    """Function that negates numbers, and can be stopped with `running`."""

    def __init__(self) -> None:
        self.running, self.batches = threading.Event(), list[list[int]]()

    def __call__(self, batch: list[int]) -> list[int]:
        self.batches.append(batch)
        assert self.running.wait(20)
        if 13 in batch:
            raise ValueError("13")
        return [-each for each in batch]


def run(test: Callable[[BatchQueue], Coroutine[Any, Any, None]], work: Work, waiting: int = 100) -> None:
    """Run a test with a queue."""

    async def run_queue() -> None:
        with ThreadPoolExecutor(1) as threads:
            limits = Limits(batch=4, waiting=waiting, sentences=1, pause=1.0)
            queue = BatchQueue(work, threads, limits, size=lambda item: abs(item))
            task = asyncio.create_task(queue.run())
            try:
                await asyncio.wait_for(test(queue), 30)
            finally:
                task.cancel()

    asyncio.run(run_queue())


async def submitted(queue: BatchQueue, items: list[int]) -> "asyncio.Task[list[int]]":
    """Submit items, and wait until they are in the queue or in a batch."""
    task = asyncio.create_task(queue.submit(items))
    await asyncio.sleep(0.03)
    return task


def test_long_request_does_not_delay_a_short_one() -> None:
    work = Work()

    async def test(queue: BatchQueue) -> None:
        long = await submitted(queue, [1] * 40)
        short = await submitted(queue, [2])
        work.running.set()
        assert await short == [-2]
        assert not long.done()
        assert await long == [-1] * 40

    run(test, work)
    assert work.batches[1] == [1, 2, 1, 1]  # one of each request in turn


def test_long_items_have_small_batches() -> None:
    """Their squared sizes count. An item that does not fit begins the next batch, so it does not starve."""
    work = Work()

    async def test(queue: BatchQueue) -> None:
        first = await submitted(queue, [1])
        requests = [await submitted(queue, items) for items in ([250, 150], [200, 3], [3])]
        work.running.set()
        assert [await each for each in (first, *requests)] == [[-1], [-250, -150], [-200, -3], [-3]]

    run(test, work)
    assert work.batches == [[1], [250], [200, 3], [150, 3]]


def test_failure_concerns_one_request() -> None:
    work = Work()

    async def test(queue: BatchQueue) -> None:
        work.running.set()
        results = await asyncio.gather(*map(queue.submit, ([1], [13, 2], [3])), return_exceptions=True)
        assert (results[0], type(results[1]), results[2]) == ([-1], ValueError, [-3])
        assert await queue.submit([4]) == [-4]

    run(test, work)


def test_clients_take_turns_and_share_the_queue() -> None:
    """Many requests of one client delay another no more than one, and have at most half of the queue."""
    work = Work()

    async def of(client: str, queue: BatchQueue, items: list[int]) -> "asyncio.Task[list[int]]":
        CLIENT.set(client)
        return await submitted(queue, items)

    async def test(queue: BatchQueue) -> None:
        running = await of("a", queue, [1])
        many = [await of("a", queue, [1]) for _ in range(9)]
        with pytest.raises(QueueFull):
            await (await of("a", queue, [1, 1]))
        other = await of("b", queue, [2, 2])
        work.running.set()
        assert await other == [-2, -2]
        assert [await each for each in (running, *many)] == [[-1]] * 10

    run(test, work, waiting=20)
    assert work.batches[1] == [1, 2, 1, 2]
