"""Models that a server releases while nobody uses them."""

import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from relattn_mt import load
from relattn_mt.bundle import read_bundle
from relattn_mt.serve import idle
from relattn_mt.serve.app import make_app
from relattn_mt.serve.idle import IdleEngine, load_with_release
from relattn_mt.serve.queue import ModelUnavailable
from relattn_mt.serve.routing import Router
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.translator import Translator
from starlette.testclient import TestClient

from tests.support.bundles import LINES, save_random_bundle
from tests.support.servers import LIMITS, Shouting, shouting, translate, validated


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
    with pytest.raises(ModelUnavailable, match="removed or replaced"):
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


def remove(path: Path) -> None:
    shutil.rmtree(path)


def remove_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def change_weights(path: Path) -> None:
    """Write a bundle with the same tokenizer, whose translations differ."""
    bundle = read_bundle(path)
    replace(bundle, state={name: weight[::-1].copy() for name, weight in bundle.state.items()}).save()


def change_tokenizer(path: Path) -> None:
    """Write a bundle of the same size, whose tokens have other numbers."""
    tokenizer = Tokenizer.train([line[::-1] for line in LINES * 5], 300, seed=1)
    bundle = read_bundle(path)
    assert tokenizer.vocab_size == bundle.tokenizer.vocab_sizes[0]
    replace(bundle, tokenizer=tokenizer).save()


def change_config(path: Path) -> None:
    config = path / "config.yaml"
    content = config.read_text(encoding="utf-8")
    config.write_text(content.replace("tgt_lang: de", "tgt_lang: fr"), encoding="utf-8")
    assert config.read_text(encoding="utf-8") != content


@pytest.mark.parametrize("change", [remove, remove_weights, change_weights, change_tokenizer, change_config])
def test_a_released_model_that_changed_is_not_used(tmp_path: Path, caplog, change):
    """The server is unhealthy until the files are back, and does not say where they are."""
    path, kept = tmp_path / "bundle", tmp_path / "kept"
    save_random_bundle(path)
    shutil.copytree(path, kept)
    translator = load_with_release(str(path), load, 60)
    pair = (translator.src_lang, translator.tgt_lang)
    language = {"source": pair[0], "target": pair[1]}
    with validated(TestClient(make_app(Router({pair: translator}, LIMITS)))) as client:
        texts = ["one cat", "two"]
        before = translate(client, q=texts, **language).json()
        change(path)
        assert translate(client, q=texts, **language).json() == before  # the model is still in memory
        ring()
        for answer in (
            translate(client, q=texts, **language),
            client.post("/words", json={"q": "one", **language}),
            client.post("/translate_file", data=language, files={"file": ("a.txt", b"one cat")}),
            client.get("/health"),
        ):
            assert answer.status_code == 503
            assert "restart the server" in answer.json()["error"]
            assert str(tmp_path) not in answer.text
        assert str(path) in caplog.text
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)
        assert client.get("/health").status_code == 200
        assert translate(client, q=texts, **language).json() == before
