"""A small model for the tests of pages, and a browser."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, sync_playwright
from relattn_mt import bundle, load
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.data.batching import collate
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.translator import Translator

from tests.support.pages import BROWSER

ITEMS = [  # number and noun in English and German
    ("one", "ein", "apple", "Apfel"),
    ("two", "zwei", "pears", "Birnen"),
    ("three", "drei", "apples", "Äpfel"),
    ("four", "vier", "cherries", "Kirschen"),
]


@pytest.fixture(scope="module")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of a small model that learned a few lines by heart, so that translations are words."""
    torch.manual_seed(1)
    pairs = [(f"{a} {x} and {b} {y}", f"{c} {u} und {d} {v}") for (a, c, x, u), (b, d, y, v) in product(ITEMS, ITEMS)]
    pairs += [(f"{a} {x}{end}", f"{c} {u}{end}") for a, c, x, u in ITEMS for end in ("", ".")]
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair] * 5, 330, seed=1)
    config = ModelConfig(dim=24, heads=3, feed_forward_dim=40, encoder_layers=1, decoder_layers=1, clip=2, dropout=0.0)
    search = SearchConfig(beam_size=3, max_length_ratio=1.25, max_length_extra=2)
    model = Transformer(config, tokenizer.vocab_size)
    batch = collate(*([tokenizer.encode(line) for line in side] for side in zip(*pairs, strict=True)))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        logits = model(batch.src, batch.src_lengths, batch.tgt_in)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("page") / "bundle"
    card = "---\nwidget:\n- text: three apples and one apple\n---\n\n# A model\n"
    bundle.Bundle(path, model.config, search, "en", "de", arrays_of(model), tokenizer).save(card)
    return path


@pytest.fixture(scope="module")
def translator(small_bundle: Path) -> Translator:
    return load(small_bundle)


@pytest.fixture(scope="module")
def analyzed(small_bundle: Path) -> Translator:
    """Translator that runs on PyTorch."""
    return bundle.read_bundle(small_bundle).torch_translator()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()
