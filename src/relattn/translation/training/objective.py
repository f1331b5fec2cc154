"""What training makes small: label-smoothed cross entropy, summed over the target tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn.translation.data.batching import Batch

_PADDING = -100  # a target that is left out


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


def mean_loss(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> float:
    """Cross entropy of batches in nats a target token, without smoothing or dropout; the model is left as it was."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        losses = sum(float(summed_loss(model, batch.to(device))) for batch in batches)
    model.train(training)
    return losses / sum(batch.target_tokens for batch in batches)
