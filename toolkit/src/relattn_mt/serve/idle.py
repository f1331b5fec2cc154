"""Models that are released while nobody uses them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from relattn_mt.bundle import bundle_digest
from relattn_mt.hub import resolve
from relattn_mt.search.engine import Engine, NextTokens
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.serve.queue import ModelUnavailable
from relattn_mt.support.allocation import return_freed_memory
from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.translate.translator import Translator

_log = logging.getLogger("relattn_mt.serve")


def load_with_release(model: str, load: Callable[[str], Translator], seconds: float) -> Translator:
    """Load a translator whose model is released after some time without use.

    A translator keeps its tokenizer and its settings. So the model is loaded again only if its files are those of the
    first time. A name on the hub is resolved once.

    Args:
        model: Directory of a bundle, or name of a model.
        load: Function that loads a translator from a directory.
        seconds: Time without use.

    Raises:
        InputError: As `resolve` and `load`.
    """
    directory = resolve(model)
    digest = bundle_digest(directory)  # before the model is loaded, and later after it, so that a change is noticed
    translator = load(str(directory))

    def load_again() -> Engine:
        engine = load(str(directory)).engine
        require(bundle_digest(directory) == digest, f"{directory}: was replaced after the server had loaded it")
        return engine

    return translator.with_engine(IdleEngine(translator.engine, load_again, seconds))


class IdleEngine:
    """Engine that releases its model after some time without use, and loads it again at the next use.

    Args:
        engine: The loaded engine.
        load: Function that loads it again. If it raises InputError, the call that needs the model raises
            ModelUnavailable.
        seconds: Time without use after which the model is released.
    """

    def __init__(self, engine: Engine, load: Callable[[], Engine], seconds: float) -> None:
        self.name = engine.name
        self.precision = engine.precision
        self.device = engine.device
        self.can_step = engine.can_step
        self.max_length = engine.max_length
        self._engine: Engine | None = engine
        self._load, self._seconds, self._lock = load, seconds, threading.Lock()
        self._users, self._timer = 0, self._start_timer()

    @property
    def is_loaded(self) -> bool:
        return self._engine is not None

    def search(self, requests: Sequence[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        with self._loaded() as engine:
            return engine.search(requests, rules)

    def start(self, sources: Sequence[Sequence[int]], capacity: int) -> Any:
        with self._loaded() as engine:
            return engine, engine.start(sources, capacity)  # the state keeps the model

    def step(self, state: Any, tokens: Sequence[int], rows: Sequence[int], rules: SearchRules, k: int) -> NextTokens:
        engine, own = state
        return engine.step(own, tokens, rows, rules, k)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        with self._loaded() as engine:
            return engine.score(sources, targets)

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[np.ndarray]:
        with self._loaded() as engine:
            return engine.align(sources, targets)

    @contextmanager
    def _loaded(self) -> Iterator[Engine]:
        with self._lock:
            self._timer.cancel()
            if self._engine is None:
                self._engine = self._reloaded()
            engine = self._engine
            self._users += 1
        try:
            yield engine
        finally:
            with self._lock:
                self._users -= 1
                self._timer.cancel()
                self._timer = self._start_timer()

    def _reloaded(self) -> Engine:
        try:
            return self._load()
        except InputError as error:
            _log.error("a released model cannot be loaded again: %s", one_line(error))
            problem = "the model cannot be loaded again, because its files were removed or replaced; restart the server"
            raise ModelUnavailable(problem) from error

    def _start_timer(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._release)
        timer.daemon = True
        timer.start()
        return timer

    def _release(self) -> None:
        with self._lock:
            if self._users == 0:
                self._engine = None
                return_freed_memory()
