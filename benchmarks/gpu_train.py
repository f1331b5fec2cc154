"""Time of a training step on a GPU: the toolkit's Transformer with relative positions and with sinusoids.

The model with sinusoids uses PyTorch's attention. Steps of the two models alternate.
"""

from functools import partial
from typing import Any

import torch

from benchmarks.gpu_times import Work, figures
from benchmarks.measure import Row, alternate, measured

SCHEMES = ("sinusoidal", "relative")
KEY = ("model", "compiled", "n", "positions")
STEPS, ROUNDS = 4, 7  # steps per round, and rounds


def models(device: str) -> list[tuple[str, bool]]:
    """Return the sizes of the models, and whether each is compiled."""
    return [("tiny", False)] if device == "cpu" else [("base", False), ("base", True), ("big", False), ("big", True)]


def seconds_per_step(device: str, step: Work) -> float:
    """Return the wall-clock time of a step, which includes the launches of kernels."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def steps() -> None:
        for _ in range(STEPS):
            step()
        synchronize()

    synchronize()
    return measured(steps) / STEPS


def time_steps(size: str, compiles: bool, device: str) -> list[Row]:
    """Return a row for each position scheme."""
    from benchmarks.train_step import config, prepare  # imports the toolkit

    n, tokens = (8, 16) if device == "cpu" else (64, 16384)
    backend = "triton" if device == "cuda" else "auto"  # the kernels under test, at every length
    steps: dict[str, Any] = {
        scheme: prepare(config(size, scheme), n, tokens, device, torch.bfloat16, compiles, backend)
        for scheme in SCHEMES
    }
    times = alternate(steps, ROUNDS, clock=partial(seconds_per_step, device))
    return [
        {
            "model": size,
            "compiled": compiles,
            "n": n,
            "positions": scheme,
            **figures(times[scheme], times["sinusoidal"]),
            "tokens per second": round(tokens / times[scheme].median),
            "note": "",
            "dtype": "bfloat16 autocast",
            "tokens": tokens,
            "backend": backend,
        }
        for scheme in SCHEMES
    ]
