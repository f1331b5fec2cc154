"""Recipes known by name, against the numbers in the paper and the number of weights counted by hand."""

from __future__ import annotations

import pytest
import torch
import yaml

from relattn.translation.commands import main as cli
from relattn.translation.config import as_dict
from relattn.translation.config.presets import PRESETS
from relattn.translation.config.yaml import recipe_flags
from relattn.translation.model.transformer import Transformer

BOTH = {  # section 4.1 of the paper, and Vaswani et al. (2017) where it refers to them
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "model.attention_dropout": 0.1,
    "model.relative_tables": "both",
    "model.beyond": "clip",
    "model.clip_right": None,
    "data.vocab_size": 32_768,
    "data.max_tokens": 4096,
    "train.accumulate": 8,
    "train.label_smoothing": 0.1,
    "search.beam_size": 4,
    "search.length_penalty": "gnmt",
    "search.alpha": 0.6,
}
SCHEDULE = {"train.warmup_steps": 4000, "train.learning_rate_factor": 1.0}
BASE = {"model.dim": 512, "model.heads": 8, "model.feed_forward_dim": 1024, "model.dropout": 0.1, "model.clip": 16}
BASE |= {"model.tables_per_head": True, "train.steps": 100_000, "train.average": 1, "model.norm": "post"}
BIG = {"model.dim": 1024, "model.heads": 16, "model.feed_forward_dim": 4096, "model.clip": 8, "model.norm": "post"}
BIG |= {"model.tables_per_head": False, "train.steps": 300_000, "train.average": 20, "train.keep": 20}
T2T = BASE | {"model.feed_forward_dim": 2048, "model.clip": 20, "model.tables_per_head": False, "model.norm": "pre"}
T2T |= {
    "train.steps": 250_000,
    "train.warmup_steps": 8000,
    "train.learning_rate_factor": 2.0,
    "model.activation_dropout": 0.1,
}
GERMAN, FRENCH = {"data.src_lang": "en", "data.tgt_lang": "de"}, {"data.src_lang": "en", "data.tgt_lang": "fr"}
CELLS = {
    "wmt14-en-de-base": BOTH | SCHEDULE | BASE | GERMAN,
    "wmt14-en-de-big": BOTH | SCHEDULE | BIG | GERMAN | {"model.dropout": 0.3},
    "wmt14-en-fr-base": BOTH | SCHEDULE | BASE | FRENCH,
    "wmt14-en-fr-big": BOTH | SCHEDULE | BIG | FRENCH | {"model.dropout": 0.1},
    "t2t-relative-base": BOTH | T2T | GERMAN,
}


def flat(recipe: dict, prefix: str = "") -> dict:
    leaves = {}
    for name, value in recipe.items():
        leaves |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves


@pytest.mark.parametrize("name", CELLS)
def test_settings_of_the_paper(name):
    assert list(PRESETS) == list(CELLS)
    actual = flat(as_dict(PRESETS[name]))
    assert {key: actual[key] for key in CELLS[name]} == CELLS[name]


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
@pytest.mark.parametrize("name", PRESETS)
def test_number_of_weights(name, positions):
    """The model at full size, on the meta device, against a count by hand."""
    model, vocab = PRESETS[name].model, PRESETS[name].data.vocab_size
    if positions == "sinusoidal":
        model = model.with_positions("sinusoidal")
    with torch.device("meta"):
        made = Transformer(model, vocab)
    d, f, layers = model.dim, model.feed_forward_dim, 6
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    tables = 0
    if model.positions == "relative":
        tables = 2 * (2 * model.clip + 1) * (d // model.heads) * (model.heads if model.tables_per_head else 1)
    ends = 2 * norm if model.norm == "pre" else 0
    counted = vocab * d + layers * (encoder + decoder + 2 * tables) + ends
    assert sum(parameter.numel() for parameter in made.parameters()) == counted


def test_a_recipe_can_be_printed_and_trained_by_name(tmp_path, capsys, monkeypatch):
    assert cli.main(["recipe", "wmt14-en-fr-big"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == as_dict(PRESETS["wmt14-en-fr-big"])
    path = tmp_path / "mine.yaml"
    path.write_text(printed, encoding="utf-8")
    assert recipe_flags("wmt14-en-fr-big") == recipe_flags(str(path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "wmt14-en-fr-big", "--out", "run"]) == 2
    assert capsys.readouterr().err == "relattn: error: data/wmt14-en-fr/newstest2013.en.gz: no such file\n"
    (tmp_path / "wmt14-en-fr-big").write_text("model: {clipp: 3}", encoding="utf-8")
    assert cli.main(["train", "wmt14-en-fr-big"]) == 2  # a file takes precedence over a name
    assert "unknown setting 'model.clipp'; did you mean model.clip?" in capsys.readouterr().err
    assert cli.main(["recipe", "wmt14"]) == 2
    assert "unknown recipe 'wmt14'" in capsys.readouterr().err


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CELLS)
def test_a_recipe_trains_on_another_corpus_at_another_size(name, text, tmp_path, capsys):
    """WMT14 without the download: only the data and the size differ."""
    changed = {**text, "vocab_size": 300, "max_tokens": 128}
    flags = [f"--data.{key}={value}" for key, value in changed.items()]
    flags += ["--model.dim=16", "--model.heads=2", "--model.feed_forward_dim=16", "--model.encoder_layers=1"]
    flags += ["--model.decoder_layers=1", "--train.steps=2", "--train.threads=1", f"--out={tmp_path / 'run'}"]
    assert cli.main(["train", name, *flags]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'bundle'}\n"
