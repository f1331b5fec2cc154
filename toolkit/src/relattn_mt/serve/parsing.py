"""Parsing of HTML and files, in separate processes.

The upload of a client can take any time to parse, and a thread cannot be stopped. So the libraries that parse run in a
few processes without PyTorch, with limits on their processor time and memory. A process that exceeds them ends, and
only the request that it worked for fails. A client gets at most half of the processes, so that the others stay free.
The server reads a few pickled sentences at a time, as others would wait while it reads a long list.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from relattn_mt.documents.read import document_texts, fill_document
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.queue import CLIENT
from relattn_mt.support.errors import STOPPING_SIGNALS, InputError
from relattn_mt.text.sentences import split

PROCESSES = 4
_NICENESS = 5  # translations have priority
Result = TypeVar("Result")


class ParsingLimitExceeded(Exception):
    """An upload takes too much time or memory to parse."""


class ParserPool:
    """Processes that parse, with limits on their processor time and memory per request."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._processes = CapacityLimiter(PROCESSES)
        self._client_limiters: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()  # by client

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a function. If the caller is cancelled, its process is killed.

        Args:
            function: Function at the top level of its module.
            arguments: Arguments that can be pickled.

        Raises:
            ParsingLimitExceeded: The function took too much time or memory.
            Exception: The function raised it.
        """
        client_limiter = self._client_limiters.setdefault(CLIENT.get(), CapacityLimiter(PROCESSES // 2))
        limits = self._limits.parsing, self._limits.memory
        async with client_limiter:
            try:
                return await to_process.run_sync(
                    _run_limited, *limits, function, arguments, cancellable=True, limiter=self._processes
                )
            except (BrokenWorkerProcess, MemoryError) as error:
                raise ParsingLimitExceeded from error


def _run_limited(seconds: int, memory: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a function in a process of the pool, which the system ends after some seconds of processor time."""
    _prepare()
    if sys.platform != "win32":  # no limits there, except the time to answer a request
        import resource

        limits = {resource.RLIMIT_CPU: math.ceil(time.process_time()) + seconds, resource.RLIMIT_AS: memory}
        for limit, value in limits.items():
            _, most = resource.getrlimit(limit)
            resource.setrlimit(limit, (value, most))
    try:
        return function(*arguments)
    except InputError as error:
        if isinstance(error.__cause__, MemoryError):  # the file may be right
            raise error.__cause__ from None
        raise


@cache
def _prepare() -> None:
    """Set up a process of the pool."""
    for number in STOPPING_SIGNALS:  # the server ends it, after requests have been answered
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)


def pickled_texts(*arguments: Any) -> tuple[bytes, list[str]]:
    """Return the texts of a file, and those that stay. Arguments are those of `document_texts`."""
    texts, kept = document_texts(*arguments)
    return pickle.dumps(texts), kept


def readable_text(*arguments: Any) -> str:
    """Return the text of a file without tags. Arguments are those of `document_texts`."""
    texts, _ = document_texts(*arguments)
    return " ".join(text.text for text in texts)


def split_pickled(texts: bytes, portion: int, *splitting: Any) -> tuple[bytes, list[bytes]]:
    """Return split texts, and their sentences in portions. `splitting` is what `split` gets besides a text."""
    split_texts = [split(text, *splitting) for text in pickle.loads(texts)]
    sentences = [each for text in split_texts for each in text.sentences]
    starts = range(0, len(sentences), portion)
    return pickle.dumps(split_texts), [pickle.dumps(sentences[start : start + portion]) for start in starts]


def join_pickled(split_texts: bytes, portions: Sequence[bytes]) -> bytes:
    """Return split texts with their sentences replaced by translations, in portions."""
    remaining = chain.from_iterable(map(pickle.loads, portions))
    return pickle.dumps([text.join([next(remaining) for _ in text.sentences]) for text in pickle.loads(split_texts)])


def fill_pickled(name: str, content: bytes, unpacked: int, texts: bytes, lang: str) -> bytes:
    """Return a file with its texts replaced, as `fill_document`."""
    return fill_document(name, content, unpacked, pickle.loads(texts), lang)
