"""Filtering of a corpus in chunks, by several processes. The order of the pairs does not depend on their number."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, get_context
from queue import SimpleQueue
from typing import Any

import numpy as np

from relattn_mt.corpus.dedup import digest
from relattn_mt.corpus.filters import Cleaner
from relattn_mt.corpus.report import FilterStats
from relattn_mt.support.errors import STOPPING_SIGNALS, InputError
from relattn_mt.support.types import SentencePair
from relattn_mt.tokens.normalization import normalize

# limits of a chunk
_PAIRS = 2000
_CHARACTERS = 1 << 22
_PENDING = 3  # chunks under way per process

ScoredPair = SentencePair | tuple[str, str, float]  # with the score of a synthetic side
Chunk = tuple[int, list[ScoredPair]]  # number of the first pair in the corpus, from 1, and consecutive pairs


@dataclass(frozen=True)
class FilteredChunk:
    """The pairs of a chunk that the rules keep.

    Attributes:
        pairs: The pairs, each with its number in the corpus, from 1.
        digests: Digests of the pairs, uint64 (kept,).
        stats: Counts of the pairs that were dropped; `kept` is left for the search for duplicates.
    """

    pairs: list[tuple[int, bytes, bytes]]
    digests: np.ndarray
    stats: FilterStats


def split_chunks(pairs: Iterable[ScoredPair], first: int) -> Iterator[Chunk]:
    """Yield pairs in chunks; `first` is the number of the first pair."""
    chunk = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(chunk) == _PAIRS or characters > _CHARACTERS:
            yield first, chunk
            first += len(chunk)
            chunk = []
            characters = 0
    if chunk:
        yield first, chunk


def filter_chunk(cleaner: Cleaner, chunk: Chunk) -> FilteredChunk:
    """Normalize the pairs of a chunk, and drop pairs by a cleaner's rules."""
    stats = FilterStats()
    kept = []
    first, pairs = chunk
    for number, pair in enumerate(pairs, start=first):
        src, tgt = map(normalize, pair[:2])
        reason = cleaner.drop_reason(src, tgt, *pair[2:])
        if reason is None:
            kept.append((number, src.encode(), tgt.encode()))
        else:
            stats.drop(reason, number, src, tgt)
    digests = b"".join(digest(src, tgt) for _, src, tgt in kept)
    return FilteredChunk(kept, np.frombuffer(digests, dtype="<u8"), stats)


@contextmanager
def filter_pool(
    processes: int, make_cleaner: Callable[[], Cleaner]
) -> Iterator[Callable[[Iterable[Chunk]], Iterator[FilteredChunk]]]:
    """Yield a function that filters chunks in order. Each worker process calls `make_cleaner` once.

    Each worker process has its own pipe, and a thread that waits for its answer. So the death of a worker is noticed at
    once, and workers end when this process does. `ProcessPoolExecutor` can hang if a worker is killed while it writes a
    result: all workers share one pipe, so the incomplete result never ends.
    """
    if processes == 1:
        yield partial(map, partial(filter_chunk, make_cleaner()))
        return
    idle: SimpleQueue[Any] = SimpleQueue()
    workers = []
    threads = ThreadPoolExecutor(processes)
    try:
        for _ in range(processes):
            pipe, worker_pipe = Pipe()
            worker = get_context("spawn").Process(target=_work, args=(worker_pipe, make_cleaner))
            worker.start()
            worker_pipe.close()
            workers.append(worker)
            idle.put(pipe)
        yield partial(_filter_in_order, threads, idle, processes * _PENDING)
    finally:
        for worker in workers:
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.join()


def _filter_in_order(
    threads: ThreadPoolExecutor, idle: SimpleQueue[Any], max_pending: int, chunks: Iterable[Chunk]
) -> Iterator[FilteredChunk]:
    """Filter chunks, of which at most `max_pending` are under way."""
    pending: deque[Future[FilteredChunk]] = deque()
    for chunk in chunks:
        pending.append(threads.submit(_ask_worker, idle, chunk))
        if len(pending) == max_pending:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _ask_worker(idle: SimpleQueue[Any], chunk: Chunk) -> FilteredChunk:
    """Have an idle worker filter a chunk."""
    pipe = idle.get()
    try:
        pipe.send(chunk)
        filtered: FilteredChunk = pipe.recv()
    except (EOFError, OSError) as error:
        raise InputError("a process that filters pairs was killed, perhaps because memory ran out") from error
    finally:
        idle.put(pipe)
    return filtered


def _work(pipe: Any, make_cleaner: Callable[[], Cleaner]) -> None:
    """Filter chunks until the pipe is closed. Signals to the group of processes are left to the parent process."""
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    cleaner = make_cleaner()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(filter_chunk(cleaner, pipe.recv()))
