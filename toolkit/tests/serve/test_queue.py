"""The queue: order, refusals, and results that belong to their requests."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.queue import CLIENT, RECENT, BatchQueue, QueueFull


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


def run(test: Callable[..., Coroutine[Any, Any, None]], *works: Work, batch: int = 4, waiting: int = 100) -> None:
    """Run a test with a queue for each function. All work in one thread."""

    async def run_queue() -> None:
        with ThreadPoolExecutor(1) as threads:
            limits = Limits(batch=batch, waiting=waiting, sentences=1, pause=1.0)
            queues = [
                BatchQueue(work, threads, limits, lambda size: None, deque(maxlen=RECENT), size=abs) for work in works
            ]
            await asyncio.wait_for(test(*queues), 30)

    asyncio.run(run_queue())


async def submitted(queue: BatchQueue, items: list[int], client: str = "") -> "asyncio.Task[list[int]]":
    """Submit items, and wait until they are in the queue or in a batch."""
    CLIENT.set(client)
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
    assert work.batches[1] == [1, 2]  # one of each request in turn, until the short one has all


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

    async def test(queue: BatchQueue) -> None:
        running = await submitted(queue, [1], "a")
        many = [await submitted(queue, [1], "a") for _ in range(9)]
        with pytest.raises(QueueFull):
            await (await submitted(queue, [1, 1], "a"))
        other = await submitted(queue, [2, 2], "b")
        work.running.set()
        assert await other == [-2, -2]
        assert [await each for each in (running, *many)] == [[-1]] * 10

    run(test, work, batch=16, waiting=20)
    assert work.batches[1] == [1, 2, 1, 2]


def test_batches_are_smaller_while_there_are_several_clients() -> None:
    """So a long text of one delays the next request of another less. Their work is a quarter too."""
    work, sizes = Work(), list[int]()

    async def test(queue: BatchQueue) -> None:
        work.running.set()
        assert len(await (await submitted(queue, [1] * 64, "a"))) == 64
        work.running.clear()
        long = await submitted(queue, [1] * 40, "a")
        await submitted(queue, [2], "b")
        work.running.set()
        await long
        sizes.extend(map(len, work.batches))
        await (await submitted(queue, [100, 100], "a"))  # "b" may come back

    run(test, work, batch=16)
    assert sizes == [16] * 5 + [2] + [4] * 5 + [3]
    assert work.batches[5] == [1, 2]
    assert work.batches[-2:] == [[100], [100]]


def test_nothing_is_done_for_a_client_that_left_before_there_was_a_thread() -> None:
    first, second = Work(), Work()

    async def test(busy: BatchQueue, queue: BatchQueue) -> None:
        running = await submitted(busy, [1])
        left, stays, alone = [await submitted(queue, [number]) for number in (2, 3, 4)]
        left.cancel()
        first.running.set()
        second.running.set()
        assert [await running, await stays, await alone] == [[-1], [-3], [-4]]

    run(test, first, second, batch=1)
    assert second.batches == [[3], [4]]
