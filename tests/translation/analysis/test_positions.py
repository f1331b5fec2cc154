"""Pieces by position, against the model asked for one sentence at a time in float64."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable

import pytest
import torch

from relattn.translation import bundle
from relattn.translation.analysis import positions as teacher_forcing
from relattn.translation.analysis.positions import by_position
from relattn.translation.commands import main as cli
from relattn.translation.config import ModelConfig, Positions, Recipe, SearchConfig
from relattn.translation.data.text_files import read_parallel
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.torch_translator import TorchTranslator

PAIRS = [
    ("one cat sat on two mat", "zwei Matte auf saß Katze eins"),
    ("two", "eins"),
    ("", "Katze"),
    ("cat and cat and cat and one mat", "Matte eins und Katze und Katze und Katze"),
    ("mat", " "),
    ("sat", "auf auf auf auf auf auf"),
]


@pytest.fixture(scope="module")
def make(finished: Recipe) -> Callable[..., TorchTranslator]:
    """make(positions="…"): a model of random weights, whose predictions vary, with the tokenizer of a finished run."""
    tokenizer = Tokenizer.load(f"{finished.out}/tokenizer.model")

    def translator(positions: Positions = "relative", **options) -> TorchTranslator:
        torch.manual_seed(5)
        config = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=1)
        if positions == "relative":
            options = {"clip": 2, **options}
        model = Transformer(config.with_positions(positions, **options), tokenizer.vocab_size)
        with torch.no_grad():
            model.embedding *= 3
        return TorchTranslator(model, tokenizer, SearchConfig())

    return translator


def one_at_a_time(translator: TorchTranslator, pairs: list[tuple[str, str]], width: int) -> dict[str, list[tuple]]:
    """(right, nats) of each piece under the label of its bin, each asked for by itself, with nothing padded."""
    model, tokenizer = translator.model.double(), translator.tokenizer
    found: dict[str, list[tuple]] = {}
    for src, tgt in pairs:
        source = torch.tensor([[*tokenizer.encode(src), tokenizer.special.eos]])
        pieces = [*tokenizer.encode(tgt), tokenizer.special.eos]
        for position, piece in enumerate(pieces):
            before = torch.tensor([[tokenizer.special.bos, *pieces[:position]]])
            log_p = model(source, torch.tensor([source.shape[1]]), before)[0, -1].log_softmax(-1)
            first = position - position % width
            label = "end" if position == len(pieces) - 1 else f"{first}–{first + width - 1}"
            found.setdefault(label, []).append((log_p.argmax().item() == piece, -log_p[piece].item()))
    model.float()
    return found


@pytest.mark.parametrize("max_tokens", [1, 30, 4096])
@pytest.mark.parametrize("positions", ["relative", "sinusoidal", "learned"])
def test_bins_are_the_means_of_pieces_asked_for_one_by_one(make, monkeypatch, positions, max_tokens):
    monkeypatch.setattr(teacher_forcing, "MAX_TOKENS", max_tokens)
    translator = make(positions=positions)
    wanted = one_at_a_time(translator, [pair for pair in PAIRS if all(map(str.strip, pair))], 4)
    found = by_position(translator, PAIRS, width=4)
    assert all(0 < b.right < 1 for b in found[:-1])
    assert [b.label for b in found] == [*sorted(wanted.keys() - {"end"}, key=lambda s: int(s.split("–")[0])), "end"]
    for b in found:
        right, nats = zip(*wanted[b.label], strict=True)
        assert b.pieces == len(nats)
        assert b.right == sum(right) / len(right)
        assert b.nats == pytest.approx(math.fsum(nats) / len(nats), rel=1e-5)


def test_what_a_model_is_sure_of_is_right_at_its_positions_alone(make, monkeypatch):
    """A stand-in that knows every third piece, and no end: 1 of 3 positions is right, whatever the lengths."""
    translator = make()

    def forward(src, src_lengths, tgt_in):
        following = tgt_in.roll(-1, dims=1)
        known = torch.arange(tgt_in.shape[1]) % 3 == 1
        return 50.0 * torch.nn.functional.one_hot(following * known, translator.model.vocab_size)

    monkeypatch.setattr(translator.model, "forward", forward)
    *pieces, end = by_position(translator, PAIRS, width=1)
    lengths = [len(translator.tokenizer.encode(tgt)) for src, tgt in PAIRS if src.strip() and tgt.strip()]
    assert 1 == min(lengths) < 4 < max(lengths)
    for position, b in enumerate(pieces):
        assert (b.label, b.pieces) == (str(position), sum(length > position for length in lengths))
        assert b.right == (position % 3 == 1)
        assert b.nats == pytest.approx(0.0 if position % 3 == 1 else 50.0, abs=1e-4)
    assert (len(pieces), end.positions, end.pieces, end.right) == (max(lengths), None, len(lengths), 0.0)


@pytest.mark.parametrize("pairs", [[], [("", "Katze"), ("cat", "  ")]])
def test_no_text_is_refused(make, pairs):
    with pytest.raises(InputError, match="at least one line must have text on both sides"):
        by_position(make(), pairs, width=5)


def test_a_bin_holds_a_position_at_least(make):
    with pytest.raises(InputError, match=r"width must be at least 1 and at most 1,000,000, got 0"):
        by_position(make(), PAIRS, width=0)


def test_lines_longer_than_the_model_are_named(make):
    translator = make(positions="learned", max_positions=6)
    five, six = " ".join(["eins"] * 5), " ".join(["eins"] * 6)
    most = [("cat", "eins"), ("", six), (five, five)]
    assert by_position(translator, most, width=9)[0].pieces == 6
    for side, pair in (("source", (six, "eins")), ("target", ("cat", six))):
        with pytest.raises(InputError, match=f"^{side} line 4 has 6 pieces, but this model reads at most 5$"):
            by_position(translator, [*most, pair], width=9)


@pytest.fixture
def analyze(finished: Recipe, monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """analyze("--width", …): the command on a finished run, in a directory of its own; it may not translate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TorchTranslator, "search_batch", None)  # called, it would be an error that is no one line

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["analyze", "positions", f"{finished.out}/bundle", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_the_command_prints_and_keeps_what_was_measured(analyze, finished, text, tmp_path):
    bins = by_position(
        bundle.read_bundle(f"{finished.out}/bundle").translator(),
        list(read_parallel(text["valid_src"], text["valid_tgt"])),
        width=7,
    )
    files = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    kept, picture = tmp_path / "by.csv", tmp_path / "by.png"
    code, out, err = analyze(
        *files, "--width", 7, "--trained-length", 12, "--out", kept, "--picture", tmp_path / "by.png"
    )
    assert (code, err) == (0, "")
    header, *lines = out.splitlines()
    assert header.split() == ["positions", "pieces", "right", "nats"]
    assert [line.split() for line in lines] == [
        [b.label, str(b.pieces), f"{100 * b.right:.1f}", "%", f"{b.nats:.3f}"] for b in bins
    ]
    with open(kept, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, b in zip(rows, bins, strict=True):
        assert (row["first"], row["last"]) == tuple(b.label.split("–") if b.positions else ("end", "end"))
        assert int(row["pieces"]) == b.pieces
        assert [float(row["right"]), float(row["nats"])] == pytest.approx([b.right, b.nats], abs=1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_a_point_a_bin_and_the_trained_length(make):
    from matplotlib.figure import Figure

    axis, bins = Figure().subplots(), by_position(make(), PAIRS, width=4)
    teacher_forcing.draw(axis, {"ours": bins}, trained=9)
    curve, line = axis.get_lines()
    assert list(curve.get_xdata()) == [1.5 + 4 * i for i in range(len(bins) - 1)]
    assert list(curve.get_ydata()) == [b.right for b in bins[:-1]]
    assert set(line.get_xdata()) == {9}
    assert [entry.get_text() for entry in axis.get_legend().get_texts()] == ["ours"]


def test_the_command_on_the_builtin_corpus(analyze):
    code, out, err = analyze("--builtin", "long", "--lines", 2, "--width", 500)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["positions", "0–499", "end"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trained_length", 5, "--out", "a.csv"), "--trained_length requires --picture"),
        (("--trained_length", 0, "--picture", "a.png"), "trained_length must be at least 1, got 0"),
        (("--picture", "a.csv"), "picture must end in .png, got a.csv"),
        (("--width", 0), "width must be at least 1 and at most 1,000,000, got 0"),
        (("--width", 10**30), "width must be at least 1"),
        (("--beam_size", 3), "unknown option of analyze positions"),
    ],
)
def test_the_command_refuses_in_a_line(analyze, arguments, message):
    code, out, err = analyze("--builtin", "test", "--lines", 2, "--width", 5, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_place_that_cannot_be_written_is_refused_before_measuring(analyze, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_forcing, "by_position", None)
    path = tmp_path / "no" / "t.csv"
    code, out, err = analyze("--builtin", "test", "--lines", 2, "--width", 50, "--out", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"relattn: error: {path}: cannot be written: No such file or directory")
    assert list(tmp_path.iterdir()) == []
