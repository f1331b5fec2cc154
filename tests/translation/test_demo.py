"""The demo with a small model: output, files and resuming. What it learns is measured, not tested."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from relattn.translation import bundle, demo
from relattn.translation.analysis.positions import by_position
from relattn.translation.commands import main as cli
from relattn.translation.data import encode
from relattn.translation.data.builtin import builtin
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.translate.torch_translator import TorchTranslator


@pytest.fixture
def small(monkeypatch):
    made = demo.recipe

    def recipe(*args, **kwargs):
        whole = made(*args, **kwargs)
        model = replace(whole.model, dim=16, feed_forward_dim=16, encoder_layers=1, decoder_layers=1)
        return replace(
            whole,
            model=model,
            data=replace(whole.data, builtin_lines=60),
            train=replace(whole.train, valid_bleu_lines=1),
            search=replace(whole.search, beam_size=1, max_length_ratio=0.0, max_length_extra=3),
        )

    monkeypatch.setattr(demo, "recipe", recipe)
    monkeypatch.setattr(demo, "LINES", 6)
    monkeypatch.setattr(demo, "WIDTH", 4)
    monkeypatch.setattr(encode, "VALID_LINES", 2)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")  # the baseline warns
def test_the_demo_trains_compares_and_shows(small, tmp_path, capsys):
    command = ["demo", "--out", str(tmp_path), "--steps", "2", "--compare", "none"]
    assert cli.main(command) == 0
    first = capsys.readouterr().out
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["positions"] for row in rows] == ["relative", "none"]
    for row in rows:
        translator = bundle.read_bundle(tmp_path / row["positions"] / "bundle").translator()
        bins = by_position(translator, builtin("long", lines=6), width=4)
        assert any(b.pieces < 6 for b in bins)
        measured = {b.label: f"{100 * b.right:.0f} %" for b in bins if b.pieces >= 6}
        names = ["positions", "items right", "lines right", "BLEU", "training", *measured, "signature"]
        assert (list(row), {name: row[name] for name in measured}) == (names, measured)
    longest = max(len(translator.tokenizer.encode(tgt)) for _, tgt in builtin("train", lines=60))
    assert f"the longest target trained on has {longest} pieces" in first
    assert all(row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|") for row in rows)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"translate {tmp_path / 'relative' / 'bundle'}" in first
    assert cli.main(command) == 0  # nothing is trained again
    assert capsys.readouterr().out == first
    assert cli.main([*command, "--seed", "2"]) == 2
    assert "seed: 1 → 2" in capsys.readouterr().err


@pytest.mark.parametrize("positions", SCHEMES)
def test_every_scheme_has_its_recipe(tmp_path, positions):
    """All have the same size. Schemes that clip do so early, so that lines of `long` are longer."""
    plan = demo.recipe(tmp_path, positions, steps=2, seed=1, src_lang="en", tgt_lang="de")
    assert plan.model.positions == positions
    assert plan.model.clip == (8 if positions.startswith("relative") else None)
    first = demo.recipe(tmp_path, "relative", steps=2, seed=1, src_lang="en", tgt_lang="de")
    assert first.model.with_positions(positions) == plan.model.with_positions(positions)
    assert replace(first, model=plan.model) == plan


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
def test_every_scheme_can_be_compared(small, tmp_path):
    assert cli.main(["demo", "--out", str(tmp_path), "--steps", "2", "--compare", *SCHEMES]) == 0
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        names = [row["positions"] for row in csv.DictReader(file)]
    assert names == ["relative", *(name for name in SCHEMES if name != "relative")]


def test_the_demo_says_what_is_right_and_what_is_wrong(small, tmp_path, capsys, monkeypatch):
    (wrong, reference), *others = builtin("test", lines=6)
    answers = {wrong: "falsch", **dict(others)}
    monkeypatch.setattr(TorchTranslator, "translate", lambda _, lines: [answers.get(line, "") for line in lines])
    assert cli.main(["demo", "--out", str(tmp_path), "--steps", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    items = [len(tgt.split("; ")) for tgt in (reference, *answers.values())]
    right = 100 * sum(items[2:]) / (items[0] + sum(items[2:]))
    assert ["relative", f"{right:.1f}", "%", f"{100 * 5 / 6:.1f}", "%"] in [line[:5] for line in lines]
    at = lines.index(["src.", *wrong.split()])
    assert lines[at + 1 : at + 4] == [["WRONG", "falsch"], ["ref.", *reference.split()], []]
    src, tgt = others[0]
    assert lines[at + 4 : at + 7] == [["src.", *src.split()], ["right", *tgt.split()], []]


def test_unsupported_locales_leave_nothing(small, tmp_path):
    with pytest.raises(InputError, match="xx"):
        demo.demo(tmp_path / "out", ["relative"], steps=1, seed=1, src_lang="xx", tgt_lang="de")
    assert not (tmp_path / "out" / "relative").exists()


def test_a_stopped_demo_says_how_to_continue(small, tmp_path, monkeypatch, capsys):
    def stopped(recipe, *, resume, again):
        raise Interrupted(f"stopped; {again} goes on from there")

    monkeypatch.setattr(demo, "train", stopped)
    assert cli.main(["demo", "--out", str(tmp_path), "--steps", "2"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "relattn: stopped; the same command goes on from there"
