"""The demo with small models: results, files and continuing. What the model learns is measured elsewhere."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from relattn.translation import bundle, demo, load
from relattn.translation.analysis.positions import by_position
from relattn.translation.commands import main as cli
from relattn.translation.data import encode
from relattn.translation.data.builtin import builtin
from relattn.translation.errors import Interrupted


@pytest.fixture
def small(monkeypatch):
    """Make the demo train small models on few lines."""
    original = demo.recipe

    def recipe(*args, **options):
        whole = original(*args, **options)
        return replace(
            whole,
            model=replace(whole.model, dim=16, feed_forward_dim=16, encoder_layers=1, decoder_layers=1),
            data=replace(whole.data, builtin_lines=60),
            train=replace(whole.train, valid_bleu_lines=1),
            search=replace(whole.search, beam_size=1, max_length_ratio=0.0, max_length_extra=3),
        )

    monkeypatch.setattr(demo, "recipe", recipe)
    monkeypatch.setattr(demo, "LINES", 6)
    monkeypatch.setattr(demo, "WIDTH", 4)
    monkeypatch.setattr(encode, "VALID_LINES", 2)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")  # the baseline warns
def test_demo_trains_compares_and_shows(small, tmp_path, capsys):
    command = ["demo", "--out", str(tmp_path), "--steps", "2", "--compare", "none"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["positions"] for row in rows] == ["relative", "none"]
    for row in rows:
        translator = bundle.read_bundle(tmp_path / row["positions"] / "bundle").translator()
        bins = by_position(translator, builtin("long", lines=6), width=4)
        assert any(b.tokens < 6 for b in bins)
        measured = {b.label: f"{100 * b.correct:.0f} %" for b in bins if b.tokens >= 6}
        names = ["positions", "items correct", "lines correct", "BLEU", "training", *measured, "signature"]
        assert (list(row), {name: row[name] for name in measured}) == (names, measured)
        assert row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    longest = max(len(translator.tokenizer.encode(tgt)) for _, tgt in builtin("train", lines=60))
    assert f"{longest} tokens" in out
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"translate {tmp_path / 'relative' / 'bundle'}" in out
    assert cli.main(command) == 0  # nothing is trained again
    assert capsys.readouterr().out == out
    examples = load(tmp_path / "relative" / "bundle").examples  # from the card
    assert examples == [src for src, _ in builtin("valid", lines=3)]
    assert cli.main([*command, "--seed", "2"]) == 2
    assert "seed: 1 → 2" in capsys.readouterr().err


def test_demo_that_fails_or_is_stopped(small, tmp_path, monkeypatch, capsys):
    command = ["demo", "--out", str(tmp_path / "out"), "--steps", "2"]
    assert cli.main([*command, "--src_lang", "xx"]) == 2
    assert "xx" in capsys.readouterr().err
    assert not (tmp_path / "out" / "relative").exists()

    def stopped(recipe, *, resume, again):
        raise Interrupted(f"stopped; {again} continues")

    monkeypatch.setattr(demo, "train", stopped)
    assert cli.main(command) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "relattn: stopped; the same command continues"
