"""Validation: loss, BLEU, and whether the model uses the order of the source.

A model that is stuck without word order (no positions by mistake, or a learning rate too high for the tables) still
learns, slowly and badly, and its loss does not show why. The loss of a model that uses order is much higher if the
source tokens are shuffled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relattn_mt.data.batching import Batch
from relattn_mt.data.encode import ValidationSet
from relattn_mt.data.tokenizer import SpecialTokens
from relattn_mt.evaluation import score
from relattn_mt.training.journal import Validated
from relattn_mt.training.objective import mean_loss
from relattn_mt.training.run import Run
from relattn_mt.translate.engines import engine_of
from relattn_mt.translate.translator import Translator

_LEAST_INCREASE = 0.01  # of the loss, relative, that shuffled sources cause if a model uses order


def validate(run: Run, valid: ValidationSet, device: torch.device) -> Validated:
    """Measure the loss on a validation set, and the BLEU of greedy translations of its first lines."""
    recipe, loss, bleu = run.directory.recipe, mean_loss(run.model, valid.batches, device), None
    pairs = valid.pairs[: recipe.train.valid_bleu_lines]
    if pairs:
        run.model.eval()
        with torch.inference_mode():
            tokenizer, search = run.data.tokenizer.with_languages(*valid.languages), replace(recipe.search, beam_size=1)
            translator = Translator(engine_of(run.model, device), tokenizer, search)
            bleu = score(translator.translate([src for src, _ in pairs]), [tgt for _, tgt in pairs]).bleu
        run.model.train()
    return Validated(valid.name, loss, bleu)


def ignores_order(run: Run, loss: float, device: torch.device) -> str | None:
    """Return a warning if shuffled sources do not have a higher loss than the first validation set, else None."""
    valid = run.data.valid[0]
    special = run.data.tokenizer.with_languages(*valid.languages).special
    changed = mean_loss(run.model, [shuffled(batch, special, seed) for seed, batch in enumerate(valid.batches)], device)
    if changed > loss * (1 + _LEAST_INCREASE):
        return None
    return (
        f"the loss on {valid.name} is {loss:.3f}, and {changed:.3f} with shuffled source tokens: the model does "
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
