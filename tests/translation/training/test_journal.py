"""The log of a run, and what a person sees of it."""

from __future__ import annotations

import csv
import math
import sys

import pytest
import torch

from relattn.translation.errors import InputError
from relattn.translation.training import journal as module
from relattn.translation.training.journal import Journal, read_log


@pytest.fixture
def clock(monkeypatch):
    """A clock whose hand the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(module.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_a_row_is_over_the_steps_since_the_one_before(tmp_path, clock):
    journal = Journal(tmp_path / "log.csv", step=0, steps=9, show=False)
    for loss, tokens in ((3.0, 100), (2.0, 300)):
        journal.start_clock()
        clock.now += 2
        journal.count(torch.tensor(loss), tokens)
    journal.stop_clock()
    clock.now += 50  # validation and saving
    row = journal.row(2, 0.5, 1.25, 30.0)
    assert (row.step, row.loss, row.tokens_per_second, row.learning_rate) == (2, 2.25, 100.0, 0.5)
    assert (row.seconds, row.valid_loss, row.valid_bleu) == (4.0, 1.25, 30.0)
    journal.start_clock()
    clock.now += 1
    journal.count(torch.tensor(1.0), 50)
    journal.stop_clock()
    journal.row(3, 0.25)
    assert [(r.step, r.loss, r.tokens_per_second, r.seconds, r.valid_loss) for r in read_log(tmp_path / "log.csv")] == [
        (2, 2.25, 100.0, 4.0, 1.25),
        (3, 1.0, 50.0, 5.0, None),
    ]


def test_a_later_session_goes_on_from_its_checkpoint(tmp_path, clock):
    path = tmp_path / "log.csv"
    journal = Journal(path, step=0, steps=9, show=False)
    for step in (2, 4, 6):
        journal.start_clock()
        clock.now += 3
        journal.count(torch.tensor(1.0), 10)
        journal.stop_clock()
        journal.row(step, 0.1)
    Journal(path, step=4, steps=9, show=False).row(6, 0.2)
    rows = read_log(path)
    assert [row.step for row in rows] == [2, 4, 6]
    assert rows[2].seconds == 6.0
    assert math.isnan(rows[2].loss)  # no step was counted


def test_the_columns_are_named(tmp_path):
    Journal(tmp_path / "log.csv", step=0, steps=9, show=False)
    with open(tmp_path / "log.csv", newline="") as file:
        names = ["step", "loss", "tokens_per_second", "learning_rate", "seconds", "valid_loss", "valid_bleu"]
        assert list(csv.reader(file)) == [names]


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"log.csv: not a training log: its columns are \['a', 'b'\]"):
        Journal(tmp_path / "log.csv", step=0, steps=9, show=False)


def test_lines_where_there_is_no_terminal_and_a_bar_where_there_is(tmp_path, capsys, monkeypatch, clock):
    def session() -> str:
        journal = Journal(tmp_path / "log.csv", step=0, steps=2, show=True)
        for step in (1, 2):
            journal.start_clock()
            clock.now += 2
            journal.count(torch.tensor(1.5), 400)
            journal.stop_clock()
            journal.row(step, 0.001, *((0.75, 12.34) if step == 2 else ()))
        journal.close()
        return capsys.readouterr().err

    assert session().splitlines() == [
        "step 1  loss 1.500  200 tokens/s  lr 1.00e-03  2 s",
        "step 2  loss 1.500  200 tokens/s  lr 1.00e-03  4 s  valid loss 0.750  valid BLEU 12.3",
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = session()
    assert "loss 1.500, 200 tokens/s, lr 1.0e-03" in shown
    assert "valid BLEU 12.3" in shown
    assert "2/2" in shown
