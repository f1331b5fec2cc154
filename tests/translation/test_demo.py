"""The demo, small: what it writes, and that it can be asked for again. What it learns is measured, not tested."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from relattn.translation import cli, demo
from relattn.translation.data import prepare
from relattn.translation.errors import InputError
from relattn.translation.evaluation import item_accuracy


@pytest.fixture
def small(monkeypatch):
    made = demo.recipe

    def recipe(*args, **kwargs):
        whole = made(*args, **kwargs)
        model = replace(whole.model, dim=16, feed_forward_dim=16, encoder_layers=1, decoder_layers=1)
        return replace(
            whole,
            model=model,
            data=replace(whole.data, embedded_lines=60),
            train=replace(whole.train, valid_bleu_lines=1),
            search=replace(whole.search, beam_size=1, max_length_ratio=0.0, max_length_extra=3),
        )

    monkeypatch.setattr(demo, "recipe", recipe)
    monkeypatch.setattr(demo, "SPLITS", {"test": 6, "long": 2})
    monkeypatch.setattr(prepare, "VALID_LINES", 2)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")  # the baseline warns, as it should
def test_the_demo_trains_compares_and_shows(small, tmp_path, capsys):
    command = ["demo", "--out", str(tmp_path), "--steps", "2", "--compare", "none"]
    assert cli.main(command) == 0
    first = capsys.readouterr().out
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [(row["positions"], row["split"], row["lines"]) for row in rows]
    assert found == [(scheme, *split) for scheme in ("relative", "none") for split in (("test", "6"), ("long", "2"))]
    assert all(row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|") for row in rows)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"translate {tmp_path / 'relative' / 'bundle'}" in first
    assert cli.main(command) == 0  # nothing is trained again
    assert capsys.readouterr().out == first
    assert cli.main([*command, "--seed", "2"]) == 2
    assert "seed: 1 → 2" in capsys.readouterr().err


def test_accuracy_by_length_is_that_of_the_lines_of_each_length():
    pairs = [("", "a; b"), ("", "c"), ("", "d; e")]
    result = demo.Result("relative", "test", pairs, ["a; b", "x", "d"], [3, 12, 9], 0.0)
    assert result.by_length() == [(5.0, item_accuracy(["a; b", "d"], ["a; b", "d; e"]).items), (15.0, 0.0)]


def test_locales_that_are_not_spoken_leave_nothing(small, tmp_path):
    with pytest.raises(InputError, match="xx"):
        demo.demo(tmp_path / "out", ["relative"], steps=1, seed=1, src_lang="xx", tgt_lang="de")
    assert not (tmp_path / "out" / "relative").exists()
