"""The training loop: from a batch to new weights, and what happens between two steps, in the order it happens.

The loss of an optimiser step is one loss, however it is split: the sum over its target tokens divided by their number,
over all micro-batches and ranks. The batch planner puts that number in the step, so each micro-batch's sum is divided
by it, and the mean that distributed training takes over ranks is undone. Dropout is seeded from (seed, step, place of
the micro-batch in the whole step): there is no random state to save, a resumed run is the same run, and several ranks
drop what one would.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from relattn.translation.config import Recipe, TrainConfig, as_dict
from relattn.translation.data.batching import Step
from relattn.translation.data.encode import TranslationData
from relattn.translation.errors import Diverged, InputError, one_line
from relattn.translation.model.linear import use_products
from relattn.translation.model.positions import missing_position_signal
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, shards
from relattn.translation.training.journal import Journal
from relattn.translation.training.losses import Losses
from relattn.translation.training.objective import summed_loss
from relattn.translation.training.schedule import learning_rate
from relattn.translation.training.stop import Stop
from relattn.translation.training.validation import order_unread, shuffled_loss, validate

_COMPILED = {"fallback_random": True}  # dropout is drawn as without compiling


@dataclass
class Progress:
    """How far a run has come: with the journal's counts, the weights and the optimiser, what a checkpoint holds."""

    step: int = 0  # optimiser steps taken, over all sessions
    position: tuple[int, int] = (0, 0)  # (epoch, index) of the next step of data
    best: float = math.inf  # validation loss
    waited: int = 0  # validations since then

    def over(self, train: TrainConfig) -> bool:
        """Whether the last step is taken, or validation has not improved for as long as the recipe waits."""
        return self.step >= train.steps or 0 < train.patience <= self.waited


def fit(
    fabric: Fabric,
    recipe: Recipe,
    data: TranslationData,
    model: Transformer,
    state: dict[str, Any] | None,
    stop: Stop,
    *,
    show: bool,
) -> int:
    """Train to the recipe's last step, or until patience or a signal ends it; returns the steps taken in all sessions.

    Args:
        fabric: launched: devices, ranks and precision are its business.
        recipe: the run.
        data: its data.
        model: with its first weights; trained in place.
        state: content of the checkpoint to go on from, or None.
        stop: whether a signal asks for an end; the step in hand is finished and a checkpoint written first.
        show: progress on standard error.

    Raises:
        Diverged: a loss or a weight is no finite number.
        InputError: the checkpoint is another model's, or a file of the run cannot be written.
    """
    train = recipe.train
    trained, optimizer = set_up(fabric, model, train)
    losses = Losses(Path(recipe.out), partial(data.train.origin, parts=recipe.parts))
    journal = Journal(fabric, Path(recipe.out), losses, steps=train.steps, show=show)
    progress = Progress() if state is None else _restore(state, fabric, model, optimizer, journal, out=recipe.out)
    if progress.over(train):
        return progress.step
    watch_order = missing_position_signal(recipe.model) is None  # until it is read
    with journal.opened(progress.step):
        ranks = {"accumulate": train.accumulate, "ranks": fabric.world_size, "rank": fabric.global_rank}
        for batch in data.train.steps(progress.position, **ranks):
            journal.start_clock()
            loss = take_step(fabric, trained, optimizer, batch.to(fabric.device), recipe, progress.step)
            progress.step, progress.position = progress.step + 1, (batch.epoch, batch.index + 1)
            journal.count(progress.step, loss, batch)

            validating = progress.step % train.valid_every == 0 or progress.step >= train.steps
            if progress.step % train.log_every == 0 or validating:
                journal.settle()
                whole = shards.whole_model(model) if validating and data.valid else model
                found = [
                    validate(whole, valid, data.tokenizer, recipe, fabric.device) for valid in data.valid if validating
                ]
                if found:
                    progress.waited = 0 if found[0].loss < progress.best else progress.waited + 1
                    progress.best = min(progress.best, found[0].loss)
                journal.row(progress.step, optimizer.param_groups[0]["lr"], found)
                if watch_order and found and progress.step > train.warmup_steps:
                    without = shuffled_loss(whole, data.valid[0], data.tokenizer.special, fabric.device)
                    told = order_unread(progress.step, found[0], without)
                    watch_order = told is not None
                    if told is not None:
                        journal.tell(told, logging.WARNING)

            ending = stop.agreed(fabric) or progress.over(train)
            if progress.step % train.checkpoint_every == 0 or ending:
                journal.settle()
                _save(fabric, recipe, progress, journal, model, optimizer)
            if ending:
                break
    return progress.step


