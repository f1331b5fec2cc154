"""Signals that stop a run, at any time."""

import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from relattn_mt.support.errors import Interrupted
from relattn_mt.training.stop import Stop


def test_signal_during_the_exchange_is_reported_by_the_next_one(monkeypatch):
    """The other of two processes gets no signal. `during` runs while they exchange theirs."""
    worker = SimpleNamespace(world_size=2, during=lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(torch.distributed, "new_group", lambda backend: backend)

    def all_reduce(number: torch.Tensor, operation: object, group: str) -> None:
        worker.during()
        number *= operation == torch.distributed.ReduceOp.MAX  # the number of the other process is 0

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    with Stop() as stop:
        assert not stop.agreed(worker)  # the other process does not know yet
        worker.during = lambda: None
        assert stop.agreed(worker)
        with pytest.raises(Interrupted, match="the end") as caught:
            stop.switch("raise", "the end")
    assert caught.value.number == signal.SIGTERM


def test_second_signal_acts_as_outside_except_under_torchrun(monkeypatch):
    """A scheduler may signal all processes, and torchrun then signals them again."""
    with Stop() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)  # often comes from the shell and from the system
        assert stop.signal == signal.SIGHUP
    before = signal.getsignal(signal.SIGINT)
    for context in (pytest.raises(KeyboardInterrupt), nullcontext()):
        with Stop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.signal == signal.SIGINT
            with context:
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == before
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_the_process_ignores_are_ignored(number):
    """Background jobs ignore SIGINT, and commands under nohup SIGHUP."""
    handler = signal.signal(number, signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(number)
            assert stop.signal is None
            stop.switch("raise", "the end")
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, handler)


def test_signal_that_came_earlier_kills_the_process(monkeypatch):
    """A process that waits for others handles no signals, so they must have their usual effect."""
    before, raised = signal.getsignal(signal.SIGTERM), []
    with Stop() as stop:
        stop.switch("kill")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        stop.switch("record")
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signal, "raise_signal", lambda number: raised.append((number, signal.getsignal(number))))
        stop.switch("kill")
    assert raised == [(signal.SIGTERM, signal.SIG_DFL)]
    assert signal.getsignal(signal.SIGTERM) == before
