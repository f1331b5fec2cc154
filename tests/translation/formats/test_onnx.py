"""A model exported as ONNX graphs says what the bundle says, at lengths its tracing never saw."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from examples.translate_onnx import Model
from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.config import ModelConfig, Recipe, SearchConfig, as_dict
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.formats import onnx as module
from relattn.translation.formats.onnx import PAST, SRC_LEN, export
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.model.transformer import Transformer

FILES = {"encoder.onnx", "decoder.onnx", "config.json", "tokenizer.model", "README.md"}
LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
SEARCH = SearchConfig(beam_size=1, length_penalty="none", max_length_ratio=0.0, max_length_extra=4 * PAST + 1)
KINDS = {name: {"positions": name} for name in SCHEMES if name not in ("lstm", "cnn")} | {
    "zero": {"beyond": "zero"},
    "values": {"relative_tables": "values"},
    "each head's": {"tables_per_head": True, "clip_right": 0, "norm": "post"},
}
QUIET = pytest.mark.filterwarnings("ignore:positions. none:UserWarning")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES * 5, 300, seed=1)


@pytest.fixture(scope="module")
def make(tmp_path_factory, tokenizer):
    """make(options): the parts of a bundle with random weights, none of them small."""

    def make(options: dict) -> bundle.Bundle:
        config = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=2, **options)
        torch.manual_seed(1)
        model = Transformer(config, tokenizer.vocab_size)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn(parameter.shape)
        path = tmp_path_factory.mktemp("made") / "bundle"
        recipe = Recipe(model=config, search=SEARCH)
        bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="# A model\n")
        return bundle.read_bundle(path)

    return make


@pytest.fixture(scope="module")
def exported(tmp_path_factory, make) -> tuple[bundle.Bundle, Path]:
    """A model with relative positions, and where it is exported."""
    parts, out = make({"clip": 3}), tmp_path_factory.mktemp("exported") / "out"
    export(parts, out, sample=LINES)
    return parts, out


def lines_of(words: list[int]) -> list[str]:
    draw = random.Random(1)
    vocabulary = " ".join(LINES).split()
    return [" ".join(draw.choice(vocabulary) for _ in range(count)) for count in words]


@QUIET
@pytest.mark.whole
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
def test_an_export_says_what_the_bundle_says(tmp_path, make, options):
    if options.get("positions", "relative") in ("relative", "relative+sinusoidal"):
        options = {"clip": 3, **options}
    parts = make(options)
    sample = lines_of([1, 2, 9, 24, 1])
    report = export(parts, tmp_path / "out", sample=["", *sample])
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    parity = report.parities["float32"]
    assert max(len(parts.tokenizer.encode(line)) for line in sample) > 4 * SRC_LEN
    assert (parity.lines, parity.tokens) == (5, 5 * (4 * PAST + 1))
    assert parity.worst <= 1e-4
    model, ours = Model(tmp_path / "out"), parts.translator()
    for line, (best,) in zip(sample, ours.n_best(sample), strict=True):
        assert model.search(ours.tokenizer.encode(line)) == best.tokens
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card == f"# A model\n\n## Export\n\n{report}\n"


@pytest.mark.whole
def test_graphs_take_any_sizes(exported):
    parts, out = exported
    encoder, decoder = (onnxruntime.InferenceSession(str(out / f"{name}.onnx")) for name in ("encoder", "decoder"))
    assert [(x.name, x.shape) for x in encoder.get_inputs()] == [
        ("src", ["rows", "src_len"]),
        ("src_lengths", ["rows"]),
    ]
    assert [(x.name, x.shape) for x in decoder.get_inputs()] == [
        ("tokens", ["rows", 1]),
        ("src_lengths", ["rows"]),
        ("source_keys", [2, "rows", 3, "src_len", 4]),
        ("source_values", [2, "rows", 3, "src_len", 4]),
        ("keys", [2, "rows", 3, "past", 4]),
        ("values", [2, "rows", 3, "past", 4]),
    ]
    assert [x.name for x in decoder.get_outputs()] == ["log_probs", "new_keys", "new_values"]
    model = parts.translator().model
    torch.manual_seed(2)
    for rows, src_len, tgt_len in ((1, 1, 1), (1, 30, 2), (5, 2, 40)):
        src, tgt = torch.randint(4, 100, (rows, src_len)), torch.randint(4, 100, (rows, tgt_len))
        lengths = torch.randint(1, src_len + 1, (rows,))
        lengths[0] = src_len
        wanted = model(src, lengths, tgt).log_softmax(-1).detach().numpy()
        source = dict(zip(("source_keys", "source_values"), encoder.run(None, {
            "src": src.numpy(), "src_lengths": lengths.numpy()}), strict=True))  # fmt: skip
        keys = values = np.zeros((2, rows, 3, 0, 4), dtype=np.float32)
        for position in range(tgt_len):
            given = {"tokens": tgt[:, position : position + 1].numpy(), "src_lengths": lengths.numpy(), **source}
            found, keys, values = decoder.run(None, {**given, "keys": keys, "values": values})
            np.testing.assert_allclose(found, wanted[:, position], rtol=0, atol=1e-4)


@pytest.mark.whole
def test_the_example_needs_neither_torch_nor_relattn(exported):
    parts, out = exported
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'relattn'))); sys.argv = sys.argv[1:]"
    code = f"{blocked}; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    script = Path(__file__).parents[3] / "examples" / "translate_onnx.py"
    lines = [LINES[0], "", *lines_of([3])]
    run = subprocess.run(
        [sys.executable, "-c", code, str(script), str(out)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == parts.translator().translate(lines)


@pytest.mark.whole
def test_the_example_keeps_to_the_longest_sequence(exported):
    parts, out = exported
    model, pieces = Model(out), parts.tokenizer.encode(LINES[0])
    assert len(model.search(pieces)) == 4 * PAST
    model.config["max_length"] = 7
    assert len(model.search(pieces)) == 6


@pytest.mark.whole
def test_the_example_writes_text_alone(exported, monkeypatch):
    parts, out = exported
    model = Model(out)
    log_probs = np.full((1, parts.tokenizer.vocab_size), -9.0, dtype=np.float32)
    log_probs[0, [0, 1, 40]] = -1.0, -2.0, -3.0  # padding, begin, a piece

    class Deciding:
        def run(self, names, given):
            return log_probs.copy(), given["keys"], given["values"]

    monkeypatch.setattr(model, "decoder", Deciding())
    assert set(model.search([5, 6])) == {40}


def test_what_is_not_exported(tmp_path, make):
    for name in ("lstm", "cnn"):
        parts = make({"positions": name})
        with pytest.raises(InputError, match=f"^{parts.path}: .* {name} positions"):
            export(parts, tmp_path / "out", sample=LINES)
    parts = make({})
    with pytest.raises(InputError, match="at least one line"):
        export(parts, tmp_path / "out", sample=[" "])
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"out: not replaced, .* a model for ONNX: thesis.txt$"):
        export(parts, tmp_path / "out", sample=LINES)


def test_an_export_that_disagrees_with_the_bundle_is_not_made(tmp_path, make, monkeypatch):
    parts = make({})

    def wrong(path, shape, src, tgt):
        return [[-1.0] * (len(ids) + 1) for ids in tgt]

    monkeypatch.setattr(module, "_trace", lambda model, out: None)
    monkeypatch.setattr(module, "_log_probs", wrong)
    with pytest.raises(InputError, match=f"^{tmp_path / 'out'}: not exported: log-probabilities must differ"):
        export(parts, tmp_path / "out", sample=LINES)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_to_the_home_directory(tmp_path, make):
    """onnxruntime keeps a device identifier and a database there by default."""
    parts = make({})
    for lines in ("2", "0"):  # an export, and one that is refused
        code = (
            "import sys; from pathlib import Path; from relattn.translation.bundle import read_bundle\n"
            "from relattn.translation.errors import InputError; from relattn.translation.formats.onnx import export\n"
            "try: export(read_bundle(sys.argv[1]), Path(sys.argv[2]), sample=['one apple'] * int(sys.argv[3]))\n"
            "except InputError: pass\n"
        )
        home = tmp_path / f"home {lines}"
        home.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "ORT_"))}
        command = [sys.executable, "-c", code, str(parts.path), str(tmp_path / f"out {lines}"), lines]
        subprocess.run(command, env=environment | {"HOME": str(home)}, check=True)
        assert not [path for path in home.rglob("*") if path.is_file()]
    assert (tmp_path / "out 2").exists()


def test_without_the_packages(tmp_path, make, monkeypatch):
    parts = make({})
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r'^onnxscript cannot be imported: pip install "relattn\[export\]": '):
        export(parts, tmp_path / "out", sample=LINES)
    assert not (tmp_path / "out").exists()


@pytest.mark.whole
def test_the_command_line(tmp_path, exported, capsys):
    parts, out = exported
    arguments = ["export", "onnx", str(parts.path), "--out", str(tmp_path / "out"), "--check_count", "3"]
    assert cli.main([*arguments, "--quantization", "int8"]) == 2
    assert "onnx supports float32 only, got int8" in capsys.readouterr().err
    about = json.loads((out / "config.json").read_text())
    assert about.pop("search") == as_dict(SEARCH)
    assert about == {
        **{"src_lang": "en", "tgt_lang": "de", "pad": 0, "bos": 1, "eos": 2},
        **{"layers": 2, "heads": 3, "head_dim": 4, "max_length": None},
    }


@pytest.mark.whole
def test_the_command_line_exports(tmp_path, exported, capsys):
    parts, out = exported
    assert cli.main(["export", "onnx", str(parts.path), "--out", str(tmp_path / "out"), "--check_count", "3"]) == 0
    assert "in 3 lines" in capsys.readouterr().out
    assert (tmp_path / "out" / "config.json").read_bytes() == (out / "config.json").read_bytes()
