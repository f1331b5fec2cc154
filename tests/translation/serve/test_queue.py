"""The queue: who waits for whom, what is refused, and that every answer is its own request's."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from relattn.translation.serve.limits import Limits
from relattn.translation.serve.queue import BatchQueue, QueueFull


def run(
    test: Callable[[BatchQueue], Coroutine[Any, Any, None]],
    work: Callable[[list[Any]], list[Any]],
    **options: Any,
) -> None:
    """Run a test over a queue that is worked on."""

    async def all_of_it() -> None:
        with ThreadPoolExecutor(1) as threads:
            queue: BatchQueue = BatchQueue(
                work, threads, Limits(**{"batch": 4, "waiting": 100, "sentences": 1, "pause": 1.0, **options})
            )
            task = asyncio.create_task(queue.run())
            try:
                await asyncio.wait_for(test(queue), 30)
            finally:
                task.cancel()

    asyncio.run(all_of_it())


class Held:
    """Work that waits until it is let go, and gives back what it gets."""

    def __init__(self) -> None:
        self.going, self.batches = threading.Event(), list[list[Any]]()

    def __call__(self, batch: list[Any]) -> list[Any]:
        self.going.wait(10)
        self.batches.append(batch)
        return batch


def test_every_answer_is_its_own_requests() -> None:
    batches: list[list[int]] = []

    def work(batch: list[int]) -> list[int]:
        batches.append(batch)
        return [-each for each in batch]

    async def test(queue: BatchQueue) -> None:
        asked = [list(range(10 * i, 10 * i + i % 7)) for i in range(20)]
        assert await asyncio.gather(*map(queue.submit, asked)) == [[-each for each in one] for one in asked]
        assert queue.waiting == 0

    run(test, work)
    assert max(map(len, batches)) == 4


def test_a_long_request_does_not_keep_a_short_one_waiting() -> None:
    work = Held()

    async def test(queue: BatchQueue) -> None:
        long = asyncio.create_task(queue.submit(["long"] * 40))
        await asyncio.sleep(0.05)
        short = asyncio.create_task(queue.submit(["short"]))
        await asyncio.sleep(0.05)
        work.going.set()
        assert await short == ["short"]
        assert not long.done()
        assert await long == ["long"] * 40

    run(test, work)
    assert "short" in work.batches[1]


def test_a_queue_that_is_full_refuses_and_then_takes_again() -> None:
    work = Held()

    async def test(queue: BatchQueue) -> None:
        first = asyncio.create_task(queue.submit([1]))
        await asyncio.sleep(0.05)  # it is worked on
        waiting = asyncio.create_task(queue.submit([2] * 10))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await queue.submit([3])
        work.going.set()
        assert await first == [1]
        assert await waiting == [2] * 10
        assert await queue.submit([3]) == [3]

    run(test, work, waiting=10)


def test_who_goes_away_is_not_worked_for() -> None:
    work = Held()

    async def test(queue: BatchQueue) -> None:
        first = asyncio.create_task(queue.submit([1]))
        await asyncio.sleep(0.05)
        gone = asyncio.create_task(queue.submit([2] * 10))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert queue.waiting == 0
        work.going.set()
        assert await first == [1]
        assert await queue.submit([3]) == [3]

    run(test, work)
    assert list(chain(*work.batches)) == [1, 3]


def test_a_failure_is_its_own_requests() -> None:
    def work(batch: list[int]) -> list[int]:
        if 13 in batch:
            raise ValueError("13")
        return batch

    async def test(queue: BatchQueue) -> None:
        found = await asyncio.gather(
            queue.submit([1]), queue.submit([13, 2]), queue.submit([3]), return_exceptions=True
        )
        assert found[0] == [1]
        assert isinstance(found[1], ValueError)
        assert found[2] == [3]
        assert await queue.submit([4]) == [4]

    run(test, work)
