"""The paper's recipes, compared with its numbers."""

from pathlib import Path

import pytest
from relattn_mt.config import Recipe, as_dict
from relattn_mt.config.settings import to_config
from relattn_mt.config.yaml import read_yaml

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
T2T = {
    "model": {"feed_forward_dim": 2048, "clip": 20, "tables_per_head": False, "norm": "pre", "activation_dropout": 0.1},
    "train": {"steps": 250_000, "warmup_steps": 8000, "learning_rate_factor": 2.0},
}
EXPECTED = {  # the last value of a setting counts
    "wmt14-en-de-base": (COMMON, BASE),
    "wmt14-en-de-big": (COMMON, BIG),
    "t2t-relative-base": (COMMON, BASE, T2T),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_settings_of_the_paper(name):
    path = Path(__file__).parents[2] / f"recipes/{name}.yaml"
    actual = as_dict(to_config(Recipe, read_yaml(path), path))
    for group in COMMON:
        expected = {key: value for part in EXPECTED[name] for key, value in part.get(group, {}).items()}
        assert {key: actual[group][key] for key in expected} == expected
