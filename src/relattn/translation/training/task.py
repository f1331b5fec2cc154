"""The training step: one loss however it is split.

The loss of an optimiser step is the sum over its target tokens divided by their number, over all micro-batches and
all ranks. The batch planner puts that number in the step, so each micro-batch's sum is divided by it, and the mean
that distributed training takes over ranks is undone. Dropout is seeded from (seed, step, micro-batch, rank): there
is no random state to save, and a resumed run is the same run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from relattn.translation.config import Recipe
from relattn.translation.data.batching import Batch, Step
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.schedule import learning_rate


def summed_loss(model: Transformer, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy summed over the target tokens of a batch, in nats; a scalar."""
    logits = model(batch.src, batch.src_lengths, batch.tgt_in).float()
    return F.cross_entropy(
        logits.flatten(0, 1),
        batch.tgt_out.flatten(),
        ignore_index=Tokenizer.pad_id,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def seed_dropout(*key: int) -> None:
    """Seed torch's generators from a tuple of non-negative integers."""
    high, low = np.random.SeedSequence(key).generate_state(2)
    torch.manual_seed((int(high) << 31) ^ int(low))


def first_process() -> bool:
    """Whether this is the one training process that writes files, which is so before others are started too."""
    return getattr(rank_zero_only, "rank", 0) == 0


class TranslationTask(lightning.LightningModule):
    """A model, its optimiser, and what one optimiser step does.

    Attributes:
        step: optimiser steps taken, over all sessions of the run.
        position: (epoch, index) of the next step of data.
        last: loss (nats a target token) and target tokens of the step just taken.
    """

    def __init__(self, recipe: Recipe, model: Transformer) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe, self.model = recipe, model
        self.step = 0
        self.position = (0, 0)
        self.last: tuple[Tensor, int] = (torch.tensor(float("nan")), 0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def load(self, state: dict[str, Any]) -> None:
        """Take up where a checkpoint's content left off."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.position = state["step"], tuple(state["position"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def transfer_batch_to_device(self, batch: Step, device: torch.device, dataloader_idx: int) -> Step:
        return batch.to(device)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        train = self.recipe.train
        return learning_rate(
            self.step + 1, dim=self.recipe.model.dim, warmup_steps=train.warmup_steps, factor=train.learning_rate
        )

    def training_step(self, batch: Step, batch_idx: int) -> None:
        train, optimizer = self.recipe.train, self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for i, part in enumerate(batch.micro_batches):
            seed_dropout(self.recipe.seed, self.step, i, self.global_rank)
            loss = summed_loss(self.model, part, train.label_smoothing) / batch.target_tokens
            with self._syncing(i == len(batch.micro_batches) - 1):
                self.manual_backward(loss * self.trainer.world_size)
            total += loss.detach()
        if train.gradient_clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = self.rate
        optimizer.step()
        self.step += 1
        self.position = (batch.epoch, batch.index + 1)
        self.last = (self.trainer.strategy.reduce(total, reduce_op="sum"), batch.target_tokens)

    def _syncing(self, last: bool) -> AbstractContextManager:
        """Gradients of several ranks meet once a step, at the last micro-batch."""
        strategy = self.trainer.strategy
        return strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) and not last else nullcontext()
