"""Log of a run: rows of log.csv, which are also log messages, and a progress bar.

With several validation sets, valid.csv has one row per set and validation; log.csv has the first set.
"""

from __future__ import annotations

import csv
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from relattn_mt.data.batching import Step
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import Diverged, reading, writing
from relattn_mt.support.files import as_csv, write_atomically
from relattn_mt.training.worker import Worker

LOG = "log.csv"
VALID = "valid.csv"
_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Progress of a run. With the weights and the state of the optimizer, it is the content of a checkpoint."""

    step: int = 0  # optimizer steps so far, over all sessions
    epoch: int = 0  # of the next step
    index: int = 0  # of the next step in its epoch
    best: float = math.inf  # lowest validation loss
    waited: int = 0  # validations since then
    loss: float = 0.0  # sum over target tokens since the last row of the log, in nats
    tokens: int = 0  # target tokens since then
    seconds: float = 0.0  # training time so far, without validation and checkpoints
    seconds_at_row: float = 0.0  # training time at the last row of the log


@dataclass(frozen=True)
class Row:
    """One row of log.csv. Results on the first validation set are None if they were not measured."""

    step: int  # optimizer steps so far
    loss: float  # since the previous row, in nats per target token, with label smoothing
    tokens_per_second: float  # target tokens since the previous row, without the time of validation and checkpoints
    learning_rate: float  # of the last step
    seconds: float  # training time so far, over all sessions
    valid_loss: float | None = None  # in nats per target token, without smoothing
    valid_bleu: float | None = None  # of greedy translations of the first lines

    def __str__(self) -> str:
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        time = f"{self.seconds:.0f} s"
        text = f"step {self.step}  loss {self.loss:.3f}  {speed}  lr {self.learning_rate:.2e}  {time}"
        if self.valid_loss is not None:
            text += f"  valid loss {self.valid_loss:.3f}"
        if self.valid_bleu is not None:
            text += f"  valid BLEU {self.valid_bleu:.1f}"
        return text


@dataclass(frozen=True)
class Validated:
    """Results on a validation set."""

    name: str  # of the set
    loss: float  # in nats per target token, without smoothing
    bleu: float | None  # of greedy translations of the first lines; None if it was not measured


_COLUMNS = [each.name for each in fields(Row)]
_VALID_COLUMNS = ["step", *(each.name for each in fields(Validated))]


@dataclass(eq=False)
class Journal:
    """Counts what steps cost, appends rows to the log, and shows progress.

    Each process has one, because the loss of a step is a sum over processes. Only the first process writes.
    """

    worker: Worker
    out: Path  # directory of the run
    progress: Progress  # updated in place
    steps: int  # of the run
    _unsettled: list[tuple[Tensor, Step]] = field(default_factory=list, init=False)  # the device may still compute them
    _clock: float | None = field(default=None, init=False)
    _bar: tqdm = field(default_factory=partial(tqdm, disable=True), init=False)

    @contextmanager
    def opened(self, *, show: bool) -> Iterator[None]:
        """Open the log, and remove rows after the current step. With `show`, show a progress bar on a terminal."""
        step = self.progress.step
        first = self.worker.is_first
        if first:
            if (self.out / LOG).exists():
                read_log(self.out / LOG)  # refuses a file that is not a log
            for name, columns in ((LOG, _COLUMNS), (VALID, _VALID_COLUMNS)):
                if (self.out / name).exists():
                    rows = [row for row in _read_csv(self.out / name, columns) if int(row[0]) <= step]
                    write_atomically(self.out / name, as_csv([columns, *rows]).encode())
        hidden = not (first and show and shows_progress())
        with tqdm(
            total=self.steps, initial=step, unit="step", dynamic_ncols=True, file=sys.stderr, disable=hidden
        ) as self._bar:
            yield

    def start_clock(self) -> None:
        """Start counting training time, unless it is being counted."""
        if self._clock is None:
            self._clock = time.perf_counter()

    def add(self, loss: Tensor, step: Step) -> None:
        """Record a step that was taken, and this process's share of its loss per target token."""
        self._unsettled.append((loss, step))
        self._bar.update()

    def settle(self) -> None:
        """Wait for the losses of the recorded steps, and stop the clock.

        Raises:
            Diverged: A loss is not finite.
        """
        progress = self.progress
        if self._unsettled:
            shares = torch.stack([loss for loss, _ in self._unsettled])
            losses = self.worker.sum(shares).tolist()
            first = progress.step - len(losses) + 1
            for number, (loss, (_, step)) in enumerate(zip(losses, self._unsettled, strict=True), start=first):
                if not math.isfinite(loss):
                    raise Diverged(
                        f"training diverged: the loss must be finite, got {loss} in step {number}; try a lower "
                        "train.learning_rate_factor, a higher train.warmup_steps or a train.gradient_clip"
                    )
                progress.loss += loss * step.target_tokens
                progress.tokens += step.target_tokens
            self._unsettled = []
        if self._clock is not None:
            progress.seconds += time.perf_counter() - self._clock
            self._clock = None

    def row(self, rate: float, validated: Sequence[Validated] = ()) -> None:
        """Write a row about the steps since the previous one, which must be settled. `rate` is that of the last one."""
        progress = self.progress
        elapsed = max(progress.seconds - progress.seconds_at_row, 1e-9)
        valid = (validated[0].loss, validated[0].bleu) if validated else (None, None)
        loss = progress.loss / progress.tokens
        speed = progress.tokens / elapsed
        row = Row(progress.step, loss, speed, rate, progress.seconds, *valid)
        progress.loss = 0.0
        progress.tokens = 0
        progress.seconds_at_row = progress.seconds
        if self.worker.is_first:
            _append(self.out / LOG, _COLUMNS, [astuple(row)])
            if len(validated) > 1:
                _append(self.out / VALID, _VALID_COLUMNS, [(row.step, *astuple(result)) for result in validated])
        self._bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s, lr {rate:.1e}")
        if self._bar.disable or row.valid_loss is not None:
            self.log(str(row))

    def log(self, message: str) -> None:
        """Log a message in the first process."""
        if self.worker.is_first:
            _log.info("%s", message)


def read_log(path: Path) -> list[Row]:
    """Read the rows of log.csv. A last line without a line end, left by a killed process, is ignored.

    Raises:
        InputError: The file cannot be read, or is not such a log.
    """
    rows = _read_csv(path, _COLUMNS)
    with reading(path, "not a training log"):
        return [
            Row(int(step), *map(float, cells[:4]), *(float(cell) if cell else None for cell in cells[4:]))
            for step, *cells in rows
        ]


def _append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[float | int | str | None]]) -> None:
    if not path.exists():
        write_atomically(path, as_csv([columns]).encode())
    text = as_csv([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    with writing(path), open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)


def _read_csv(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Read the complete lines of a CSV file with these columns."""
    with reading(path, f"not a {path.name} of a run"):
        content = path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].decode("utf-8").splitlines()
        header, *rows = list(csv.reader(lines)) or [[]]
        if header != list(columns):
            raise ValueError(f"its columns must be {', '.join(columns)}, got {', '.join(header)}")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(columns):
                raise ValueError(f"row {number} must have {len(columns)} cells, got {len(row)}")
            int(row[0])
    return rows
