"""Batching of sentences from many requests.

A model translates one batch at a time, in a thread. Requests that arrive meanwhile wait in a queue. The next batch
takes one sentence of each client in turn until it is full, and of the requests of a client in turn, so neither a long
text nor many requests of one client delay others. If nothing is being translated, the first sentence waits a few
milliseconds for others. The translation of a sentence does not depend on the rest of its batch. The queue is bounded: a
request that would overflow it is refused. So is a further request of a client that would then have more than half of
the queue.

A batch cannot be interrupted, so its work is limited too: the squared lengths of its sentences have a maximum sum. A
sentence that alone exceeds it has a separate batch. A batch with the last sentence of a request, whose answer waits for
it, is not filled with requests that need more batches. While several clients wait or had sentences in recent batches,
both limits are a quarter: such batches delay other clients about a quarter as long, and cost 8 % more per sentence.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from relattn_mt.serve.limits import Limits
from relattn_mt.support.errors import InputError

MAX_WORK = 62_500  # sum of the squared sizes of the items of a batch; 64 of 31 pieces, or one of 250
_SHARED = 4  # divides the limits of batches while there are several clients
RECENT = 32  # batches whose clients may soon send more
CLIENT = ContextVar("CLIENT", default="")  # address of the client whose request is handled


class QueueFull(Exception):
    """Raised if a limit on waiting requests is reached. The message says what is full."""


class _Item(NamedTuple):
    """A waiting item."""

    content: Any
    future: asyncio.Future[Any]  # its result
    work: int


@dataclass(eq=False)
class BatchQueue:
    """Queue of requests, each a sequence of items, for a function that works on batches of items.

    Attributes:
        work: Function that returns a result per item of a batch; it runs in a thread of `threads`.
        threads: Threads to run `work` in.
        limits: Batch size, size of the queue, and how long to wait for a batch to fill.
        on_batch: Function that is called with the size of each batch.
        recent: Clients of each of the `RECENT` last batches, of all queues that share the threads.
        size: Function that returns the size of an item, such as its number of pieces.
        failed: Whether the last item, or batch, failed with an error for which its request is not to blame.
    """

    work: Callable[[list[Any]], list[Any]]
    threads: Executor
    limits: Limits
    on_batch: Callable[[int], object]
    recent: deque[set[str]]
    size: Callable[[Any], int]
    failed: bool = field(default=False, init=False)
    _clients: dict[str, deque[deque[_Item]]] = field(default_factory=dict, init=False)  # items that are in no batch yet
    _running: asyncio.Task[None] | None = field(default=None, init=False)  # while items wait
    _began: float | None = field(default=None, init=False)  # when the current batch began

    @property
    def waiting(self) -> int:
        """Number of items that are not in a batch yet."""
        return sum(map(self._waiting_of, self._clients))

    @property
    def seconds(self) -> float | None:
        """Seconds since the current batch began; None if there is none."""
        return None if self._began is None else time.monotonic() - self._began

    def _waiting_of(self, client: str) -> int:
        return sum(map(len, self._clients.get(client, ())))

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Return the result of each item. If the caller is cancelled, its items leave the queue.

        Raises:
            QueueFull: The queue has no room for the items, or the client would have more than half of it.
            Exception: `work` raised it for one of the items alone.
        """
        client = CLIENT.get()
        waiting = self.limits.waiting
        of_client = self._waiting_of(client)
        if self.waiting + len(items) > waiting or (of_client and of_client + len(items) > waiting // 2):
            raise QueueFull("the queue is full")
        loop = asyncio.get_running_loop()
        request = deque(_Item(item, loop.create_future(), self.size(item) ** 2) for item in items)
        futures = [item.future for item in request]
        self._clients.setdefault(client, deque()).append(request)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            return await asyncio.gather(*futures)
        finally:
            request.clear()
            for future in futures:
                future.cancel()

    async def _run(self) -> None:
        """Work until the queue is empty."""
        try:
            while self._clients:
                if self.waiting < self.limits.batch:
                    await asyncio.sleep(self.limits.pause / 1000)
                if batch := self._next_batch():
                    await self._process(batch)
        finally:
            self._running = None

    def _next_batch(self) -> list[_Item]:
        """Take items for a batch from the queue, one of each client in turn."""
        batch: list[_Item] = []
        clients = set[str]()
        work = 0
        is_awaited = False
        share = _SHARED if len({*self._clients, *chain(*self.recent)}) > 1 else 1
        most = max(1, self.limits.batch // share)
        while self._clients and len(batch) < most:
            client, requests = next(iter(self._clients.items()))
            while requests and not requests[0]:
                requests.popleft()
            if requests:
                work += requests[0][0].work
                if (batch and work > MAX_WORK / share) or (is_awaited and len(requests[0]) > most):
                    break  # it begins the next batch
                batch.append(requests[0].popleft())
                is_awaited = is_awaited or not requests[0]  # a request waits for nothing else
                clients.add(client)
                requests.rotate(-1)
            del self._clients[client]
            if any(requests):
                self._clients[client] = requests  # after the other clients
        self.recent.append(clients)
        return batch

    async def _process(self, batch: list[_Item]) -> None:
        """Work on a batch. If that fails, work on each item alone, so that only the request at fault fails."""
        self.on_batch(len(batch))
        loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        try:
            results = await loop.run_in_executor(self.threads, self._work_on, batch)
        except Exception as error:
            self.failed = not isinstance(error, InputError)
            for item in batch:
                if len(batch) > 1 and not item.future.done():
                    await self._process([item])
                elif not item.future.done():
                    item.future.set_exception(error)
            return
        finally:
            self._began = None
        self.failed = False
        for future, result in results:
            if not future.done():
                future.set_result(result)

    def _work_on(self, batch: list[_Item]) -> list[tuple[asyncio.Future[Any], Any]]:
        """Return the results of the items whose clients still wait, now that there is a thread.

        Every failure is an Exception: any other error would end the queue.
        """
        batch = [item for item in batch if not item.future.done()]
        try:
            results = self.work([item.content for item in batch]) if batch else []
        except Exception:
            raise
        except BaseException as error:  # as Rust's panics are
            raise RuntimeError(type(error).__name__) from error
        return list(zip([item.future for item in batch], results, strict=True))
