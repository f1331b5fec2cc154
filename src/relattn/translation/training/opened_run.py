"""A run that is open: its data, its model and the checkpoint that it continues from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from relattn.translation import bundle
from relattn.translation.config import Recipe
from relattn.translation.data.encode import TranslationData, load_data, open_data
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.initial import read_initial_bundle
from relattn.translation.training.run_directory import newest_checkpoint


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


def open_run(recipe: Recipe, *, resume: bool, text: Literal["compared", "read", "unread"]) -> Run:
    """Open a run. If it has no data yet, they are made. If it has a checkpoint, the initial bundle is not read.

    Args:
        recipe: Recipe of the run.
        resume: Continue from the newest intact checkpoint, if there is one.
        text: What happens to the text: it is compared with the text that the run started with, and damaged
            checkpoints are logged ("compared"); validation text is read ("read"); or nothing is ("unread").

    Raises:
        InputError: The recipe, its files or its directory cannot be used.
    """
    directory, source = Path(recipe.out), recipe.train.init_from
    checkpoint = newest_checkpoint(directory, warn=text == "compared") if resume else None
    initial = None if checkpoint else read_initial_bundle(recipe)
    tokenizer = None if initial is None else initial.tokenizer
    data = open_data(recipe) if text == "unread" else load_data(recipe, tokenizer=tokenizer, check=text == "compared")
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
    if initial is not None:
        bundle.load_weights(model, initial.state, source=source)
    return Run(recipe, directory, data, model, checkpoint)
