"""Predictions by target position, compared with the model run on one prefix at a time."""

import math
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.translate.translator import Translator

from research import positions as teacher_forcing
from research.__main__ import main
from research.positions import by_position
from tests.support.foreign_bundles import make_bundle

PAIRS = [
    ("one apple and two pears", "zwei Birnen und ein Apfel"),
    ("two", "Birnen und 17"),
    ("", "Apfel"),
    ("17 apples, 4 pears and one apple", "17 Äpfel, 4 Birnen und ein Apfel"),
    ("one", " "),
    ("apple", "und und und und"),
]


def make(path: Path, **options: object) -> Translator:
    """Return a model with random weights, some of whose predictions are correct."""
    translator = make_bundle(path / "bundle", encoder_layers=1, **options).torch_translator()
    with torch.no_grad():
        translator.engine.model.decoder_norm.bias += (
            4 * translator.engine.model.embedding[translator.tokenizer.encode("und")[0]]
        )
    return translator


def one_at_a_time(translator: Translator, pairs: list[tuple[str, str]], width: int) -> dict[str, list[tuple]]:
    """Return (correct, nats) of each target token by the label of its bin, from unpadded prefixes in float64."""
    model, tokenizer = translator.engine.model.double(), translator.tokenizer
    found: dict[str, list[tuple]] = {}
    for src, tgt in pairs:
        source = torch.tensor([[*tokenizer.encode(src), tokenizer.special.eos]])
        pieces = [*tokenizer.encode(tgt), tokenizer.special.eos]
        for position, piece in enumerate(pieces):
            before = torch.tensor([[tokenizer.special.bos, *pieces[:position]]])
            log_p = model(source, torch.tensor([source.shape[1]]), before)[0, -1].log_softmax(-1)
            first = position - position % width
            last = first + width - 1
            label = "end" if position == len(pieces) - 1 else f"{first}–{last}" if width > 1 else str(first)
            found.setdefault(label, []).append((log_p.argmax().item() == piece, -log_p[piece].item()))
    model.float()
    return found


@pytest.mark.parametrize(("positions", "most", "width"), [("relative", 30, 4), ("learned", 4096, 1)])
def test_bins_are_means_over_tokens(tmp_path, monkeypatch, positions, most, width):
    monkeypatch.setattr(teacher_forcing, "MAX_TOKENS", most)
    translator = make(tmp_path, positions=positions)
    expected = one_at_a_time(translator, [pair for pair in PAIRS if all(map(str.strip, pair))], width)
    found = by_position(translator, PAIRS, width=width)
    assert 0 < sum(b.correct for b in found) < len(found)
    assert [b.label for b in found] == [*sorted(expected.keys() - {"end"}, key=lambda s: int(s.split("–")[0])), "end"]
    for b in found:
        right, nats = zip(*expected[b.label], strict=True)
        assert b.tokens == len(nats)
        assert b.correct == pytest.approx(sum(right) / len(right))
        assert b.nats == pytest.approx(math.fsum(nats) / len(nats), rel=1e-5)
    axis = Figure().subplots()
    teacher_forcing.draw(axis, {"ours": found}, trained=9)
    curve, line = axis.get_lines()
    assert list(curve.get_xdata()) == [(width - 1) / 2 + width * i for i in range(len(found) - 1)]
    assert list(curve.get_ydata()) == [b.correct for b in found[:-1]]
    assert set(line.get_xdata()) == {9}


def test_command(tmp_path, monkeypatch, capsys):
    """It prints the table, and does not translate, which takes long."""
    bins = by_position(make_bundle(tmp_path / "bundle").torch_translator(), PAIRS, width=7)
    monkeypatch.setattr(TorchEngine, "search", None)
    files = []
    for side, lines in zip(("src", "ref"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        files += [f"--{side}", str(tmp_path / side)]
    assert main(["positions", str(tmp_path / "bundle"), *files, "--width", "7"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["positions", "tokens", "correct", "nats"]
    assert [line.split() for line in lines] == [
        [b.label, str(b.tokens), f"{100 * b.correct:.1f}", "%", f"{b.nats:.3f}"] for b in bins
    ]
