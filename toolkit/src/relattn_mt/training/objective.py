"""The training objective, label-smoothed cross entropy, and the schedule of the learning rate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from relattn_mt.data.batching import Batch

_PADDING = -100  # target that is ignored
_LEAST = 1e-30  # attention whose logarithm is taken, so that gradients are finite, also times the scale of a loss
_CACHED = 1 << 19  # logits that are computed with at one time: 2 MiB


def learning_rate(step: int, dim: int, warmup_steps: int, *, factor: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1 (Vaswani et al. 2017, section 5.3).

    It is factor · dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5): a linear increase, then a decrease with the
    square root of the step.
    """
    return factor * dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def summed_loss(
    model: nn.Module, batch: Batch, label_smoothing: float = 0.0, guidance: tuple[float, tuple[int, int]] | None = None
) -> Tensor:
    """Return the cross entropy summed over the target tokens of a batch, in nats, a scalar.

    Args:
        model: The model.
        batch: Sentence pairs.
        label_smoothing: Probability mass that is spread over the vocabulary.
        guidance: Weight of `alignment_loss`, which is added, and `ModelConfig.alignment`.
    """
    if guidance is None:
        return _token_loss(batch.logits(model), batch, label_smoothing)
    weight, alignment = guidance
    outputs = model(batch.src, batch.src_lengths, batch.tgt_in, alignment)
    logits, attention = map(batch.predicted, outputs)
    return _token_loss(logits, batch, label_smoothing) + weight * alignment_loss(attention, batch.links)


def alignment_loss(attention: Tensor, links: Tensor) -> Tensor:
    """Return the cross entropy of attention weights summed over the target pieces that have links, a scalar.

    The links of a piece share its weight equally (Chen et al. 2016).

    Args:
        attention: (sentences, tgt_len, src_len).
        links: `Batch.links`.
    """
    sentence, target, source = links.unbind(1)
    piece = sentence * attention.shape[1] + target
    share = 1 / piece.bincount()[piece]
    likelihood = attention[sentence, target, source].clamp(min=_LEAST)
    return -(share * likelihood.log()).sum()


def _token_loss(logits: Tensor, batch: Batch, label_smoothing: float) -> Tensor:
    logits = logits.flatten(0, 1)
    positions = torch.arange(batch.tgt_out.shape[1], device=logits.device)
    targets = batch.tgt_out.masked_fill(positions >= batch.tgt_lengths[:, None], _PADDING).flatten()
    if logits.is_cpu:
        return _CrossEntropy.apply(logits, targets, label_smoothing)
    return F.cross_entropy(
        logits.float(), targets, ignore_index=_PADDING, label_smoothing=label_smoothing, reduction="sum"
    )


class _CrossEntropy(torch.autograd.Function):
    """Summed cross entropy that replaces logits by their gradients, part by part, while they are in the cache.

    PyTorch's stores three more arrays of the size of the logits. The gradient of the logits z is
    softmax(z) − smoothing / vocab − (1 − smoothing) · onehot(target). It is computed in float32 from logits of any
    precision.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        vocab = logits.shape[1]
        total = logits.new_zeros((), dtype=torch.float32)
        ctx.gradients = logits
        rows = 1 + _CACHED // vocab
        for part, target in zip(logits.split(rows), targets[:, None].split(rows), strict=True):
            z = part.float()
            real = target != _PADDING
            target = target.clamp(min=0)
            log_sum = z.logsumexp(-1, keepdim=True)
            loss = log_sum - (1 - smoothing) * z.gather(-1, target) - smoothing * z.mean(-1, keepdim=True)
            total += loss[real].sum()
            if ctx.needs_input_grad[0]:
                z.sub_(log_sum).exp_().sub_(smoothing / vocab)
                z.scatter_add_(-1, target, torch.full_like(log_sum, smoothing - 1)).mul_(real)
                part.copy_(z)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        gradients = ctx.gradients.mul_(scale)
        ctx.gradients = None
        return gradients, None, None
