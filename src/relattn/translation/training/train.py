"""A run from a recipe to a bundle, in a directory of its own: `relattn train`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from relattn.translation import bundle
from relattn.translation.allocation import freed_memory_kept
from relattn.translation.config import Recipe, dump
from relattn.translation.data.encode import TranslationData, open_data
from relattn.translation.errors import one_line, require
from relattn.translation.evaluation import score
from relattn.translation.model.transformer import Transformer
from relattn.translation.model.weights import arrays_of, load_weights
from relattn.translation.training import checkpoints
from relattn.translation.training.distributed import (
    fabric_of,
    is_first_process,
    joined,
    launch,
    must_launch,
    restarts,
    stop_with_agent,
)
from relattn.translation.training.loop import fit
from relattn.translation.training.opened_run import Run, open_run
from relattn.translation.training.run_directory import (
    BUNDLE,
    CHECKPOINTS,
    RECIPE,
    claim,
    read_recipe,
    require_space,
)
from relattn.translation.training.stop import Stop
from relattn.translation.translate.engines import engine_of
from relattn.translation.translate.translator import Translator

_log = logging.getLogger(__name__)


def train(
    recipe: Recipe, *, resume: bool = False, show: bool = True, again: str = "the same command with --resume"
) -> Path:
    """Train a model by a recipe, and return the directory of its bundle.

    With several devices, this starts one process per device, unless torchrun, SLURM or MPI started this process. Then
    all processes call this function, and the first one prepares the data and writes all files. Processes that torchrun
    restarts continue the run.

    Args:
        recipe: Recipe of the run.
        resume: Continue from the newest checkpoint in the recipe's directory.
        show: Show a progress bar if standard error is a terminal.
        again: Command that continues the run, for messages.

    Raises:
        InputError: The recipe, its files or its directory cannot be used.
        Diverged: A loss or weight is not finite.
        LostProcess: A process of the run was killed or failed.
        Interrupted: A signal stopped the run. Resumed, it continues as if it had never stopped.
    """
    out = Path(recipe.out)
    with _quiet_lightning(), _threads_kept(), freed_memory_kept():
        fabric = fabric_of(recipe.train, out)
        if must_launch(fabric):
            launch(recipe, resume=resume)
            return out / BUNDLE
        first, resume = is_first_process(), resume or (restarts() > 0 and (out / RECIPE).exists())
        with Stop() as stop:
            stop_with_agent()
            command = f"{again} continues it" if resume else "the same command starts again"
            stop.switch("raise" if first else "kill", f"stopped before the first step; {command}")
            with claim(recipe, resume=resume, first=first):
                # A run that is not continued has no checkpoint, so the other processes start as the first one does.
                run = open_run(recipe, resume=resume or not first, check=first)
                if first:
                    require_space(out, run.model, recipe.train.keep)
                    _log_run(run)
                with joined(fabric, recipe.train, stop):
                    steps = fit(fabric, run, stop, show=show and first)
                if first:
                    stop.switch("raise", f"stopped after step {steps}; {again} continues from there")
                    write_bundle(recipe, run.data, recipe.train.average, out / BUNDLE)
    return out / BUNDLE


def _log_run(run: Run) -> None:
    """Log what is trained, on what and how."""
    model, text, train = run.recipe.model, run.data.train, run.recipe.train
    weights, threads = sum(map(torch.numel, run.model.parameters())), train.threads or torch.get_num_threads()
    layers = f"{model.encoder_layers} and {model.decoder_layers} layers"
    if restarts():
        _log.warning("a process was lost; restart %d continues from the newest checkpoint", restarts())
    if dropped := ", ".join(f"{count:,} ({reason})" for reason, count in run.data.dropped.items() if count):
        _log.info("training pairs dropped: %s", dropped)
    _log.info(f"model: {model.positions} positions, dim {model.dim}, {layers}, {weights:,} weights")
    _log.info(f"text: {len(text.pairs.src):,} pairs of {one_line(', '.join(text.names), 200)}")
    _log.info(f"run: {train.steps:,} steps, {train.precision}, threads per process: {threads}")


def write_bundle(recipe: Recipe, data: TranslationData, last: int, path: Path) -> None:
    """Average the last checkpoints of a run into a bundle and score it on the validation sets.

    Args:
        recipe: Recipe of the run.
        data: Data of the run.
        last: Number of checkpoints.
        path: Directory of the bundle.
    """
    config, languages = recipe.data, (recipe.data.src_lang, recipe.data.tgt_lang)
    paths = checkpoints.list_checkpoints(Path(recipe.out) / CHECKPOINTS)[-last:]
    tokenizer = data.tokenizer.with_languages(*languages)
    pairs = data.languages if config.given_tokens else ()
    model = Transformer(recipe.model, *tokenizer.vocab_sizes)
    mean = checkpoints.average(checkpoints.load(checkpoint)["model"] for checkpoint in paths)
    source = f"the mean of {', '.join(path.name for path in paths)}"
    load_weights(model, {name: tensor.numpy() for name, tensor in mean.items()}, source=source)
    files = f"`{config.train_list}`" if config.train_list else f"`{config.train_src}` and `{config.train_tgt}`"
    card = (
        f"# {config.src_lang} → {config.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, trained with relattn on {files}; "
        f"the mean of the weights after steps {', '.join(str(checkpoints.step_of(path)) for path in paths)}.\n\n"
        "    relattn translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\n```yaml\n" + dump(recipe) + "```\n"
    )
    if data.valid:
        card += "\n## Scores\n"
        translator = Translator(engine_of(model), tokenizer, recipe.search, languages=languages, pairs=pairs)
    for each in data.valid:
        sources, references = [src for src, _ in each.pairs], [tgt for _, tgt in each.pairs]
        scores = score(translator.with_languages(*each.languages).translate(sources), references)
        name = f" of {each.name}" if len(data.valid) > 1 else ""
        card += f"\nOn the {scores.sentences} validation sentences{name}:\n\n{scores}\n"
    own, weights = recipe.model, arrays_of(model)
    bundle.save(
        path, own, weights, languages=languages, search=recipe.search, tokenizer=tokenizer, card=card, pairs=pairs
    )


def average_run(run: str | Path, last: int, path: str | Path, *, overwrite: bool = False) -> None:
    """Average the last checkpoints of a run into a bundle.

    Args:
        run: Directory of the run.
        last: Number of checkpoints.
        path: Directory of the bundle.
        overwrite: Replace a bundle that exists at `path`.

    Raises:
        InputError: The directory contains no run, or fewer checkpoints.
    """
    bundle.require_writable(path, overwrite)
    run = Path(run)
    recipe = replace(read_recipe(run), out=str(run))
    count = len(checkpoints.list_checkpoints(run / CHECKPOINTS))
    require(1 <= last <= count, f"last must be in [1, {count}], the checkpoints of {run}, got {last}")
    write_bundle(recipe, open_data(recipe), last, Path(path))


@contextmanager
def _threads_kept() -> Iterator[None]:
    """Restore the number of threads at the end."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide Lightning's messages about its own setup."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
