"""A run that is open: its data, its model with the weights that it starts from, and the checkpoint to continue from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relattn.translation import bundle, hub
from relattn.translation.config import Recipe, as_dict, differences
from relattn.translation.config.positions import ClippedTables, DotProduct
from relattn.translation.data.encode import TranslationData, load_data
from relattn.translation.errors import require
from relattn.translation.model.transformer import Transformer
from relattn.translation.model.weights import load_weights
from relattn.translation.training.run_directory import newest_checkpoint
from relattn.translation.weights import weight_table


@dataclass(frozen=True)
class Run:
    """A run that is open.

    Attributes:
        recipe: Recipe of the run.
        directory: Directory of the run.
        data: Data of the run.
        model: Model with its initial weights, which is trained in place.
        checkpoint: Content of the checkpoint to continue from, or None.
    """

    recipe: Recipe
    directory: Path
    data: TranslationData
    model: Transformer
    checkpoint: dict[str, Any] | None


def open_run(recipe: Recipe, *, resume: bool, check: bool) -> Run:
    """Open a run. If it has no data yet, they are made. If it has a checkpoint, the initial bundle is not read.

    Args:
        recipe: Recipe of the run.
        resume: Continue from the newest intact checkpoint, if there is one.
        check: Compare the text with the text that the run started with, and log damaged checkpoints; one of several
            processes does.

    Raises:
        InputError: The recipe, its files or its directory cannot be used.
    """
    directory = Path(recipe.out)
    checkpoint = newest_checkpoint(directory, warn=check) if resume else None
    initial = None if checkpoint else read_initial_bundle(recipe)
    tokenizer = None if initial is None else initial.tokenizer
    data = load_data(recipe, tokenizer=tokenizer, check=check)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
    if initial is not None:
        load_weights(model, initial.state, source=initial.path)
    return Run(recipe, directory, data, model, checkpoint)


def read_initial_bundle(recipe: Recipe) -> bundle.Bundle | None:
    """Read the bundle to start from, if the recipe names one, dequantized, with a tokenizer for the recipe's languages.

    The recipe's model may have relative positions that the bundle's model does not have, in addition to the same signal
    that is added to embeddings. Their tables are zero, so that the model computes the same at first.

    Raises:
        InputError: The bundle is missing or damaged, or its model is another one or has no tokens of these languages.
    """
    path, model = recipe.train.init_from, recipe.model
    if not path:
        return None
    initial = bundle.read_bundle(hub.resolve(path)).in_float32()
    tokenizer = initial.tokenizer.with_languages(recipe.data.src_lang, recipe.data.tgt_lang)
    state, expected = initial.state, model
    before, after = initial.model.position_spec, model.position_spec
    if (
        before.signal == after.signal
        and isinstance(before.mixer, DotProduct)
        and isinstance(after.mixer, ClippedTables)
    ):
        expected = model.with_positions(initial.model.positions, max_positions=initial.model.max_positions)
        weights = weight_table(model, tokenizer.vocab_sizes)
        tables = [name for name in weights if name.endswith((".rel_key.weight", ".rel_value.weight"))]
        state = {**state, **{name: np.zeros(weights[name].shape, np.float32) for name in tables}}
    changed = [line for line in differences(as_dict(initial.model), as_dict(expected)) if "dropout" not in line]
    require(not changed, f"{path}: the model must be the recipe's, got {'; '.join(changed)}")
    return replace(initial, model=model, state=state, tokenizer=tokenizer)
