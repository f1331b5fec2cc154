"""A model on validation sets: its loss, its BLEU, and whether it reads the order of its source.

A training that is stuck at what can be said without any order (positions left out by mistake, a rate too high for the
tables) learns all the same, slowly and badly, and nothing in its loss tells. A model that does read order loses much
when the pieces of the sources are shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from relattn.translation.config import Recipe
from relattn.translation.data.batching import Batch
from relattn.translation.data.encode import ValidationSet
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.data.tokenizer import SpecialTokens
from relattn.translation.evaluation import score
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.objective import mean_loss
from relattn.translation.translate.torch_translator import TorchTranslator

UNREAD = 0.01  # the share by which the loss rises at most, of a model that reads no order


@dataclass(frozen=True)
class Validated:
    """A model on a validation set.

    Attributes:
        name: of the set.
        loss: nats a target token, without smoothing.
        bleu: of greedy translations of its first lines; None where not measured.
    """

    name: str
    loss: float
    bleu: float | None


def validate(
    model: Transformer, valid: ValidationSet, tokenizer: AnyTokenizer, recipe: Recipe, device: torch.device
) -> Validated:
    """The loss on a validation set, and BLEU of greedy translations of its first lines, where wanted."""
    loss, bleu = mean_loss(model, valid.batches, device), None
    pairs = valid.pairs[: recipe.train.valid_bleu_lines]
    if pairs:
        model.eval()
        with torch.inference_mode():
            translator = TorchTranslator(model, tokenizer, replace(recipe.search, beam_size=1), device=device)
            bleu = score(translator.translate([src for src, _ in pairs]), [tgt for _, tgt in pairs]).bleu
        model.train()
    return Validated(valid.name, loss, bleu)


def shuffled_loss(model: Transformer, valid: ValidationSet, special: SpecialTokens, device: torch.device) -> float:
    """The loss on a validation set with the pieces of its sources shuffled."""
    return mean_loss(model, [shuffled(batch, special, seed) for seed, batch in enumerate(valid.batches)], device)


def shuffled(batch: Batch, special: SpecialTokens, seed: int) -> Batch:
    """A batch with the pieces of each source in another order, and its special tokens where they were."""
    random, src = np.random.default_rng(seed), batch.src.clone()
    first, last = len(special.src_begin), len(special.src_end)
    for row, length in zip(src, batch.src_lengths.tolist(), strict=True):
        pieces = row[first : length - last]
        pieces.copy_(pieces[torch.from_numpy(random.permutation(len(pieces)))])
    return replace(batch, src=src)


def order_unread(step: int, found: Validated, without: float) -> str | None:
    """What to say of a model that reads no order, by its loss and that of the same text with its sources shuffled."""
    if without > found.loss * (1 + UNREAD):
        return None
    return (
        f"step {step}: the loss on {found.name} is {found.loss:.3f}, and {without:.3f} with the "
        "pieces of its sources shuffled: the model makes nothing of order, and may be stuck there; see "
        "train.warmup_steps, train.learning_rate_factor"
    )
