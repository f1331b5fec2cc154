"""The demo with small models: results, files and continuing. What the model learns is measured elsewhere."""

import csv
import shlex
import sys
from dataclasses import replace

import pytest
from relattn_mt import bundle

from research import corpus, demo, reproduce
from research.__main__ import main
from research.corpus import builtin
from research.positions import by_position
from research.tables import SCALES


@pytest.fixture
def small(monkeypatch):
    """Make the demo train small models on few lines."""
    whole = SCALES["demo"].recipe
    recipe = replace(
        whole,
        model=replace(whole.model, dim=16, feed_forward_dim=16, encoder_layers=1, decoder_layers=1),
        train=replace(whole.train, valid_bleu_lines=1),
        search=replace(whole.search, beam_size=1, max_length_ratio=0.0, max_length_extra=3),
    )
    monkeypatch.setitem(SCALES, "demo", SCALES["demo"]._replace(recipe=recipe))
    for split, lines in {"train": 60, "valid": 2, "test": 6, "long": 6}.items():
        monkeypatch.setitem(corpus.LINES, split, lines)
    monkeypatch.setattr(reproduce, "WIDTH", 4)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")  # the baseline warns
def test_demo_trains_compares_and_shows(small, tmp_path, capsys, monkeypatch):
    command = ["demo", "--out", str(tmp_path), "--steps", "2", "--compare", "none"]
    assert main(command) == 0
    out = capsys.readouterr().out
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["positions"] for row in rows] == ["relative", "none"]
    for row in rows:
        translator = bundle.read_bundle(tmp_path / row["positions"] / "bundle").torch_translator()
        bins = by_position(translator, builtin("long", lines=6), width=4)
        assert any(b.tokens < 6 for b in bins)
        measured = {b.label: f"{100 * b.correct:.0f} %" for b in bins if b.tokens >= 6}
        names = ["positions", "items correct", "lines correct", "BLEU", "training", *measured, "signature"]
        assert (list(row), {name: row[name] for name in measured}) == (names, measured)
        assert row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    longest = max(len(translator.tokenizer.encode(tgt)) for _, tgt in builtin("train", lines=60))
    assert f"{longest} tokens" in out
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"translate {shlex.quote(str(tmp_path / 'relative' / 'bundle'))}" in out
    monkeypatch.setattr(demo, "png", lambda figure: b"")  # a picture has been drawn
    assert main(command) == 0  # nothing is trained again
    assert capsys.readouterr().out == out
    assert main([*command, "--seed", "2"]) == 2
    assert "seed: 1 → 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "package"),
    [("demo", "matplotlib"), ("demo", "num2words"), ("reproduce", "matplotlib"), ("corpus", "num2words")],
)
def test_a_missing_package_is_named_before_anything_is_written(command, package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    arguments = {"demo": [], "reproduce": ["tables"], "corpus": ["text"]}[command]
    assert main([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), package in error) == (1, True)
    assert [*tmp_path.iterdir()] == []
