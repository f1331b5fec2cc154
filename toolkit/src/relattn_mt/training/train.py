"""A run from a recipe to a bundle, in a directory of its own: `relattn-mt train`."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import torch

from relattn_mt.config import Recipe
from relattn_mt.support.allocation import freed_memory_kept
from relattn_mt.support.errors import one_line
from relattn_mt.training.distributed import joined
from relattn_mt.training.loop import fit
from relattn_mt.training.run import Run, open_run, write_bundle
from relattn_mt.training.run_directory import BUNDLE, claimed, require_space
from relattn_mt.training.stop import Stop
from relattn_mt.training.worker import worker_of

_log = logging.getLogger(__name__)


def train(
    recipe: Recipe, *, resume: bool = False, show: bool = True, again: str = "the same command with --resume"
) -> Path:
    """Train a model by a recipe, and return the directory of its bundle.

    Messages name the command `again`, which continues the run.

    If torchrun started several processes, all call this function, and the first one prepares the data and writes all
    files.

    Raises:
        InputError: The recipe, its files or its directory cannot be used.
        Diverged: A loss or weight is not finite.
        Interrupted: A signal stopped the run. Resumed, it continues as if it had never stopped.
    """
    path = recipe.directory / BUNDLE
    with ExitStack() as stack, freed_memory_kept():
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        worker = worker_of(recipe.train)
        first = worker.is_first
        with Stop() as stop:
            command = f"{again} continues it" if resume else "the same command starts again"
            stop.switch("raise" if first else "kill", f"stopped before the first step; {command}")
            with claimed(recipe, resume=resume, first=first):
                # A run that is not continued has no checkpoint, so the other processes start as the first one does.
                run = open_run(recipe, resume=resume or not first, first=first)
                if first:
                    require_space(recipe, run.model)
                    _log_run(run)
                with joined(worker, recipe.train, stop):
                    steps = fit(worker, run, stop, show=show and first)
                if first:
                    stop.switch("raise", f"stopped after step {steps}; {again} continues from there")
                    write_bundle(recipe, run.data, recipe.train.average, path)
    return path


def _log_run(run: Run) -> None:
    """Log what is trained, on what and how."""
    model = run.model.config
    text = run.data.train
    train = run.recipe.train
    weights = sum(map(torch.numel, run.model.parameters()))
    threads = train.threads or torch.get_num_threads()
    layers = f"{model.encoder_layers} and {model.decoder_layers} layers"
    if dropped := ", ".join(f"{count:,} ({reason})" for reason, count in run.data.dropped.items() if count):
        _log.info("training pairs dropped: %s", dropped)
    _log.info(f"model: {model.positions} positions, dim {model.dim}, {layers}, {weights:,} weights")
    _log.info(f"text: {len(text.pairs.src):,} pairs of {one_line(', '.join(text.names), 200)}")
    _log.info(f"run: {train.steps:,} steps, {train.precision}, threads per process: {threads}")
