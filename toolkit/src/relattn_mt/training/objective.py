"""The training objective, label-smoothed cross entropy, and the schedule of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn_mt.data.batching import Batch

_PADDING = -100  # target that is ignored


def learning_rate(step: int, dim: int, warmup_steps: int, *, factor: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1 (Vaswani et al. 2017, section 5.3).

    It is factor · dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5): a linear increase, then a decrease with the
    square root of the step.
    """
    return factor * dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def summed_loss(model: nn.Module, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy summed over the target tokens of a batch, in nats, a scalar."""
    logits = batch.logits(model).float()
    positions = torch.arange(batch.tgt_out.shape[1], device=logits.device)
    return F.cross_entropy(
        logits.flatten(0, 1),
        batch.tgt_out.masked_fill(positions >= batch.tgt_lengths[:, None], _PADDING).flatten(),
        ignore_index=_PADDING,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def mean_loss(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> float:
    """Return the cross entropy in nats per target token, without smoothing or dropout. The model's mode is kept."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        losses = sum(float(summed_loss(model, batch.to(device))) for batch in batches)
    model.train(training)
    return losses / sum(batch.target_tokens for batch in batches)
