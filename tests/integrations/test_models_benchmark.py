"""Test of the benchmarks of transformers' models: they run on a small model and write their results."""

from __future__ import annotations

import csv
import sys

from benchmarks import encoders, measure, models
from tools import pictures

SMALL = encoders.Encoder(
    lambda own: encoders.Vits(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, ffn_dim=48, vocab_size=30),
    encoders.tokens, sizes=(4, 8, 40), own=("eager",), unit="tokens",
)  # fmt: skip


def test_the_benchmarks_run(tmp_path, monkeypatch):
    rows, picture = tmp_path / "rows.csv", tmp_path / "picture.svg"

    def results(*flags):
        monkeypatch.setattr(sys, "argv", ["benchmark", "--only", "small", "--out", str(rows), *flags])
        models.main()
        return list(csv.DictReader(rows.read_text(encoding="utf-8").splitlines()))

    monkeypatch.setitem(encoders.ENCODERS, "small", SMALL)
    monkeypatch.setattr(measure, "uncommitted", list)
    monkeypatch.setattr(models, "apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(models, "peak_here", lambda work: (work(), 1 << 20)[1])  # this process has used more
    monkeypatch.setattr(models, "SHORT", 0.0)
    monkeypatch.setattr(models, "MOST_SECONDS", 0.0)  # only the shortest input is run
    measured = results()
    assert [(row["size"], row["method"]) for row in measured] == [
        (size, method) for size in ("4", "8", "40") for method in ("eager", "relattn")
    ]
    assert all(float(row["seconds"]) > 0 and 0 < float(row["attention"]) < 1 for row in measured[:2])
    assert all(not row["seconds"] and row["note"] for row in measured[2:])
    pictures.draw_models(rows, picture)
    assert picture.read_text(encoding="utf-8").count("<svg") == 1

    rows.unlink()
    monkeypatch.setattr(models, "TRAINED", ["small"])
    checked = results("--check")
    assert all(0 < float(row["largest"]) < 1e-5 * float(row["of"]) for row in checked[:2])  # float32
    assert 0 < float(checked[-1]["gradient"]) < 1e-4
