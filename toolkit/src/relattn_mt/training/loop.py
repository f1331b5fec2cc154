"""The training loop: one optimizer step, and what happens between two steps, in order.

The loss of a step is one loss, however it is split: the sum over its target tokens divided by their number, over all
micro-batches and processes. The batch planner provides that number, so each micro-batch's sum is divided by it, and the
mean over processes that distributed training computes is undone. Dropout is seeded from (seed, step, place of the
micro-batch in the step). So there is no random state to save, a resumed run is the same run, and several processes drop
the same units as one.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from relattn_mt.config import TrainConfig, as_dict
from relattn_mt.data.batching import Step
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.allocation import return_freed_memory
from relattn_mt.support.errors import Diverged, InputError, one_line
from relattn_mt.support.types import Fields
from relattn_mt.training import checkpoints
from relattn_mt.training.journal import Journal, Progress
from relattn_mt.training.objective import learning_rate, summed_loss
from relattn_mt.training.run import Run
from relattn_mt.training.run_directory import CHECKPOINTS
from relattn_mt.training.stop import Stop
from relattn_mt.training.validation import validate
from relattn_mt.training.worker import Worker

_TIMED = 4  # steps of a session that are timed to estimate the rest
_STEPS_PER_RETURN = 100  # of freed memory; the next step then takes about twice as long


def fit(worker: Worker, run: Run, stop: Stop, *, show: bool) -> int:
    """Train to the last step, or until patience or a signal ends the run, and return the number of steps.

    The current step is finished, and a checkpoint is written, before a signal ends the run.

    Raises:
        Diverged: A loss or a weight is not finite.
        InputError: The checkpoint belongs to another model, or a file cannot be written.
    """
    recipe = run.recipe
    data = run.data
    model = run.model
    train = recipe.train
    called, optimizer = set_up(worker, model, train)
    progress = Progress() if run.checkpoint is None else _restore(run.checkpoint, worker, run, optimizer)
    if _finished(progress, train):
        return progress.step
    journal = Journal(worker, run.recipe.directory, progress, steps=train.steps)
    steps = data.train.steps(
        (progress.epoch, progress.index),
        done=progress.step,
        accumulate=train.accumulate // worker.world_size,
        ranks=worker.world_size,
        rank=worker.rank,
    )
    began = 0.0
    with journal.opened(show=show):
        for taken, step in enumerate(steps, start=1):
            journal.start_clock()
            number = progress.step + 1
            factor = train.learning_rate_factor
            rate = learning_rate(number, model.config.dim, train.warmup_steps, factor=factor)
            key = (recipe.seed, progress.step)
            loss = take_step(worker, called, optimizer, step.to(worker.device), train, rate=rate, key=key)
            progress.step = number
            progress.epoch = step.epoch
            progress.index = step.index + 1
            journal.add(loss, step)
            left = train.steps - number
            if taken == 1:
                began = time.monotonic()
            elif taken == _TIMED and left > train.log_every:
                seconds = (time.monotonic() - began) / (_TIMED - 1) * left
                journal.log(f"the remaining {left:,} steps take about {tqdm.format_interval(seconds)}")

            validating = number % train.valid_every == 0 or number >= train.steps
            if number % train.log_every == 0 or validating:
                journal.settle()
                results = [validate(run, valid, worker.device) for valid in data.valid if validating]
                if results:
                    progress.waited = 0 if results[0].loss < progress.best else progress.waited + 1
                    progress.best = min(progress.best, results[0].loss)
                journal.row(rate, results)

            ending = stop.agreed(worker) or _finished(progress, train)
            if number % train.checkpoint_every == 0 or ending:
                journal.settle()
                _save(worker, run, progress, optimizer)
            if ending:
                break
            if number % _STEPS_PER_RETURN == 0:
                return_freed_memory()
    return progress.step


def _finished(progress: Progress, train: TrainConfig) -> bool:
    """Return whether the last step was taken, or validation has not improved for `patience` validations."""
    return progress.step >= train.steps or 0 < train.patience <= progress.waited


def set_up(worker: Worker, model: Transformer, train: TrainConfig) -> tuple[nn.Module, Optimizer]:
    """Return the module to call for a forward pass on the device of `worker`, and the optimizer."""
    model.recompute = train.activation_checkpointing
    options: Fields = {"fallback_random": True}  # dropout is drawn as it is without compiling
    called = cast(nn.Module, torch.compile(model, dynamic=True, options=options)) if train.compile else model
    module = worker.wrap(called)
    fused = train.precision != "fp16-mixed"  # a fused optimizer unscales gradients itself, which is after clipping
    return module, torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=fused)


def take_step(
    worker: Worker,
    model: nn.Module,
    optimizer: Optimizer,
    step: Step,
    train: TrainConfig,
    *,
    rate: float,
    key: tuple[int, int],
) -> Tensor:
    """Take one optimizer step, and return this process's share of its loss, in nats per target token, a scalar.

    `model` and `optimizer` are those that `set_up` returned. Dropout is seeded from `key`, which is the seed of the run
    and the number of steps before this one.
    """
    optimizer.zero_grad()
    total = torch.zeros((), device=worker.device)
    config: Any = getattr(model, "module", model).config  # a module of several processes wraps the model
    guidance = (train.guided_alignment, config.alignment) if train.guided_alignment else None
    for place, batch in zip(step.places, step.micro_batches, strict=True):
        seed_dropout(*key, place)
        is_last = place == step.places[-1]
        with nullcontext() if is_last else worker.no_exchange(model):  # gradients are exchanged once per step
            with worker.autocast():
                loss = summed_loss(model, batch, train.label_smoothing, guidance) / step.target_tokens
            worker.scaler.scale(loss * worker.world_size).backward()
        total += loss.detach()
    if train.gradient_clip > 0:
        worker.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), train.gradient_clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    worker.scaler.step(optimizer)
    worker.scaler.update()
    return total


def seed_dropout(*key: int) -> None:
    """Seed PyTorch's random generators from a tuple of non-negative integers."""
    high, low = np.random.SeedSequence(key).generate_state(2)
    torch.manual_seed((int(high) << 31) ^ int(low))


def _save(worker: Worker, run: Run, progress: Progress, optimizer: Optimizer) -> None:
    """Write a checkpoint in the first process. In all of them, raise an error if a weight is not finite."""
    if not all(parameter.isfinite().all() for parameter in run.model.parameters()):
        raise Diverged(f"training diverged: weights must be finite, but step {progress.step} made some NaN or infinite")
    if worker.is_first:
        content = {
            "recipe": as_dict(run.recipe),
            "progress": asdict(progress),
            "scaler": worker.scaler.state_dict(),
            "model": run.model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        train = run.recipe.train
        directory = run.recipe.directory / CHECKPOINTS
        checkpoints.save(directory, progress.step, content, keep=train.keep, every=train.checkpoint_every)


def _restore(state: checkpoints.Checkpoint, worker: Worker, run: Run, optimizer: Optimizer) -> Progress:
    """Load the content of a checkpoint."""
    try:
        run.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        worker.scaler.load_state_dict(state["scaler"])
        return Progress(**state["progress"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        place = f"{run.recipe.directory}: the checkpoint of step {state['step']}"
        raise InputError(f"{place} must belong to this run: {one_line(error, 200)}") from error