def set_up(fabric: Fabric, model: Transformer, train: TrainConfig) -> tuple[_FabricModule, torch.optim.Optimizer]:
    """The model as it is called, on its device, in the recipe's precision, ranks sharing gradients; its optimiser."""
    if train.activation_checkpointing:
        model.recompute_activations()
    called: nn.Module = model
    if train.compile:
        called = cast(nn.Module, torch.compile(model, dynamic=True, options={**_COMPILED}))
    trained = fabric.setup_module(called)
    fused = train.precision != "fp16-mixed"  # a fused one unscales gradients itself, after they should be clipped
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=fused)
    return trained, optimizer


def take_step(
    fabric: Fabric, model: _FabricModule, optimizer: torch.optim.Optimizer, batch: Step, recipe: Recipe, steps: int
) -> Tensor:
    """One optimiser step after `steps` others; returns this rank's share of its loss, nats a target token, a scalar."""
    train = recipe.train
    optimizer.zero_grad()
    total = torch.zeros((), device=fabric.device)
    for place, part in zip(batch.places, batch.micro_batches, strict=True):
        seed_dropout(recipe.seed, steps, place)
        with fabric.no_backward_sync(model, enabled=place != batch.places[-1]):  # ranks meet once a step
            loss = summed_loss(model, part, train.label_smoothing) / batch.target_tokens
            fabric.backward(loss * fabric.world_size)
        total += loss.detach()
    if train.gradient_clip > 0:
        fabric.clip_gradients(model, optimizer, max_norm=train.gradient_clip, error_if_nonfinite=False)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(
            steps + 1, dim=recipe.model.dim, warmup_steps=train.warmup_steps, factor=train.learning_rate_factor
        )
    fabric.strategy.optimizer_step(optimizer)
    return total


def seed_dropout(*key: int) -> None:
    """Seed torch's generators from a tuple of non-negative integers."""
    high, low = np.random.SeedSequence(key).generate_state(2)
    torch.manual_seed((int(high) << 31) ^ int(low))


def _save(
    fabric: Fabric,
    recipe: Recipe,
    progress: Progress,
    journal: Journal,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write a checkpoint of a run as it stands; every rank calls it, for each may hold a share of it."""
    if not all(bool(shards.whole(parameter).isfinite().all()) for parameter in model.parameters()):
        raise Diverged(f"training diverged: step {progress.step} made weights that are not finite numbers")
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    content = {
        "recipe": as_dict(recipe),
        "position": progress.position,
        "best": progress.best,
        "waited": progress.waited,
        "unlogged": (journal.loss, journal.tokens),
        "clock": (journal.seconds, journal.last_row_at),
        "usual": journal.losses.usual,
        "products": model.products,
        "scaler": fabric.strategy.precision.state_dict(),
        **shards.whole_state(held, keep=fabric.is_global_zero),
    }
    if fabric.is_global_zero:
        directory, train = Path(recipe.out) / "checkpoints", recipe.train
        checkpoints.save(directory, progress.step, content, keep=train.keep, every=train.checkpoint_every)


def _restore(
    state: dict[str, Any],
    fabric: Fabric,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    journal: Journal,
    *,
    out: str,
) -> Progress:
    """Take up where a checkpoint's content left off."""
    try:
        use_products(model, state["products"])
        shards.load(model, optimizer, state)
        fabric.strategy.precision.load_state_dict(state.get("scaler", {}))
        journal.loss, journal.tokens = state["unlogged"]
        journal.seconds, journal.last_row_at = state["clock"]
        mean, variance, steps = state["usual"]
        journal.losses.usual = (mean, variance, steps)
        epoch, index = state["position"]
        return Progress(state["step"], (epoch, index), state["best"], state["waited"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        told = f"{out}: the checkpoint of step {state['step']} is not one of this run: {one_line(error, 200)}"
        raise InputError(told) from error
