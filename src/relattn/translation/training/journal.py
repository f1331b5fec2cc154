"""What a run says of itself while it goes: rows of log.csv, each a line of the log too, and a progress bar.

Where there are several validation sets, each has a row in valid.csv; log.csv has the first.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from tqdm import tqdm

from relattn.translation.data.batching import Step
from relattn.translation.errors import reading
from relattn.translation.training import csv_log
from relattn.translation.training.losses import Losses
from relattn.translation.training.validation import Validated

LOG, VALID = "log.csv", "valid.csv"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One row of log.csv.

    Attributes:
        step: optimiser steps taken.
        loss: training loss since the row before, in nats a target token, label smoothing included.
        tokens_per_second: target tokens a second since the row before, validation and saving not counted.
        learning_rate: of the step just taken.
        seconds: training time so far, over all sessions.
        valid_loss: nats a target token on the first validation set, without smoothing; None where not measured.
        valid_bleu: BLEU of greedy translations of its first lines; None where not measured.
    """

    step: int
    loss: float
    tokens_per_second: float
    learning_rate: float
    seconds: float
    valid_loss: float | None = None
    valid_bleu: float | None = None

    def metrics(self) -> dict[str, float]:
        """What was measured, by name."""
        return {name: value for name, value in asdict(self).items() if name != "step" and value is not None}

    def text(self) -> str:
        """The row as one readable line."""
        parts = [
            f"step {self.step}",
            f"loss {self.loss:.3f}",
            f"{self.tokens_per_second:,.0f} tokens/s",
            f"lr {self.learning_rate:.2e}",
            f"{self.seconds:.0f} s",
        ]
        if self.valid_loss is not None:
            parts.append(f"valid loss {self.valid_loss:.3f}")
        if self.valid_bleu is not None:
            parts.append(f"valid BLEU {self.valid_bleu:.1f}")
        return "  ".join(parts)


_HEADER = [field.name for field in fields(Row)]
_VALID_HEADER = ["step", *(field.name for field in fields(Validated))]
_LOG = "training log"


class Journal:
    """Counts what steps cost, appends rows to a log, and shows progress.

    Every rank keeps one, since the loss of a step is the sum over ranks; the first one alone writes and shows.

    Args:
        fabric: of the run; its loggers are told what the log is.
        out: the run's directory, where log.csv and valid.csv are.
        losses: is shown the loss of every step.
        steps: steps in all.
        show: a bar on standard error, where that is a terminal.

    Attributes:
        loss: of the settled steps since the last row, in nats.
        tokens: target tokens of the same steps.
        seconds: training time so far, over all sessions.
        last_row_at: the same when the last row was written.
    """

    def __init__(self, fabric: Fabric, out: Path, losses: Losses, *, steps: int, show: bool) -> None:
        self.fabric, self.path, self.valid_path, self.losses, self.steps = fabric, out / LOG, out / VALID, losses, steps
        self.show = show and fabric.is_global_zero
        self.loss, self.tokens = 0.0, 0
        self.seconds = self.last_row_at = 0.0
        self._waiting: list[_Waiting] = []  # steps whose losses the device may still be computing
        self._running_since: float | None = None
        self._bar: tqdm | None = None

    @contextmanager
    def opened(self, step: int) -> Iterator[None]:
        """Begin after `step` steps. Rows past it, of a session that outlived its last checkpoint, are taken out."""
        if self.fabric.is_global_zero:
            if self.path.exists():
                read_log(self.path)  # one that is none is refused
            csv_log.cut_back(self.path, _HEADER, _LOG, step)
            csv_log.cut_back(self.valid_path, _VALID_HEADER, "log of validations", step)
            self.losses.begin(step)
        if self.show and sys.stderr.isatty():
            self._bar = tqdm(total=self.steps, initial=step, unit="step", dynamic_ncols=True, file=sys.stderr)
        try:
            yield
        finally:
            for logger in self.fabric.loggers:
                logger.finalize("")  # it may hold rows back
            if self._bar is not None:
                self._bar.close()

    def start_clock(self) -> None:
        """Count the time from here as training, if it is not counted already."""
        if self._running_since is None:
            self._running_since = time.perf_counter()

    def count(self, step: int, loss: Tensor, batch: Step) -> None:
        """Note a step: its number, this rank's share of its loss a target token, and what it was of."""
        self._waiting.append(_Waiting(step, (batch.epoch, batch.index), loss, batch.target_tokens))
        if self._bar is not None:
            self._bar.update()

    def settle(self) -> None:
        """Wait for the losses of the steps noted, and stop the clock: validation and saving are not training.

        Raises:
            Diverged: a loss is not a finite number.
        """
        if self._waiting:
            shares = torch.stack([waiting.loss for waiting in self._waiting])
            losses = cast(Tensor, self.fabric.all_reduce(shares, reduce_op="sum"))
            for waiting, loss in zip(self._waiting, losses.tolist(), strict=True):
                told = self.losses.see(waiting.step, waiting.position, loss, write=self.fabric.is_global_zero)
                if told is not None:
                    self.tell(told, logging.WARNING)
                self.loss += loss * waiting.tokens
                self.tokens += waiting.tokens
            self._waiting = []
        if self._running_since is not None:
            self.seconds += time.perf_counter() - self._running_since
            self._running_since = None

    def row(self, step: int, rate: float, validated: Sequence[Validated] = ()) -> Row:
        """Write a row over the steps since the one before, which must be settled, and what was found by then."""
        elapsed = max(self.seconds - self.last_row_at, 1e-9)
        first = (validated[0].loss, validated[0].bleu) if validated else (None, None)
        row = Row(step, self.loss / self.tokens, self.tokens / elapsed, rate, self.seconds, *first)
        self.loss, self.tokens, self.last_row_at = 0.0, 0, self.seconds
        if self.fabric.is_global_zero:
            csv_log.append(self.path, _HEADER, [_cells(astuple(row))])
            if len(validated) > 1:
                csv_log.append(self.valid_path, _VALID_HEADER, [_cells((step, *astuple(each))) for each in validated])
        self.fabric.log_dict(row.metrics(), step)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {row.loss:.3f}, {row.tokens_per_second:,.0f} tokens/s, lr {rate:.1e}")
        if self._bar is None or row.valid_loss is not None:
            self.tell(row.text())
        return row

    def tell(self, line: str, level: int = logging.INFO) -> None:
        """Log a line, once for all ranks."""
        if self.fabric.is_global_zero:
            _log.log(level, line)


@dataclass(frozen=True)
class _Waiting:
    """A step that is not settled: its number, its place in the data, this rank's share of its loss, its tokens."""

    step: int
    position: tuple[int, int]
    loss: Tensor
    tokens: int


def read_log(path: Path) -> list[Row]:
    """The rows of a log. A last line without its end, of a process killed while it wrote, is no row.

    Raises:
        InputError: the file cannot be read, or is not such a log.
    """
    rows = csv_log.read(path, _HEADER, _LOG)
    with reading(path, f"not a {_LOG}"):
        return [_parse(dict(zip(_HEADER, cells, strict=True))) for cells in rows]


def _parse(cells: dict[str, str]) -> Row:
    step = int(cells.pop("step"))
    values = {name: float(text) if text or not name.startswith("valid_") else None for name, text in cells.items()}
    return Row(step, **values)  # type: ignore[arg-type]


def _cells(values: Iterable[float | int | str | None]) -> list[str]:
    return [_cell(value) for value in values]


def _cell(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
