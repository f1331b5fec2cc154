"""The log of a run, and what a person sees of it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from relattn.translation.console import log_to_stderr
from relattn.translation.data.batching import Step
from relattn.translation.errors import InputError
from relattn.translation.training import journal as module
from relattn.translation.training.journal import Journal, read_log
from relattn.translation.training.losses import Losses
from relattn.translation.training.validation import Validated


def begun(tmp_path: Path, *, steps: int = 9, show: bool = False) -> Journal:
    losses = Losses(tmp_path, lambda position: [("a.en", 10 * position[1] + 1), ("b.en", 7)])
    return Journal(Fabric(accelerator="cpu", devices=1), tmp_path, losses, steps=steps, show=show)


def of(tokens: int, index: int = 0) -> Step:
    """A step of so many target tokens."""
    return Step(0, index, [], [], tokens)


@pytest.fixture
def clock(monkeypatch):
    """A clock whose hand the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(module.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_a_row_is_over_the_steps_since_the_one_before(tmp_path, clock):
    journal = begun(tmp_path)
    with journal.opened(0):
        for step, loss, tokens in ((1, 3.0, 100), (2, 2.0, 300)):
            journal.start_clock()
            clock.now += 2
            journal.count(step, torch.tensor(loss), of(tokens))
        journal.settle()
        clock.now += 50  # validation and saving
        row = journal.row(2, 0.5, [Validated("v", 1.25, 30.0)])
        assert (row.step, row.loss, row.tokens_per_second, row.learning_rate) == (2, 2.25, 100.0, 0.5)
        assert (row.seconds, row.valid_loss, row.valid_bleu) == (4.0, 1.25, 30.0)
        journal.start_clock()
        clock.now += 1
        journal.count(3, torch.tensor(1.0), of(50))
        journal.settle()
        journal.row(3, 0.25)
    assert [(r.step, r.loss, r.tokens_per_second, r.seconds, r.valid_loss) for r in read_log(tmp_path / "log.csv")] == [
        (2, 2.25, 100.0, 4.0, 1.25),
        (3, 1.0, 50.0, 5.0, None),
    ]


def test_a_later_session_goes_on_from_its_checkpoint(tmp_path, clock):
    """Its first row is over all steps since the last one that is kept, whoever took them."""
    journal = begun(tmp_path)
    with journal.opened(0):
        for step in (1, 2, 3, 4, 5, 6):
            journal.start_clock()
            clock.now += 3
            journal.count(step, torch.tensor(float(step)), of(10))
            if step == 5:
                journal.settle()
                kept = journal.loss, journal.tokens, journal.seconds, journal.last_row_at
            if step % 2 == 0:
                journal.settle()
                journal.row(step, 0.1)
    later = begun(tmp_path)
    later.loss, later.tokens, later.seconds, later.last_row_at = kept
    with later.opened(5):
        assert [row.step for row in read_log(later.path)] == [2, 4]
        later.start_clock()
        clock.now += 3
        later.count(6, torch.tensor(6.0), of(10))
        later.settle()
        later.row(6, 0.1)
    rows = read_log(later.path)
    assert [(row.step, row.loss, row.seconds) for row in rows] == [(2, 1.5, 6.0), (4, 3.5, 12.0), (6, 5.5, 18.0)]
    assert rows[2].tokens_per_second == rows[1].tokens_per_second


def test_a_line_cut_short_by_a_kill_is_no_row(tmp_path):
    rows = "2,1.5,9,0.1,6,,\n4,1.25,9,0.1,12,,\n"
    path = tmp_path / "log.csv"
    for cut in range(1, len("4,1.25,9,0.1,12,,\n")):
        path.write_text("step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu\n" + rows[:-cut])
        assert [row.step for row in read_log(path)] == [2]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_by_its_step(tmp_path, loss):
    journal = begun(tmp_path)
    for step, value in ((7, 1.0), (8, loss), (9, math.nan)):
        journal.count(step, torch.tensor(value), of(5, step - 1))
    with pytest.raises(InputError, match=f"^training diverged: the loss of step 8 is {loss}; its pairs are in .*csv; "):
        journal.settle()
    assert (tmp_path / "diverged.csv").read_text().splitlines() == ["corpus,line", "a.en,71", "b.en,7"]


def test_each_of_several_validation_sets_has_a_row(tmp_path):
    journal = begun(tmp_path)
    with journal.opened(0):
        for step in (1, 2, 3):
            journal.count(step, torch.tensor(1.0), of(5))
            journal.settle()
            journal.row(step, 0.1, [Validated("news", 2.5, None), Validated("talks", 3.5, 20.0)] if step > 1 else ())
    lines = ["step,name,loss,bleu", "2,news,2.5,", "2,talks,3.5,20", "3,news,2.5,", "3,talks,3.5,20"]
    assert (tmp_path / "valid.csv").read_text().splitlines() == lines
    assert [row.valid_loss for row in read_log(journal.path)] == [None, 2.5, 2.5]
    columns = "step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu"
    assert journal.path.read_text().splitlines()[0] == columns
    with begun(tmp_path).opened(2):
        assert (tmp_path / "valid.csv").read_text().splitlines() == lines[:3]


def test_a_file_that_is_no_log_is_refused(tmp_path):
    columns = b"step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu\n"
    for content, reason in (
        (b"a,b\n1,2\n", r"its columns are \['a', 'b'\]"),
        (b"", r"its columns are \[\]"),
        (columns + b"1,2\n", "row 1 has 2 cells, expected 7"),
        (columns + b"1,2,x,3,4,,\n", "could not convert string to float: 'x'"),
        (columns + b"1,2,\xff,3,4,,\n", f"not UTF-8 at byte {len(columns) + 4}"),
    ):
        (tmp_path / "log.csv").write_bytes(content)
        with pytest.raises(InputError, match=f"log.csv: not a training log: {reason}"), begun(tmp_path).opened(0):
            pass
        assert (tmp_path / "log.csv").read_bytes() == content


def test_lines_where_there_is_no_terminal_and_a_bar_where_there_is(tmp_path, capsys, monkeypatch, clock):
    def session() -> str:
        journal = begun(tmp_path, steps=2, show=True)
        with log_to_stderr(), journal.opened(0):
            for step in (1, 2):
                journal.start_clock()
                clock.now += 2
                journal.count(step, torch.tensor(1.5), of(400))
                journal.settle()
                journal.row(step, 0.001, [Validated("v", 0.75, 12.34)] if step == 2 else ())
        return capsys.readouterr().err

    assert session().splitlines() == [
        "step 1  loss 1.500  200 tokens/s  lr 1.00e-03  2 s",
        "step 2  loss 1.500  200 tokens/s  lr 1.00e-03  4 s  valid loss 0.750  valid BLEU 12.3",
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    drawn = session()
    assert "loss 1.500, 200 tokens/s, lr 1.0e-03" in drawn
    assert "valid BLEU 12.3" in drawn
    assert "2/2" in drawn
