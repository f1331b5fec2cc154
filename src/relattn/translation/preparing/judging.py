"""Chunks of pairs through the rules that need no other pair, in several processes, in order.

What comes out does not depend on how many processes there are, and no more chunks are under way than keep them busy.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process

import numpy as np

from relattn.translation.config import CleaningConfig
from relattn.translation.errors import InputError
from relattn.translation.preparing.account import Account
from relattn.translation.preparing.clean import Cleaner
from relattn.translation.preparing.duplicates import digest
from relattn.translation.preparing.words import plain

_PAIRS, _CHARACTERS = 2000, 1 << 22  # of a chunk, which ends with the first of them
_AHEAD = 3  # chunks under way for each process

Pair = tuple[str, str]


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of a corpus.

    Attributes:
        first: number of the first, from 1.
        pairs: as they were read.
    """

    first: int
    pairs: list[Pair]


@dataclass(frozen=True)
class Judged:
    """What the rules leave of a chunk.

    Attributes:
        src: source lines of the pairs that stay, each with its end.
        tgt: target lines.
        numbers: of the pairs, int64 (kept,).
        digests: of the pairs, uint64 (kept,).
        account: of all pairs of the chunk.
    """

    src: bytes
    tgt: bytes
    numbers: np.ndarray
    digests: np.ndarray
    account: Account


def chunks(pairs: Iterable[Pair], first: int) -> Iterator[Chunk]:
    """The pairs in chunks, `first` being the number of the first pair."""
    gathered: list[Pair] = []
    characters = 0
    for pair in pairs:
        gathered.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(gathered) == _PAIRS or characters > _CHARACTERS:
            yield Chunk(first, gathered)
            first, gathered, characters = first + len(gathered), [], 0
    if gathered:
        yield Chunk(first, gathered)


def judge(cleaner: Cleaner, chunk: Chunk) -> Judged:
    """Hold the pairs of a chunk to a cleaner's rules."""
    account = Account()
    sides: tuple[list[bytes], list[bytes]] = [], []
    numbers, digests = [], []
    for number, (raw_src, raw_tgt) in enumerate(chunk.pairs, start=chunk.first):
        src, tgt = plain(raw_src), plain(raw_tgt)
        reason = cleaner.reason(src, tgt)
        if reason is not None:
            account.drop(reason, number, src, tgt)
            continue
        pair = src.encode(), tgt.encode()
        for side, line in zip(sides, pair, strict=True):
            side.append(line)
        numbers.append(number)
        digests.append(digest(*pair))
    account.kept = len(numbers)
    src_lines, tgt_lines = (b"".join(line + b"\n" for line in side) for side in sides)
    of_pairs = np.frombuffer(b"".join(digests), dtype="<u8")
    return Judged(src_lines, tgt_lines, np.array(numbers, dtype=np.int64), of_pairs, account)


Judge = Callable[[Iterator[Chunk]], Iterator[Judged]]


@contextmanager
def judges(processes: int, config: CleaningConfig, languages: tuple[str, str], held_out: list[str]) -> Iterator[Judge]:
    """What judges chunks, in so many processes; the arguments are `Cleaner`'s. One process is this one."""
    if processes == 1:
        cleaner = Cleaner(config, languages, held_out)
        yield lambda chunks: (judge(cleaner, chunk) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(config, languages, held_out)
    )
    try:
        yield lambda chunks: _in_order(pool, chunks, processes * _AHEAD)
    except BrokenProcessPool as error:
        raise InputError("a process that judges pairs was ended, perhaps for want of memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterator[Chunk], most: int) -> Iterator[Judged]:
    under_way: deque[Future[Judged]] = deque()
    for chunk in chunks:
        under_way.append(pool.submit(_judge, chunk))
        if len(under_way) == most:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


_cleaner: Cleaner  # of a process of the pool


def _begin(config: CleaningConfig, languages: tuple[str, str], held_out: list[str]) -> None:
    """Set up a process of the pool, which leaves Ctrl-C to its parent and ends when that does."""
    global _cleaner
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _cleaner = Cleaner(config, languages, held_out)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _judge(chunk: Chunk) -> Judged:
    return judge(_cleaner, chunk)
