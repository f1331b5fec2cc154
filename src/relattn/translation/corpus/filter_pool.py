"""Chunks of pairs through the rules that need no other pair, in several processes, in order.

What comes out does not depend on how many processes there are, and no more chunks are under way than keep them busy.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue

import numpy as np

from relattn.translation.config import CleaningConfig
from relattn.translation.corpus.dedup import digest
from relattn.translation.corpus.filters import Cleaner
from relattn.translation.corpus.report import Account
from relattn.translation.corpus.words import plain
from relattn.translation.errors import InputError

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
    """What judges chunks, in so many processes; the arguments are `Cleaner`'s. One process is this one.

    Each process has a pipe and a thread here that waits at it, so that one which dies is noticed at once, and each ends
    when this one does. (The pool of `concurrent.futures` was seen to wait for ever for processes that had died, in
    Python 3.11.7.)
    """
    if processes == 1:
        cleaner = Cleaner(config, languages, held_out)
        yield lambda chunks: (judge(cleaner, chunk) for chunk in chunks)
        return
    idle: SimpleQueue[Connection] = SimpleQueue()
    started = []
    pool = ThreadPoolExecutor(processes)
    try:
        for _ in range(processes):
            ours, theirs = Pipe()
            process = get_context("spawn").Process(target=_serve, args=(theirs, config, languages, held_out))
            process.start()
            theirs.close()
            started.append(process)
            idle.put(ours)
        yield lambda chunks: _in_order(pool, idle, chunks, processes * _AHEAD)
    finally:
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in started:
            process.join()
        while not idle.empty():
            idle.get().close()


def _in_order(
    pool: ThreadPoolExecutor, idle: SimpleQueue[Connection], chunks: Iterator[Chunk], most: int
) -> Iterator[Judged]:
    under_way: deque[Future[Judged]] = deque()
    for chunk in chunks:
        under_way.append(pool.submit(_ask, idle, chunk))
        if len(under_way) == most:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _ask(idle: SimpleQueue[Connection], chunk: Chunk) -> Judged:
    """Have a process judge a chunk that has nothing else to do."""
    process = idle.get()
    try:
        process.send(chunk)
        judged: Judged = process.recv()
    except (EOFError, OSError) as error:
        raise InputError("a process that judges pairs was ended, perhaps for want of memory") from error
    finally:
        idle.put(process)
    return judged


def _serve(parent: Connection, config: CleaningConfig, languages: tuple[str, str], held_out: list[str]) -> None:
    """What a process does: judge chunks until there is nobody to ask. It leaves Ctrl-C to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cleaner = Cleaner(config, languages, held_out)
    with suppress(EOFError, OSError):
        while True:
            parent.send(judge(cleaner, parent.recv()))
