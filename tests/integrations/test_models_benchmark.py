"""The benchmarks of whole encoders run, small, and write what they say."""

from __future__ import annotations

import csv
import sys

import matplotlib
import pytest

from benchmarks import encoders, models, models_check, models_picture

SMALL = encoders.Encoder(
    lambda own: encoders.Vits(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, ffn_dim=48, vocab_size=30),
    encoders.tokens,
    sizes=(4, 8, 40),
    own=("eager",),
    text=True,
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a benchmark of one small encoder, in this process, and gives its rows."""
    monkeypatch.setitem(encoders.ENCODERS, "small", SMALL)

    def run(module, *flags):
        monkeypatch.setattr(module, "apart", lambda function, *arguments: function(*arguments))
        monkeypatch.setattr(models, "peak_here", lambda work: (work(), 1 << 20)[1])  # this process has held more
        out = tmp_path / "rows.csv"
        monkeypatch.setattr(sys, "argv", ["models", "--only", "small", "--out", str(out), *flags])
        module.main()
        with out.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return run


@pytest.mark.whole
def test_times(run, monkeypatch):
    monkeypatch.setattr(models, "SHORT", 0.0)
    rows = run(models)
    assert [(row["size"], row["method"]) for row in rows] == [
        (size, method) for size in ("4", "8", "40") for method in ("eager", "relattn")
    ]
    assert all(float(row["seconds"]) > 0 and 0 < float(row["attention"]) < 1 and not row["note"] for row in rows)


@pytest.mark.whole
def test_the_picture_has_a_line_for_each_length_and_a_cross_for_what_was_left_out(run, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "MOST_SECONDS", 0.0)
    run(models)
    monkeypatch.setattr(sys, "argv", ["p", "--results", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "p.svg")])
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    models_picture.main()
    drawn = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert [drawn.count(f">{label}<") for label in ("small, 4 tokens", "8 tokens", "40 tokens")] == [1, 1, 1]
    assert drawn.count(">×<") == 2 * 4  # two methods at two lengths, in both panels


@pytest.mark.whole
def test_what_would_take_too_long_is_left_out(run, monkeypatch):
    monkeypatch.setattr(models, "MOST_SECONDS", 0.0)
    rows = run(models)
    assert [bool(row["seconds"]) for row in rows] == [True, True, False, False, False, False]
    assert all("s by what it took at 4" in row["note"] for row in rows[2:])


@pytest.mark.parametrize(("method", "left_out"), [("eager", True), ("relattn", False)])
def test_what_would_not_fit_is_left_out(monkeypatch, method, left_out):
    """Memory grows with the square, that of the operator in proportion."""
    monkeypatch.setattr(models, "available_memory", lambda: 1000)
    before = {10: {"seconds": 1.0, "bytes": 100.0}}
    assert bool(models.too_much(method, 40, before)) == left_out


@pytest.mark.whole
def test_agreement(run, monkeypatch):
    monkeypatch.setattr(models_check, "CHECKED", ["small"])
    monkeypatch.setattr(models_check, "TRAINED", ["small"])
    rows = run(models_check)
    assert [(row["dtype"], row["padded"]) for row in rows] == [
        ("float32", "False"),
        ("float32", "True"),
        ("bfloat16", "False"),
        ("bfloat16", "True"),
        ("float32", "training"),
    ]
    assert all(0 < float(row["largest"]) < 1e-5 * float(row["of"]) for row in rows[:2])
    assert all(0 < float(row["ours"]) < 2 * float(row["own"]) < 0.1 for row in rows[2:4])
    assert float(rows[4]["loss"]) == pytest.approx(float(rows[4]["our_loss"]), abs=2e-6)
    assert 0 < float(rows[4]["gradient"]) < 1e-4
