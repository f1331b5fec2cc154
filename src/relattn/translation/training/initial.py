"""The bundle that a training starts from."""

from __future__ import annotations

from dataclasses import replace

import torch

from relattn.translation import bundle, hub
from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig, as_dict, differences
from relattn.translation.config.positions import ClippedTables, DotProduct
from relattn.translation.errors import require
from relattn.translation.model.transformer import SkipInitialization, Transformer


def read_initial_bundle(recipe: Recipe) -> bundle.Bundle | None:
    """Read the bundle to start from, if the recipe names one, dequantized, with a tokenizer for the recipe's languages.

    The recipe's model may have relative positions that the bundle's model does not have, in addition to the same signal
    that is added to embeddings. Their tables are zero, so that the model computes the same at first.

    Raises:
        InputError: the bundle is missing or damaged, or its model is another one or has no tokens of these languages.
    """
    path = recipe.train.init_from
    if not path:
        return None
    initial = bundle.read_bundle(hub.resolve(path)).in_float32()
    tokenizer = initial.tokenizer.with_languages(recipe.data.src_lang, recipe.data.tgt_lang)
    initial = replace(initial, tokenizer=tokenizer)
    expected = recipe.model
    adds_tables = _adds_tables(initial.model, expected)
    if adds_tables:
        expected = expected.with_positions(initial.model.positions, max_positions=initial.model.max_positions)
    changed = [line for line in differences(as_dict(initial.model), as_dict(expected)) if "dropout" not in line]
    require(not changed, f"{path}: the model must be the recipe's, got {'; '.join(changed)}")
    return _with_tables(initial, recipe.model) if adds_tables else initial


def fine_tuning_recipe(path: str) -> Recipe:
    """Return a recipe that continues the training of a bundle, with the files of its text left out.

    The learning rate rises to 1e-4 and falls as step^-0.5, and training stops when the validation loss no longer falls.

    Raises:
        InputError: the bundle is missing or damaged.
    """
    initial = bundle.read_bundle(hub.resolve(path))
    warmup, longest = 200, initial.model.position_spec.max_length
    given = initial.tokenizer.special.per_source + initial.tokenizer.special.per_target
    return Recipe(
        out="runs/tuned",
        model=initial.model,
        data=DataConfig(
            src_lang=initial.src_lang,
            tgt_lang=initial.tgt_lang,
            max_length=min(DataConfig.max_length, (longest or 1 << 20) - given),
        ),
        train=TrainConfig(
            init_from=path,
            steps=4000,
            warmup_steps=warmup,
            learning_rate_factor=round(1e-4 * (initial.model.dim * warmup) ** 0.5, 4),
            valid_every=200,
            checkpoint_every=200,
            keep=5,
            average=1,
            patience=3,
        ),
        search=initial.search,
    )


def _adds_tables(initial: ModelConfig, wanted: ModelConfig) -> bool:
    """Return whether a model has the same signal as the initial one, and relative positions in addition."""
    before, after = initial.position_spec, wanted.position_spec
    has_tables = isinstance(before.mixer, DotProduct) and isinstance(after.mixer, ClippedTables)
    return has_tables and before.signal == after.signal


def _with_tables(initial: bundle.Bundle, model: ModelConfig) -> bundle.Bundle:
    """Return a bundle with tables of zeros for the relative positions of a model."""
    with SkipInitialization(), torch.device("meta"):
        weights = bundle.weights_of(Transformer(model, *initial.tokenizer.vocab_sizes))
    zeros = {
        name: torch.zeros(weight.shape)
        for name, weight in weights.items()
        if name.endswith((".rel_key.weight", ".rel_value.weight"))
    }
    return replace(initial, model=model, state=initial.state | zeros)
