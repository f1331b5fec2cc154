"""The log of a run, and what a person sees of it."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from relattn.translation.console import log_to_stderr
from relattn.translation.data.batching import Step
from relattn.translation.errors import Diverged, InputError
from relattn.translation.training import journal as module
from relattn.translation.training.journal import Journal, Progress, Row, read_log
from relattn.translation.training.validation import Validated


def begun(tmp_path: Path, *, step: int = 0) -> Journal:
    fabric = Fabric(accelerator="cpu", devices=1)
    return Journal(fabric, tmp_path, Progress(step), lambda at: [("a.en", 10 * at[1] + 1), ("b.en", 7)], steps=9)


def add(journal: Journal, loss: float, tokens: int, index: int = 0) -> None:
    """Record one more step."""
    journal.progress.step += 1
    journal.add(torch.tensor(loss), Step(0, index, [], [], tokens))


@pytest.fixture
def clock(monkeypatch):
    """A clock whose hand the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(module.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_a_row_is_about_the_steps_since_the_previous_one(tmp_path, clock):
    journal = begun(tmp_path)
    with journal.opened(show=False):
        for loss, tokens in ((3.0, 100), (2.0, 300)):
            journal.start_clock()
            clock.now += 2
            add(journal, loss, tokens)
        journal.settle()
        clock.now += 50  # validation and saving
        journal.row(0.5, [Validated("v", 1.25, 30.0)])
        journal.start_clock()
        clock.now += 1
        add(journal, 1.0, 50)
        journal.settle()
        journal.row(0.25)
    first, second = read_log(tmp_path / "log.csv")
    assert first == Row(2, 2.25, 100.0, 0.5, 4.0, 1.25, 30.0)
    assert second == Row(3, 1.0, 50.0, 0.25, 5.0, None, None)


def test_a_resumed_run_continues_from_its_checkpoint(tmp_path, clock):
    """Its first row is about all steps since the last row that is kept, in both sessions."""
    journal = begun(tmp_path)
    with journal.opened(show=False):
        for step in (1, 2, 3, 4, 5, 6):
            journal.start_clock()
            clock.now += 3
            add(journal, float(step), 10)
            if step == 5:
                journal.settle()
                saved = replace(journal.progress)
            if step % 2 == 0:
                journal.settle()
                journal.row(0.1)
    later = begun(tmp_path)
    later.progress = saved
    with later.opened(show=False):
        assert [row.step for row in read_log(tmp_path / "log.csv")] == [2, 4]
        later.start_clock()
        clock.now += 3
        add(later, 6.0, 10)
        later.settle()
        later.row(0.1)
    rows = read_log(tmp_path / "log.csv")
    assert [(row.step, row.loss, row.seconds) for row in rows] == [(2, 1.5, 6.0), (4, 3.5, 12.0), (6, 5.5, 18.0)]
    assert rows[2].tokens_per_second == rows[1].tokens_per_second


def test_a_line_cut_short_by_a_kill_is_no_row(tmp_path):
    rows = "2,1.5,9,0.1,6,,\n4,1.25,9,0.1,12,,\n"
    path = tmp_path / "log.csv"
    for cut in range(1, len("4,1.25,9,0.1,12,,\n")):
        path.write_text("step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu\n" + rows[:-cut])
        assert [row.step for row in read_log(path)] == [2]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_names_its_pairs(tmp_path, loss):
    journal = begun(tmp_path, step=6)
    for index, value in enumerate((1.0, loss, math.nan)):
        add(journal, value, 5, index)
    with pytest.raises(Diverged, match=f"the loss must be finite, got {loss} in step 8; .*/diverged.csv; "):
        journal.settle()
    assert (tmp_path / "diverged.csv").read_text().splitlines() == ["corpus,line", "a.en,11", "b.en,7"]
    with begun(tmp_path, step=6).opened(show=False):
        assert not (tmp_path / "diverged.csv").exists()


def test_each_of_several_validation_sets_has_a_row(tmp_path):
    journal = begun(tmp_path)
    with journal.opened(show=False):
        for step in (1, 2, 3):
            add(journal, 1.0, 5)
            journal.settle()
            journal.row(0.1, [Validated("news", 2.5, None), Validated("talks", 3.5, 20.0)] if step > 1 else ())
    lines = ["step,name,loss,bleu", "2,news,2.5,", "2,talks,3.5,20", "3,news,2.5,", "3,talks,3.5,20"]
    assert (tmp_path / "valid.csv").read_text().splitlines() == lines
    log = tmp_path / "log.csv"
    assert [row.valid_loss for row in read_log(log)] == [None, 2.5, 2.5]
    columns = "step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu"
    assert log.read_text().splitlines()[0] == columns
    with begun(tmp_path, step=2).opened(show=False):
        assert (tmp_path / "valid.csv").read_text().splitlines() == lines[:3]


def test_a_file_that_is_no_log_is_refused(tmp_path):
    columns = b"step,loss,tokens_per_second,learning_rate,seconds,valid_loss,valid_bleu\n"
    for content, reason in (
        (b"a,b\n1,2\n", "its columns must be step, .*, got a, b"),
        (b"", "its columns must be step, .*, got"),
        (columns + b"1,2\n", "row 1 must have 7 cells, got 2"),
        (columns + b"1,2,x,3,4,,\n", "could not convert string to float: 'x'"),
        (columns + b"1,2,\xff,3,4,,\n", f"not UTF-8 at byte {len(columns) + 4}"),
    ):
        (tmp_path / "log.csv").write_bytes(content)
        with pytest.raises(InputError, match=f"log.csv: (not a .*: )?{reason}"), begun(tmp_path).opened(show=False):
            pass
        assert (tmp_path / "log.csv").read_bytes() == content


def test_lines_where_there_is_no_terminal_and_a_bar_where_there_is(tmp_path, capsys, monkeypatch, clock):
    def session() -> str:
        journal = begun(tmp_path)
        journal.steps = 2
        with log_to_stderr(), journal.opened(show=True):
            for step in (1, 2):
                journal.start_clock()
                clock.now += 2
                add(journal, 1.5, 400)
                journal.settle()
                journal.row(0.001, [Validated("v", 0.75, 12.34)] if step == 2 else ())
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
