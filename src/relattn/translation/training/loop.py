"""The training loop: from a batch to new weights, and what happens between two steps, in the order it happens.

The loss of an optimiser step is one loss, however it is split: the sum over its target tokens divided by their number,
over all micro-batches and ranks. The batch planner puts that number in the step, so each micro-batch's sum is divided
by it, and the mean that distributed training takes over ranks is undone. Dropout is seeded from (seed, step, place of
the micro-batch in the whole step): there is no random state to save, a resumed run is the same run, and several ranks
drop what one would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from relattn.translation.config import Recipe, TrainConfig, as_dict
from relattn.translation.data.batching import Batch, Step
from relattn.translation.data.prepare import TranslationData
from relattn.translation.errors import Diverged, InputError, one_line
from relattn.translation.evaluation import score
from relattn.translation.model.layers import recompute
from relattn.translation.model.linear import use_products
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.translator import Translator
from relattn.translation.training import checkpoints, shards
from relattn.translation.training.journal import Journal
from relattn.translation.training.schedule import learning_rate
from relattn.translation.training.stop import Stop

_PADDING = -100  # a target that the loss leaves out
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
    journal = Journal(fabric, Path(recipe.out) / "log.csv", steps=train.steps, show=show)
    progress = Progress() if state is None else _restore(state, fabric, model, optimizer, journal, out=recipe.out)
    if progress.over(train):
        return progress.step
    with journal.opened(progress.step):
        for batch in data.steps(progress.position, ranks=fabric.world_size, rank=fabric.global_rank):
            journal.start_clock()
            loss = take_step(fabric, trained, optimizer, batch.to(fabric.device), recipe, progress.step)
            progress.step, progress.position = progress.step + 1, (batch.epoch, batch.index + 1)
            journal.count(progress.step, loss, batch.target_tokens)

            validating = progress.step % train.valid_every == 0 or progress.step >= train.steps
            if progress.step % train.log_every == 0 or validating:
                journal.settle()
                valid_loss = valid_bleu = None
                if validating and data.valid_batches:
                    valid_loss, valid_bleu = validate(shards.whole_model(model), data, recipe, fabric.device)
                    progress.waited = 0 if valid_loss < progress.best else progress.waited + 1
                    progress.best = min(progress.best, valid_loss)
                journal.row(progress.step, optimizer.param_groups[0]["lr"], valid_loss, valid_bleu)

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
        recompute(model)
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
            steps + 1, dim=recipe.model.dim, warmup_steps=train.warmup_steps, factor=train.learning_rate
        )
    fabric.strategy.optimizer_step(optimizer)
    return total


def summed_loss(model: nn.Module, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy summed over the target tokens of a batch, in nats; a scalar."""
    logits = model(batch.src, batch.src_lengths, batch.tgt_in).float()
    positions = torch.arange(batch.tgt_out.shape[1], device=logits.device)
    return F.cross_entropy(
        logits.flatten(0, 1),
        batch.tgt_out.masked_fill(positions >= batch.tgt_lengths[:, None], _PADDING).flatten(),
        ignore_index=_PADDING,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def seed_dropout(*key: int) -> None:
    """Seed torch's generators from a tuple of non-negative integers."""
    high, low = np.random.SeedSequence(key).generate_state(2)
    torch.manual_seed((int(high) << 31) ^ int(low))


def validate(
    model: Transformer, data: TranslationData, recipe: Recipe, device: torch.device
) -> tuple[float, float | None]:
    """Loss in nats a target token, and BLEU of greedy translations of the first validation lines, where wanted."""
    model.eval()
    with torch.inference_mode():
        losses = sum(float(summed_loss(model, batch.to(device))) for batch in data.valid_batches)
        loss = losses / sum(batch.target_tokens for batch in data.valid_batches)
        pairs = data.valid_pairs[: recipe.train.valid_bleu_lines]
        bleu = None
        if pairs:
            translator = Translator(model, data.tokenizer, replace(recipe.search, beam_size=1), device=device)
            bleu = score(translator.translate([src for src, _ in pairs]), [tgt for _, tgt in pairs]).bleu
    model.train()
    return loss, bleu


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
        epoch, index = state["position"]
        return Progress(state["step"], (epoch, index), state["best"], state["waited"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        told = f"{out}: the checkpoint of step {state['step']} is not one of this run: {one_line(error, 200)}"
        raise InputError(told) from error
