"""Bundles with random weights, for tests that do not need a trained model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from relattn_mt import bundle
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.tokens.tokenizer import Tokenizer
from torch import Tensor

LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]


def save_random_bundle(path: Path, *, src_lang: str = "en", tgt_lang: str = "de", card: str = "") -> Path:
    """Write a bundle of a small model, and return its directory."""
    torch.manual_seed(8)
    tokenizer = Tokenizer.train(LINES * 5, 300, seed=1)
    config = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=1, clip=2)
    search = SearchConfig(beam_size=2, max_length_ratio=1.25, max_length_extra=2)
    weights = arrays_of(Transformer(config, tokenizer.vocab_size))
    bundle.Bundle(path, config, search, src_lang, tgt_lang, weights, tokenizer).save(card)
    return path


def save_changed(source: str, path: Path, change: Callable[[Tensor], Tensor]) -> str:
    """Write a bundle with the parameters of another, each changed, and return its directory."""
    read = bundle.read_bundle(source)
    model = read.make_model()
    for parameter in model.parameters():
        parameter.data = change(parameter.data)
    replace(read, path=path, state=arrays_of(model), pairs=()).save()
    return str(path)


def tensors_of(parts: bundle.Bundle) -> dict[str, Tensor]:
    """Return the weights of a bundle as tensors."""
    return {name: torch.tensor(weight) for name, weight in parts.state.items()}
