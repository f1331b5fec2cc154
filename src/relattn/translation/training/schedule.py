"""The learning rate of Vaswani et al. (2017), §5.3: rises linearly, then falls as the square root of the step."""

from __future__ import annotations


def learning_rate(step: int, *, dim: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), for steps counted from 1."""
    return factor * dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
