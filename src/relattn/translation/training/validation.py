"""Validation: loss, BLEU, and whether the model uses the order of the source.

A model that is stuck without word order (no positions by mistake, or a learning rate too high for the tables) still
learns, slowly and badly, and its loss does not show why. The loss of a model that uses order is much higher if the
source tokens are shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from relattn.translation.config import SearchConfig
from relattn.translation.data.batching import Batch
from relattn.translation.data.encode import ValidationSet
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.data.tokenizer import SpecialTokens
from relattn.translation.evaluation import score
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.objective import mean_loss
from relattn.translation.translate.engines import engine_of
from relattn.translation.translate.translator import Translator

_LEAST_INCREASE = 0.01  # of the loss, relative, that shuffled sources cause if a model uses order


@dataclass(frozen=True)
class Validated:
    """Results on a validation set.

    Attributes:
        name: Name of the set.
        loss: Nats per target token, without smoothing.
        bleu: BLEU of greedy translations of the first lines. None: not measured.
    """

    name: str
    loss: float
    bleu: float | None


def validate(
    model: Transformer,
    valid: ValidationSet,
    tokenizer: AnyTokenizer,
    search: SearchConfig,
    lines: int,
    device: torch.device,
) -> Validated:
    """Measure the loss on a validation set, and the BLEU of greedy translations of its first `lines` lines."""
    loss, bleu = mean_loss(model, valid.batches, device), None
    pairs = valid.pairs[:lines]
    if pairs:
        model.eval()
        with torch.inference_mode():
            tokenizer = tokenizer.with_languages(*valid.languages)
            translator = Translator(engine_of(model, device), tokenizer, replace(search, beam_size=1))
            bleu = score(translator.translate([src for src, _ in pairs]), [tgt for _, tgt in pairs]).bleu
        model.train()
    return Validated(valid.name, loss, bleu)


def ignores_order(
    model: Transformer, valid: ValidationSet, tokenizer: AnyTokenizer, result: Validated, device: torch.device
) -> str | None:
    """Return a warning if shuffling the source tokens of a validation set does not increase the loss, else None."""
    special = tokenizer.with_languages(*valid.languages).special
    batches = [shuffled(batch, special, seed) for seed, batch in enumerate(valid.batches)]
    loss = mean_loss(model, batches, device)
    if loss > result.loss * (1 + _LEAST_INCREASE):
        return None
    return (
        f"the loss on {result.name} is {result.loss:.3f}, and {loss:.3f} with shuffled source tokens: the model does "
        "not use word order, and may never learn to; check train.warmup_steps and train.learning_rate_factor"
    )


def shuffled(batch: Batch, special: SpecialTokens, seed: int) -> Batch:
    """Return a batch with the tokens of each source in random order, without moving special tokens."""
    random, src = np.random.default_rng(seed), batch.src.clone()
    first, last = len(special.src_begin), len(special.src_end)
    for row, length in zip(src, batch.src_lengths.tolist(), strict=True):
        tokens = row[first : length - last]
        tokens.copy_(tokens[torch.from_numpy(random.permutation(len(tokens)))])
    return replace(batch, src=src)
