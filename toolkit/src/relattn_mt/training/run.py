"""A run that is open, the bundle that it may start from, and the bundle that it ends with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from relattn_mt import bundle, hub
from relattn_mt.alignment_head import LEXICON_PAIRS, with_best
from relattn_mt.config import Recipe, as_dict, differences, dump
from relattn_mt.config.positions import ClippedTables, DotProduct
from relattn_mt.data.encode import TranslationData, load_data, open_data
from relattn_mt.evaluation import score
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import load_weights
from relattn_mt.support.errors import require
from relattn_mt.support.types import AnyPath, SentencePair
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer
from relattn_mt.training import checkpoints
from relattn_mt.training.run_directory import CHECKPOINTS, read_recipe
from relattn_mt.weights import require_fit, weight_table


@dataclass(frozen=True)
class Run:
    """A run that is open."""

    recipe: Recipe
    data: TranslationData
    model: Transformer  # with its initial weights; trained in place
    checkpoint: checkpoints.Checkpoint | None  # to continue from


def open_run(recipe: Recipe, *, resume: bool, first: bool) -> Run:
    """Open a run. If it has no data yet, they are made. If it has a checkpoint, the initial bundle is not read.

    The first process compares the text with the text that the run started with, and warns of damaged checkpoints.
    """
    patience = recipe.train.patience
    is_validated = bool(recipe.data.valid_src or recipe.data.valid_list)
    require(
        is_validated or not patience,
        f"train.patience requires validation text, data.valid_src or data.valid_list, got {patience}",
    )
    checkpoint = checkpoints.newest(recipe.directory / CHECKPOINTS, warn=first) if resume else None
    initial = None if checkpoint else read_initial_bundle(recipe)
    data = load_data(recipe, tokenizer=None if initial is None else initial.tokenizer, check=first)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
    if initial is not None:
        load_weights(model, initial.state, source=initial.path)
    return Run(recipe, data, model, checkpoint)


def read_initial_bundle(recipe: Recipe) -> bundle.Bundle | None:
    """Read the bundle to start from, if the recipe names one, dequantized, with a tokenizer for the recipe's languages.

    The recipe's model may have relative positions that the bundle's model does not have, in addition to the same signal
    that is added to embeddings. Their tables are zero, so that the model computes the same at first.

    Raises:
        InputError: The bundle is missing or damaged, or its model is another one or has no tokens of these languages.
    """
    path = recipe.train.init_from
    model = recipe.model
    if not path:
        return None
    initial = bundle.read_bundle(hub.resolve(path)).in_float32()
    tokenizer = initial.tokenizer.with_languages(recipe.data.src_lang, recipe.data.tgt_lang)
    state = initial.state
    expected = model
    before = initial.model.position_spec
    after = model.position_spec
    gets_tables = isinstance(before.mixer, DotProduct) and isinstance(after.mixer, ClippedTables)
    if gets_tables and before.signal == after.signal:
        expected = model.with_positions(initial.model.positions, max_positions=initial.model.max_positions)
        weights = weight_table(model, tokenizer.vocab_sizes)
        tables = [name for name in weights if name.endswith((".rel_key.weight", ".rel_value.weight"))]
        state = {**state, **{name: np.zeros(weights[name].shape, np.float32) for name in tables}}
    changed = differences(as_dict(initial.model), as_dict(expected))
    changed = [line for line in changed if "dropout" not in line and not line.startswith("alignment_")]
    require(not changed, f"{path}: the model must be the recipe's, got {'; '.join(changed)}")
    return replace(initial, model=model, state=state, tokenizer=tokenizer)


def write_bundle(recipe: Recipe, data: TranslationData, last: int, path: Path) -> None:
    """Average the last checkpoints of a run into a bundle, and score it on the validation sets of its data."""
    config = recipe.data
    paths = checkpoints.list_checkpoints(recipe.directory / CHECKPOINTS)[-last:]
    mean = checkpoints.average(checkpoints.load(checkpoint)["model"] for checkpoint in paths)
    state = {name: tensor.numpy() for name, tensor in mean.items()}
    tokenizer = data.tokenizer.with_languages(config.src_lang, config.tgt_lang)
    require_fit(recipe.model, tokenizer.vocab_sizes, state, f"the mean of {', '.join(path.name for path in paths)}")
    pairs = data.languages if config.given_tokens else ()
    languages = config.src_lang, config.tgt_lang
    trained = bundle.Bundle(path, recipe.model, recipe.search, *languages, state, tokenizer, pairs)
    note = recipe.model.alignment_note
    if recipe.model.alignment_layer == "assumed":
        trained, note = with_best(trained, list(_texts(data, tokenizer, config.given_tokens)))
    files = f"`{config.train_list}`" if config.train_list else f"`{config.train_src}` and `{config.train_tgt}`"
    steps = ", ".join(str(checkpoints.step_of(path)) for path in paths)
    card = (
        f"# {config.src_lang} → {config.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, trained with relattn on {files}; "
        f"the mean of the weights after steps {steps}.\n\n"
        "    relattn-mt translate PATH < in.txt > out.txt\n\n"
        f"{note[0].upper()}{note[1:]}.\n\n"
        f"## Recipe\n\n```yaml\n{dump(recipe)}```\n"
    )
    if data.valid:
        card += "\n## Scores\n"
        translator = trained.translator()
    for valid in data.valid:
        sources, references = zip(*valid.pairs, strict=True)
        scores = score(translator.with_languages(*valid.languages).translate(sources), references)
        name = f" of {valid.name}" if len(data.valid) > 1 else ""
        card += f"\nOn the {scores.sentences} validation sentences{name}:\n\n{scores}\n"
    trained.save(card)


def _texts(data: TranslationData, tokenizer: AnyTokenizer, given: int) -> Iterator[SentencePair]:
    """Yield training pairs of the first direction: enough for a lexicon, from all parts of the text."""
    pairs = data.train.pairs
    begin = [*tokenizer.special.src_begin][:given]
    for row in range(0, len(pairs.src), max(1, len(pairs.src) // LEXICON_PAIRS)):
        src, tgt = (ids.tolist() for ids in pairs.row(row))
        if src[:given] == begin:
            yield tokenizer.decode_source(src[given:]), tokenizer.decode(tgt)


def average_run(run: AnyPath, last: int, path: AnyPath, *, overwrite: bool = False) -> None:
    """Average the last checkpoints of a run into a bundle at `path`.

    Raises:
        InputError: The directory contains no run, or fewer checkpoints.
    """
    bundle.require_writable(path, overwrite)
    recipe = replace(read_recipe(Path(run)), out=str(run))
    count = len(checkpoints.list_checkpoints(recipe.directory / CHECKPOINTS))
    require(1 <= last <= count, f"last must be in [1, {count}], the checkpoints of {run}, got {last}")
    write_bundle(recipe, open_data(recipe), last, Path(path))
