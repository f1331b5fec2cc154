"""Sentences of many requests, translated together.

A model translates one batch at a time, in a thread. While it does, requests wait in a queue, and the next batch takes a
sentence of each in turn until it is full; so a long text does not keep short ones waiting, and whoever comes while
nothing is translated waits only for a few milliseconds, for company. What a sentence is translated to does not depend
on the others. The queue is bounded; what finds it full is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Busy(Exception):
    """So much is waiting that no more is taken."""


@dataclass(eq=False)
class _Request(Generic[S, T]):
    asked: Sequence[S]
    answer: asyncio.Future[list[T]]
    taken: int = 0  # of what was asked
    found: dict[int, T] = field(default_factory=dict)


class Batches(Generic[S, T]):
    """A queue of requests and the task that works on it.

    Args:
        work: what is done with a batch, in a thread of `threads`; an answer for each.
        threads: that work.
        size: of a batch, at most.
        most: that may wait, at most.
        pause: seconds that the first of a batch waits for others.
    """

    def __init__(
        self, work: Callable[[list[S]], list[T]], threads: Executor, *, size: int, most: int, pause: float
    ) -> None:
        self._work, self._threads, self._size, self._most, self._pause = work, threads, size, most, pause
        self._requests: deque[_Request[S, T]] = deque()
        self._came = asyncio.Event()
        self.waiting = 0  # that are not yet in a batch
        self.told: Callable[[int], object] = lambda size: None  # the size of each batch

    async def ask(self, asked: Sequence[S]) -> list[T]:
        """What is made of each. Whoever is cancelled leaves the queue.

        Raises:
            Busy: too much is waiting.
            Exception: what `work` raised for one of them alone.
        """
        if not asked:
            return []
        if self.waiting + len(asked) > self._most:
            raise Busy
        request: _Request[S, T] = _Request(asked, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self.waiting += len(asked)
        self._came.set()
        try:
            return await request.answer
        finally:
            if request in self._requests:
                self._requests.remove(request)
            self.waiting -= len(asked) - request.taken
            request.taken = len(asked)

    async def run(self) -> None:
        """Work on the queue until cancelled."""
        while True:
            await self._came.wait()
            if self.waiting < self._size:
                await asyncio.sleep(self._pause)
            batch = self._next()
            if not self._requests:
                self._came.clear()
            if batch:
                await self._answer(batch)

    def _next(self) -> list[tuple[_Request[S, T], int]]:
        """What is to be worked on next, one of each request in turn."""
        batch: list[tuple[_Request[S, T], int]] = []
        while self._requests and len(batch) < self._size:
            request = self._requests.popleft()
            batch.append((request, request.taken))
            request.taken += 1
            if request.taken < len(request.asked):
                self._requests.append(request)
        self.waiting -= len(batch)
        return batch

    async def _answer(self, batch: list[tuple[_Request[S, T], int]]) -> None:
        """Work on a batch; where it fails, on each alone, so that a failure is its own request's."""
        self.told(len(batch))
        run = asyncio.get_running_loop().run_in_executor
        try:
            found = await run(self._threads, self._work, [request.asked[number] for request, number in batch])
        except Exception as error:
            for request, number in batch:
                if len(batch) > 1 and not request.answer.done():
                    await self._answer([(request, number)])
                elif not request.answer.done():
                    request.answer.set_exception(error)
            return
        for (request, number), one in zip(batch, found, strict=True):
            request.found[number] = one
            if len(request.found) == len(request.asked) and not request.answer.done():
                request.answer.set_result([request.found[i] for i in range(len(request.asked))])
