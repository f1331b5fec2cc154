"""Models that a server releases while nobody uses them."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from relattn_mt import load
from relattn_mt.serve import idle
from relattn_mt.serve.app import make_app
from relattn_mt.serve.idle import IdleEngine
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError
from relattn_mt.translate.translator import Translator
from starlette.testclient import TestClient

from testing.bundles import save_random_bundle
from testing.servers import LIMITS, Shouting, shouting, translate


class Timer:
    """A timer that rings when the test says so."""

    waiting: ClassVar[list[Any]] = []

    def __init__(self, seconds: float, function: Any) -> None:
        self.seconds, self.function, self.is_cancelled = seconds, function, False

    def start(self) -> None:
        self.waiting.append(self)

    def cancel(self) -> None:
        self.is_cancelled = True


def ring(seconds: float = 60) -> None:
    """Let the time pass in which nothing is used."""
    timers, Timer.waiting = [each for each in Timer.waiting if not each.is_cancelled], []
    for timer in timers:
        assert timer.seconds == seconds
        timer.function()


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch) -> None:
    monkeypatch.setattr(idle.threading, "Timer", Timer)
    monkeypatch.setattr(Timer, "waiting", [])


def test_a_model_is_released_and_loaded_again(tmp_path: Path):
    path = tmp_path / "bundle"
    save_random_bundle(path)
    exact, lines = load(path), ["one cat", "two", "three dogs and one cat"]
    first = load(path).engine
    engine = IdleEngine(first, lambda: load(path).engine, 60)
    translator, released = exact.with_engine(engine), weakref.ref(first)
    del first
    ids = [exact.tokenizer.encode(line) for line in lines]
    targets = [exact.tokenizer.encode_target(line) for line in lines]
    for _ in range(3):
        assert engine.is_loaded
        assert translator.n_best(lines) == exact.n_best(lines)
        assert translator.log_probs(ids, targets) == exact.log_probs(ids, targets)
        assert translator.align(ids, targets) == exact.align(ids, targets)
        ring()
        assert not engine.is_loaded
        assert released() is None
        translator.translate(lines[:1])
    ring()
    (path / "config.yaml").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="it has no config"):
        translator.translate(lines)
    (tmp_path / "moved").rename(path / "config.yaml")
    assert translator.translate(lines) == exact.translate(lines)


def test_a_model_in_use_is_not_released():
    model = Shouting("de:")
    engine = IdleEngine(model, lambda: Shouting("other:"), 60)
    translator = Translator(engine, model.tokenizer, shouting("").search)  # type: ignore[arg-type]
    model.running.clear()
    with ThreadPoolExecutor(1) as pool:
        late = [each for each in Timer.waiting if not each.is_cancelled]
        result = pool.submit(translator.translate, ["x"])
        while not model.batches:
            threading.Event().wait(0.001)
        for timer in late:  # rang before it was cancelled
            timer.function()
        assert engine.is_loaded
        model.running.set()
        assert result.result(10) == ["de:X"]


def test_a_server_loads_a_model_for_translations_only():
    loaded = []

    def load_again() -> Shouting:
        loaded.append(1)
        return Shouting("again:")

    translator = shouting("de:")
    router = Router({("en", "de"): translator.with_engine(IdleEngine(translator.engine, load_again, 60))}, LIMITS)
    with TestClient(make_app(router)) as client:
        assert translate(client, q="x").json() == {"translatedText": "de:X"}
        ring()
        for path in ("/languages", "/health", "/spec", "/metrics", "/"):
            assert client.get(path).status_code == 200, path
        assert loaded == []
        assert translate(client, q="x").json() == {"translatedText": "again:X"}
        assert loaded == [1]
