"""Models that are released while nobody uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from relattn_mt.search.engine import Engine, NextTokens
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.support.allocation import return_freed_memory


class IdleEngine:
    """Engine that releases its model after some time without use, and loads it again at the next use.

    Args:
        engine: The loaded engine.
        load: Function that loads it again. Its errors are those of the call that needs the model.
        seconds: Time without use after which the model is released.
    """

    def __init__(self, engine: Engine, load: Callable[[], Engine], seconds: float) -> None:
        self.name, self.precision, self.device = engine.name, engine.precision, engine.device
        self.can_step, self.max_length = engine.can_step, engine.max_length
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
                self._engine = self._load()
            engine = self._engine
            self._users += 1
        try:
            yield engine
        finally:
            with self._lock:
                self._users -= 1
                self._timer.cancel()
                self._timer = self._start_timer()

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
