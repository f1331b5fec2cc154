"""What looks after the losses of a training's steps: one that is no number ends it, one out of the ordinary is noted.

Either way the pairs of the step are named, by corpus and line of the text that the run began with. What is usual is
kept as it goes: a mean and a variance that forget by 1 % a step. A loss is a spike that lies above the mean by a tenth
and by six standard deviations; what it adds to them is cut off there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from relattn.translation.errors import Diverged
from relattn.translation.files import as_csv, write_atomically
from relattn.translation.training import csv_log

DIVERGED, SPIKES = "diverged.csv", "spikes.csv"
_HEADER = ("step", "loss", "usual", "pairs")
_FORGETTING = 0.01
_FIRST = 100  # steps before anything is usual
_SHARE, _DEVIATIONS = 1.1, 6.0

Pairs = Sequence[tuple[str, int]]  # corpus and line


class Losses:
    """The losses of a run's steps, in their order.

    Args:
        out: the run's directory.
        origin: the pairs of the step at (epoch, index).

    Attributes:
        usual: mean and variance of the losses, and how many steps they are of: part of a checkpoint.
    """

    def __init__(self, out: Path, origin: Callable[[tuple[int, int]], Pairs]) -> None:
        self.out, self.origin = out, origin
        self.usual: tuple[float, float, int] = (0.0, 0.0, 0)

    def begin(self, step: int) -> None:
        """After `step` steps: spikes past it, of a session that outlived its last checkpoint, are taken out."""
        (self.out / DIVERGED).unlink(missing_ok=True)
        csv_log.cut_back(self.out / SPIKES, _HEADER, "list of spikes", step)

    def see(self, step: int, position: tuple[int, int], loss: float, *, write: bool) -> str | None:
        """Note the loss of a step, in nats a target token.

        Args:
            step: its number, from 1.
            position: its place in the data: epoch, and steps of it before this one.
            loss: of all its target tokens.
            write: whether this process writes files.

        Returns:
            What to say of it, where it is a spike.

        Raises:
            Diverged: the loss is no finite number; the step's pairs are in diverged.csv.
        """
        if not math.isfinite(loss):
            if write:
                rows = [("corpus", "line"), *self.origin(position)]
                write_atomically(self.out / DIVERGED, as_csv(rows).encode())
            raise Diverged(
                f"training diverged: the loss of step {step} is {loss}; its pairs are in {self.out / DIVERGED}; a "
                "lower train.learning_rate_factor, a longer train.warmup_steps or a train.gradient_clip may help"
            )
        mean, variance, steps = self.usual
        bound = max(mean * _SHARE, mean + _DEVIATIONS * math.sqrt(variance)) if steps >= _FIRST else math.inf
        share = max(_FORGETTING, 1 / (steps + 1))
        off = min(loss, bound) - mean
        self.usual = (mean + share * off, (1 - share) * (variance + share * off * off), steps + 1)
        if loss <= bound:
            return None
        if write:
            self._note(step, position, loss, mean)
        return f"step {step}: a loss of {loss:.3f} where {mean:.3f} is usual; its pairs are in {self.out / SPIKES}"

    def _note(self, step: int, position: tuple[int, int], loss: float, usual: float) -> None:
        pairs = " ".join(f"{corpus}:{line}" for corpus, line in self.origin(position))
        csv_log.append(self.out / SPIKES, _HEADER, [(step, f"{loss:.6g}", f"{usual:.6g}", pairs)])
