"""Being asked to stop, at any moment."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import torch

from relattn.translation.errors import Interrupted
from relattn.translation.training.stop import Stop


@pytest.fixture
def ranks(monkeypatch):
    """Two ranks, of which the other is asked nothing; `meanwhile` happens while they ask each other."""
    fabric = SimpleNamespace(world_size=2, meanwhile=lambda: None)
    monkeypatch.setattr(torch.distributed, "new_group", lambda backend: backend)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: fabric.meanwhile())
    return fabric


def test_a_signal_that_comes_while_ranks_ask_each_other_is_heard_the_next_time(ranks):
    with Stop() as stop:
        ranks.meanwhile = lambda: signal.raise_signal(signal.SIGTERM)
        assert not stop.agreed(ranks)  # the others have not heard of it
        ranks.meanwhile = lambda: None
        assert stop.agreed(ranks)
        with pytest.raises(Interrupted, match="the end") as told:
            stop.immediately("the end")
    assert told.value.number == signal.SIGTERM


def test_a_second_signal_acts_as_it_does_elsewhere():
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_under_torchrun_a_second_signal_is_ignored(monkeypatch):
    """A scheduler signals all processes, and then torchrun signals them again."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with Stop() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
    assert stop.signal == signal.SIGTERM
