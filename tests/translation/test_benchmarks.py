"""The benchmark commands run, small, and write what they say. Their figures are made by hand, on a quiet machine."""

from __future__ import annotations

import csv
import sys

import pytest

from benchmarks import attention, length, train_step


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_attention(tmp_path, monkeypatch):
    command = ["attention", "--lengths", "5", "--tokens", "10", "--repeats", "1", "--out", str(tmp_path / "a.csv")]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(attention, "peak_memory", lambda *_: 1)  # a process each
    attention.main()
    rows = table(tmp_path / "a.csv")
    assert [(row["pass"], row["method"]) for row in rows] == [
        (name, method) for name in ("forward", "forward + backward") for method in attention.METHODS
    ]
    assert all(row["commit"] and row["device"] and row["torch"] and float(row["ms"]) > 0 for row in rows)


def test_train_step(tmp_path, monkeypatch):
    command = ["train_step", "--lengths", "4", "--tokens", "8", "--layers", "1", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "t.csv")])
    train_step.main()
    rows = table(tmp_path / "t.csv")
    assert [row["positions"] for row in rows] == ["sinusoidal", "relative"]
    assert float(rows[1]["ratio"]) == pytest.approx(float(rows[1]["ms"]) / float(rows[0]["ms"]), rel=1e-2)


def test_length(finished, text, tmp_path, monkeypatch, capsys):
    files = ["--src", text["valid_src"], "--ref", text["valid_tgt"], "--out", str(tmp_path / "l.png")]
    command = ["length", f"mine={finished.out}/bundle", *files, "--edges", "2", "4", "--trained"]
    monkeypatch.setattr(sys, "argv", [*command, "4"])
    length.main()
    assert "| 1–2 | 2 |" in capsys.readouterr().out
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", [*command, "3"])
    with pytest.raises(SystemExit):
        length.main()
    assert "--trained 3 must be one of the --edges [2, 4]" in capsys.readouterr().err
