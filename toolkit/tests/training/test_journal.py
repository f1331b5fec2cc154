"""The log of a run, its messages, and its progress bar."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from relattn_mt.config import TrainConfig
from relattn_mt.data.batching import Step
from relattn_mt.support.console import log_to_stderr
from relattn_mt.support.errors import Diverged, InputError
from relattn_mt.training import journal as module
from relattn_mt.training.journal import Journal, Progress, Row, Validated, read_log
from relattn_mt.training.worker import worker_of

HEADER = "step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu\n"


def make_journal(tmp_path: Path, *, step: int = 0) -> Journal:
    return Journal(worker_of(TrainConfig(accelerator="cpu")), tmp_path, Progress(step), steps=2)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> SimpleNamespace:
    """Clock that the test advances."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    return clock


def add(journal: Journal, loss: float, tokens: int, index: int = 0) -> None:
    """Record one more step."""
    journal.start_clock()
    journal.progress.step += 1
    journal.add(torch.tensor(loss), Step(0, index, 0, [], [], tokens))


def test_row_is_about_the_steps_since_the_previous_one(tmp_path, clock):
    journal = make_journal(tmp_path)
    with journal.opened(show=False):
        add(journal, 3.0, 100)
        add(journal, 2.0, 300)
        clock.now += 4
        journal.settle()
        clock.now += 50  # validation and saving
        journal.row(0.5, [Validated("v", 1.25, 30.0)])
        add(journal, 1.0, 50)
        clock.now += 1
        journal.settle()
        journal.row(0.25)
    first, second = read_log(tmp_path / "log.csv")
    assert first == Row(2, 2.25, 100.0, 0.5, 4.0, 1.25, 30.0)
    assert second == Row(3, 1.0, 50.0, 0.25, 5.0, None, None)
    content = (tmp_path / "log.csv").read_bytes()
    for cut in range(1, len(content.splitlines()[-1])):  # an incomplete last line is ignored
        (tmp_path / "log.csv").write_bytes(content[: -1 - cut])
        assert read_log(tmp_path / "log.csv") == [first]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_ends_the_run(tmp_path, loss):
    journal = make_journal(tmp_path, step=6)
    for index, value in enumerate((1.0, loss, math.nan)):
        add(journal, value, 5, index=index)
    with pytest.raises(Diverged, match=f"got {loss} in step 8;"):
        journal.settle()


def test_several_validation_sets_have_a_row_each(tmp_path):
    journal = make_journal(tmp_path)
    with journal.opened(show=False):
        for step in (1, 2, 3):
            add(journal, 1.0, 5)
            journal.settle()
            journal.row(0.1, [Validated("news", 2.5, None), Validated("talks", 3.5, 20.0)] if step > 1 else ())
    lines = ["step,name,loss,bleu", "2,news,2.5,", "2,talks,3.5,20", "3,news,2.5,", "3,talks,3.5,20"]
    assert (tmp_path / "valid.csv").read_text().splitlines() == lines
    assert [row.valid_loss for row in read_log(tmp_path / "log.csv")] == [None, 2.5, 2.5]
    assert (tmp_path / "log.csv").read_text().startswith(HEADER)
    with make_journal(tmp_path, step=2).opened(show=False):
        assert (tmp_path / "valid.csv").read_text().splitlines() == lines[:3]


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"a,b\n1,2\n", "got a, b"),
        (b"", "step, loss"),
        (HEADER.encode() + b"1,2\n", "row 1 .* got 2"),
        (HEADER.encode() + b"1,2,x,3,4,,\n", "'x'"),
        (HEADER.encode() + b"1,2,\xff,3,4,,\n", f"not UTF-8 at byte {len(HEADER) + 4}"),
    ],
)
def test_file_that_is_not_a_log_is_refused(tmp_path, content, fact):
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"log\.csv: .*{fact}"), make_journal(tmp_path).opened(show=False):
        pass
    assert (tmp_path / "log.csv").read_bytes() == content


def test_messages_without_a_terminal_and_a_bar_with_one(tmp_path, capsys, monkeypatch, clock):
    def session() -> str:
        journal = make_journal(tmp_path)
        with log_to_stderr(), journal.opened(show=True):
            for step in (1, 2):
                add(journal, 1.5, 400)
                clock.now += 2
                journal.settle()
                journal.row(0.001, [Validated("v", 0.75, 12.34)] if step == 2 else ())
        return capsys.readouterr().err

    first, second = session().splitlines()
    assert "valid" not in first
    assert all(fact in second for fact in ("step 2", "loss 1.500", "200 tokens/s", "valid loss 0.750"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = session()
    assert all(fact in bar for fact in ("loss 1.500, 200 tokens/s", "valid BLEU 12.3", "2/2"))
