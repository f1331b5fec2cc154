"""Recipes known by name, compared with the numbers in the paper."""

import json
from pathlib import Path

import pytest
import yaml
from relattn_mt.config import as_dict
from relattn_mt.config.presets import PRESETS
from relattn_mt.config.yaml import recipe_flags

from testing.commands import assert_refused

COMMON = {  # section 4.1 of the paper, and Vaswani et al. (2017) where it refers to them
    "model": {"encoder_layers": 6, "decoder_layers": 6, "attention_dropout": 0.1, "relative_tables": "both"}
    | {"beyond": "clip", "clip_right": None, "norm": "post", "activation_dropout": 0.0},
    "data": {"src_lang": "en", "tgt_lang": "de", "vocab_size": 32_768, "max_tokens": 4096},
    "train": {"accumulate": 8, "label_smoothing": 0.1, "warmup_steps": 4000, "learning_rate_factor": 1.0},
    "search": {"beam_size": 4, "length_penalty": "gnmt", "alpha": 0.6},
}
BASE = {
    "model": {"dim": 512, "heads": 8, "feed_forward_dim": 1024, "dropout": 0.1, "clip": 16, "tables_per_head": True},
    "train": {"steps": 100_000, "average": 1},
}
BIG = {
    "model": {"dim": 1024, "heads": 16, "feed_forward_dim": 4096, "dropout": 0.3, "clip": 8, "tables_per_head": False},
    "train": {"steps": 300_000, "average": 20, "keep": 20},
}
FRENCH = {"data": {"tgt_lang": "fr"}}
T2T = {
    "model": {"feed_forward_dim": 2048, "clip": 20, "tables_per_head": False, "norm": "pre", "activation_dropout": 0.1},
    "train": {"steps": 250_000, "warmup_steps": 8000, "learning_rate_factor": 2.0},
}
EXPECTED = {  # the last value of a setting counts
    "wmt14-en-de-base": (COMMON, BASE),
    "wmt14-en-de-big": (COMMON, BIG),
    "wmt14-en-fr-base": (COMMON, BASE, FRENCH),
    "wmt14-en-fr-big": (COMMON, BIG, FRENCH, {"model": {"dropout": 0.1}}),
    "t2t-relative-base": (COMMON, BASE, T2T),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_settings_of_the_paper(name):
    assert list(PRESETS) == list(EXPECTED)
    actual = as_dict(PRESETS[name])
    for group in COMMON:
        expected = {key: value for part in EXPECTED[name] for key, value in part.get(group, {}).items()}
        assert {key: actual[group][key] for key in expected} == expected


def test_recipe_of_a_model_by_name(relattn):
    """It names the model, as `train.init_from` accepts it."""
    assert yaml.safe_load(relattn("recipe", "everyday-en-de").out)["train"]["init_from"] == "everyday-en-de"


def test_preset_can_be_printed_and_trained_by_name(relattn, tmp_path, monkeypatch):
    name = "wmt14-en-fr-big"
    printed = relattn("recipe", name).out
    assert yaml.safe_load(printed) == json.loads(json.dumps(as_dict(PRESETS[name])))  # lists for tuples
    (tmp_path / "mine.yaml").write_text(printed, encoding="utf-8")
    assert recipe_flags(name) == recipe_flags(str(tmp_path / "mine.yaml"))
    monkeypatch.chdir(tmp_path)
    Path("wmt14-en-de-big").write_text("model: {clipp: 3}", encoding="utf-8")
    for command, fact in (
        (["train", name, "--out", "run"], "data/wmt14-en-fr/newstest2013.en.gz: no such file"),
        (["train", "wmt14-en-de-big"], "'model.clipp'"),  # a file takes precedence over a name
        (["recipe", "wmt14"], "unknown recipe 'wmt14'"),
    ):
        assert_refused(relattn(*command), fact)
