"""What is out of the ordinary among the losses of steps, and by which pairs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from relattn.translation.errors import Diverged, InputError
from relattn.translation.training.losses import Losses


def of(out: Path) -> Losses:
    return Losses(out, lambda position: [("a.en", position[1]), ("a.en", 5)])


def falling(steps: int) -> list[float]:
    noise = np.random.default_rng(1).normal(0, 0.15, steps)
    return [9 * math.exp(-step / 300) + 2 + float(noise[step]) for step in range(steps)]


def see(losses: Losses, values: list[float], first: int = 1) -> list[str]:
    """What is said of values, of steps from `first` on."""
    told = [losses.see(step, (0, step - 1), value, write=True) for step, value in enumerate(values, start=first)]
    return [line for line in told if line is not None]


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "spikes.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_training_that_goes_well_has_no_spikes(tmp_path):
    see(of(tmp_path), falling(3000))
    assert list(tmp_path.iterdir()) == []


def test_a_spike_is_noted_with_its_pairs(tmp_path):
    values = falling(1000)
    values[700] *= 3
    told = see(of(tmp_path), values)
    (row,) = rows(tmp_path)
    assert (row["step"], row["pairs"]) == ("701", "a.en:700 a.en:5")
    assert float(row["loss"]) == pytest.approx(values[700], rel=1e-5)
    usual = np.mean(values[:100])
    for value in values[100:700]:
        usual = 0.99 * usual + 0.01 * value
    assert float(row["usual"]) == pytest.approx(usual, rel=1e-5)
    assert told == [
        f"step 701: a loss of {values[700]:.3f} where {usual:.3f} is usual; its pairs are in {tmp_path}/spikes.csv"
    ]


def test_what_is_usual_is_mean_and_variance_at_first(tmp_path):
    losses, values = of(tmp_path), falling(100)
    see(losses, values)
    mean, variance, steps = losses.usual
    assert (mean, variance, steps) == (pytest.approx(np.mean(values)), pytest.approx(np.var(values)), 100)


def test_a_spike_does_not_hide_the_next(tmp_path):
    values = [2.0 + 0.01 * (step % 5) for step in range(300)]
    for step in (200, 201, 203):
        values[step] = 9.0
    see(of(tmp_path), values)
    assert [row["step"] for row in rows(tmp_path)] == ["201", "202", "204"]


def test_a_later_session_takes_out_what_came_after_its_checkpoint(tmp_path):
    losses, values = of(tmp_path), falling(600)
    values[300], values[500] = 30.0, 40.0
    see(losses, values[:400])
    kept = losses.usual
    see(losses, values[400:], first=401)
    whole = rows(tmp_path)
    assert [row["step"] for row in whole] == ["301", "501"]
    later = of(tmp_path)
    later.usual = kept
    later.begin(400)
    assert rows(tmp_path) == whole[:1]
    see(later, values[400:], first=401)
    assert rows(tmp_path) == whole
    (tmp_path / "spikes.csv").write_text("something\nelse\n")
    with pytest.raises(InputError, match=r"spikes\.csv: not a list of spikes"):
        later.begin(400)


def test_one_process_alone_writes(tmp_path):
    losses = of(tmp_path)
    see(losses, [2.0] * 200)
    losses.see(201, (0, 200), 50.0, write=False)
    with pytest.raises(Diverged, match="the loss of step 202 is nan"):
        losses.see(202, (0, 201), math.nan, write=False)
    assert list(tmp_path.iterdir()) == []
