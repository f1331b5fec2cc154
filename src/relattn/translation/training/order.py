"""Whether a model reads the order of its source: one that does loses much when the source's pieces are shuffled.

A training that is stuck at what can be said without any order (positions left out by mistake, a rate too high for the
tables) learns all the same, slowly and badly, and nothing in its loss tells. This does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relattn.translation.data.batching import Batch
from relattn.translation.data.tokenizer import Marks
from relattn.translation.training.journal import Validated

UNREAD = 0.01  # the share by which the loss rises at most, of a model that reads no order


def shuffled(batch: Batch, marks: Marks, seed: int) -> Batch:
    """A batch with the pieces of each source in another order, and its marks where they were."""
    random, src = np.random.default_rng(seed), batch.src.clone()
    first, last = len(marks.src_begin), len(marks.src_end)
    for row, length in zip(src, batch.src_lengths.tolist(), strict=True):
        pieces = row[first : length - last]
        pieces.copy_(pieces[torch.from_numpy(random.permutation(len(pieces)))])
    return replace(batch, src=src)


def order_unread(step: int, found: Validated, without: float) -> str | None:
    """What to say of a model that reads no order, by its loss and that of the same text with its sources shuffled."""
    if without > found.loss * (1 + UNREAD):
        return None
    return (
        f"relattn: warning: step {step}: the loss on {found.name} is {found.loss:.3f}, and {without:.3f} with the "
        "pieces of its sources shuffled: the model makes nothing of order, and may be stuck there; see "
        "train.warmup_steps, train.learning_rate"
    )
