"""`relattn.translation.load`: bundles, exports for CTranslate2 and names on the hub; and what loading costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import relattn.translation
from relattn.translation import bundle
from relattn.translation.config import DataConfig, ModelConfig, Recipe, SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.formats.ctranslate2.write import export
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.types import SamplingOptions
from relattn.translation.translate.options import TranslateOptions
from tests.translation.loopback import Hub, Repository

LINES = ["one apple and two pears", "", "zwei Birnen"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights. Read it, do not write to it."""
    path = tmp_path_factory.mktemp("load") / "bundle"
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(LINES * 5, 300, seed=1)
    recipe = Recipe(
        model=ModelConfig(dim=12, heads=3, feed_forward_dim=20, clip=3, tables_per_head=False),
        data=DataConfig(src_lang="en", tgt_lang="de"),
        search=SearchConfig(beam_size=2, max_length_ratio=1.25, max_length_extra=2),
    )
    model = Transformer(recipe.model, tokenizer.vocab_size)
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="")
    return path


def test_a_bundle_an_export_and_a_name_on_the_hub_are_loaded(server: Hub, saved, tmp_path):
    server.repositories["org/name"] = Repository()
    server.repositories["org/name"].commit({path.name: path.read_bytes() for path in saved.iterdir()})
    export(bundle.read_bundle(saved), tmp_path / "export", quantization="float32", sample=LINES[:1])
    local, hub, exported = (relattn.translation.load(path) for path in (saved, "org/name", tmp_path / "export"))
    expected = local.n_best(LINES, TranslateOptions(n_best=2))
    assert hub.n_best(LINES, TranslateOptions(n_best=2)) == expected
    pairs = [(line, found[0].text) for line, found in zip(LINES, expected, strict=True)]
    scores = [[log_prob for line in each.score(pairs) for _, log_prob in line] for each in (local, exported)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert (exported.src_lang, exported.tgt_lang) == (local.src_lang, local.tgt_lang)
    with pytest.raises(InputError):
        exported.translate(LINES, TranslateOptions(sampling=SamplingOptions()))
    with pytest.raises(InputError, match="ensemble"):
        relattn.translation.load(tmp_path / "export", saved)
    with pytest.raises(InputError, match="precision"):
        relattn.translation.load(tmp_path / "export", precision="bf16")


def test_loading_draws_no_random_numbers(saved):
    before = torch.get_rng_state()
    relattn.translation.load(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_translating_imports_no_compiler(saved):
    """They take over two seconds to import. Weights that are drawn on the device "meta" import them, for example."""
    script = (
        f"import sys, relattn.translation; relattn.translation.load({str(saved)!r}).translate(['one apple']); "
        "print({'sympy', 'torch._dynamo', 'triton'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
