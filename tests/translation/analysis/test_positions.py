"""Predictions by target position, compared with the model run on one prefix at a time."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from relattn.translation.analysis import positions as teacher_forcing
from relattn.translation.analysis.positions import by_position
from relattn.translation.commands import main as cli
from relattn.translation.errors import InputError
from relattn.translation.translate.torch_translator import TorchTranslator
from tests.support.commands import Result, assert_refused
from tests.translation.formats.bundles import make_bundle

PAIRS = [
    ("one apple and two pears", "zwei Birnen und ein Apfel"),
    ("two", "Birnen und 17"),
    ("", "Apfel"),
    ("17 apples, 4 pears and one apple", "17 Äpfel, 4 Birnen und ein Apfel"),
    ("one", " "),
    ("apple", "und und und und"),
]


def make(path: Path, **options: object) -> TorchTranslator:
    """Return a model with random weights, some of whose predictions are correct."""
    translator = make_bundle(path / "bundle", encoder_layers=1, **options).translator()
    with torch.no_grad():
        translator.model.decoder_norm.bias += 4 * translator.model.embedding[translator.tokenizer.encode("und")[0]]
    return translator


def one_at_a_time(translator: TorchTranslator, pairs: list[tuple[str, str]], width: int) -> dict[str, list[tuple]]:
    """Return (correct, nats) of each target token by the label of its bin, from unpadded prefixes in float64."""
    model, tokenizer = translator.model.double(), translator.tokenizer
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


def test_lines_that_are_refused(tmp_path):
    translator = make(tmp_path, positions="learned", max_positions=6)
    five, six = " ".join(["apple"] * 5), " ".join(["apple"] * 6)
    longest = [("apple", "apple"), ("", six), (five, five)]
    assert by_position(translator, longest, width=9)[0].tokens == 6
    for pairs, width, fact in (
        ([], 5, "at least one line"),
        ([("", "Apfel"), ("one", "  ")], 5, "at least one line"),
        (longest, 0, "width must be .* got 0"),
        ([*longest, (six, "apple")], 9, "source line 4 has 6 pieces, .* at most 5"),
        ([*longest, ("apple", six)], 9, "target line 4 has 6 pieces, .* at most 5"),
    ):
        with pytest.raises(InputError, match=fact):
            by_position(translator, pairs, width=width)


@pytest.fixture
def analyze(monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run the command on a bundle of the test. It must not translate, which takes long."""
    make_bundle(tmp_path / "bundle", encoder_layers=1, languages=("en", "de"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TorchTranslator, "search_batch", None)

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["analyze", "positions", "bundle", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_command(analyze, tmp_path):
    for side, lines in zip(("src", "ref"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    bins = by_position(make_bundle(tmp_path / "bundle").translator(), PAIRS, width=7)
    files = ("--src", "src", "--ref", "ref")
    code, out, err = analyze(*files, "--width", 7, "--trained-length", 12, "--out", "a.csv", "--picture", "a.png")
    assert (code, err) == (0, "")
    header, *lines = out.splitlines()
    assert header.split() == ["positions", "tokens", "correct", "nats"]
    assert [line.split() for line in lines] == [
        [b.label, str(b.tokens), f"{100 * b.correct:.1f}", "%", f"{b.nats:.3f}"] for b in bins
    ]
    with open("a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, b in zip(rows, bins, strict=True):
        assert (row["first"], row["last"]) == tuple(b.label.split("–") if b.positions else ("end", "end"))
        assert int(row["tokens"]) == b.tokens
        assert [float(row["correct"]), float(row["nats"])] == pytest.approx([b.correct, b.nats], abs=1e-6)
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = analyze("--builtin", "long", "--lines", 2, "--width", 500)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["positions", "0–499", "end"]


def test_options_that_are_refused(analyze, tmp_path, monkeypatch):
    """Nothing is computed, except for a width out of range, which the computation refuses."""
    monkeypatch.setattr(teacher_forcing, "eval_batches", None)
    for arguments, fact in (
        (("--trained_length", 5, "--out", "a.csv"), "--picture"),
        (("--trained_length", 0, "--picture", "a.png"), "trained_length must be at least 1, got 0"),
        (("--picture", "a.csv"), "got a.csv"),
        (("--width", 0), "width must be at least 1 and at most 1,000,000, got 0"),
        (("--width", 10**30), "width"),
        (("--beam_size", 3), "unknown option"),
        (("--out", "no/t.csv"), "no/t.csv: cannot be written"),
    ):
        width = () if "--width" in arguments else ("--width", 5)
        assert_refused(Result(*analyze("--builtin", "test", "--lines", 2, *width, *arguments)), fact)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
