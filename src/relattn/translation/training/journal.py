"""What a run says of itself while it goes: rows of log.csv, and a progress bar or plain lines on standard error."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from tqdm import tqdm

from relattn.translation.errors import Diverged, reading
from relattn.translation.files import write_atomically


@dataclass(frozen=True)
class Row:
    """One row of log.csv.

    Attributes:
        step: optimiser steps taken.
        loss: training loss since the row before, in nats a target token, label smoothing included.
        tokens_per_second: target tokens a second since the row before, validation and saving not counted.
        learning_rate: of the step just taken.
        seconds: training time so far, over all sessions.
        valid_loss: nats a target token on the validation set, without smoothing; None where not measured.
        valid_bleu: BLEU of greedy translations of the first validation lines; None where not measured.
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


class Journal:
    """Counts what steps cost, appends rows to a log, and shows progress on standard error.

    Every rank keeps one, since the loss of a step is the sum over ranks; the first one alone writes and shows.

    Args:
        fabric: of the run; its loggers are told what the log is.
        path: the log.
        steps: steps in all.
        show: whether anything goes to standard error: a bar where that is a terminal, else one line per row.

    Attributes:
        loss: of the settled steps since the last row, in nats.
        tokens: target tokens of the same steps.
        seconds: training time so far, over all sessions.
        last_row_at: the same when the last row was written.
    """

    def __init__(self, fabric: Fabric, path: Path, *, steps: int, show: bool) -> None:
        self.fabric, self.path, self.steps = fabric, path, steps
        self.show = show and fabric.is_global_zero
        self.loss, self.tokens = 0.0, 0
        self.seconds = self.last_row_at = 0.0
        self._waiting: list[tuple[int, Tensor, int]] = []  # steps whose losses the device may still be computing
        self._running_since: float | None = None
        self._bar: tqdm | None = None

    @contextmanager
    def opened(self, step: int) -> Iterator[None]:
        """Begin after `step` steps. Rows past it, of a session that outlived its last checkpoint, are taken out."""
        if self.fabric.is_global_zero:
            kept = [row for row in read_log(self.path) if row.step <= step] if self.path.exists() else []
            header = [f.name for f in fields(Row)]
            write_atomically(self.path, _csv([header, *(_cells(row) for row in kept)]).encode())
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

    def count(self, step: int, loss: Tensor, tokens: int) -> None:
        """Note a step: its number, this rank's share of its loss a target token, and target tokens of all ranks."""
        self._waiting.append((step, loss, tokens))
        if self._bar is not None:
            self._bar.update()

    def settle(self) -> None:
        """Wait for the losses of the steps noted, and stop the clock: validation and saving are not training.

        Raises:
            Diverged: a loss is not a finite number.
        """
        if self._waiting:
            shares = torch.stack([loss for _, loss, _ in self._waiting])
            losses = cast(Tensor, self.fabric.all_reduce(shares, reduce_op="sum"))
            for (step, _, tokens), loss in zip(self._waiting, losses.tolist(), strict=True):
                if not math.isfinite(loss):
                    raise Diverged(f"training diverged: the loss of step {step} is {loss}")
                self.loss += loss * tokens
                self.tokens += tokens
            self._waiting = []
        if self._running_since is not None:
            self.seconds += time.perf_counter() - self._running_since
            self._running_since = None

    def row(self, step: int, rate: float, valid_loss: float | None = None, valid_bleu: float | None = None) -> Row:
        """Write a row over the steps since the one before, which must be settled."""
        elapsed = max(self.seconds - self.last_row_at, 1e-9)
        row = Row(step, self.loss / self.tokens, self.tokens / elapsed, rate, self.seconds, valid_loss, valid_bleu)
        self.loss, self.tokens, self.last_row_at = 0.0, 0, self.seconds
        if self.fabric.is_global_zero:
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                file.write(_csv([_cells(row)]))
        self.fabric.log_dict(row.metrics(), step)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {row.loss:.3f}, {row.tokens_per_second:,.0f} tokens/s, lr {rate:.1e}")
            if valid_loss is not None:
                self._bar.write(row.text(), file=sys.stderr)
        elif self.show:
            print(row.text(), file=sys.stderr, flush=True)
        return row


def read_log(path: Path) -> list[Row]:
    """The rows of a log. A last line without its end, of a process killed while it wrote, is no row.

    Raises:
        InputError: the file cannot be read, or is not such a log.
    """
    with reading(path, "not a training log"):
        content = path.read_bytes()
        try:
            lines = content[: content.rfind(b"\n") + 1].decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start}") from error
        names = [f.name for f in fields(Row)]
        header, *rows = list(csv.reader(lines)) or [[]]
        if header != names:
            raise ValueError(f"its columns are {header}, expected {names}")
        return [_parse(dict(zip(names, cells, strict=True))) for cells in rows]


def _parse(cells: dict[str, str]) -> Row:
    step = int(cells.pop("step"))
    values = {name: float(text) if text or not name.startswith("valid_") else None for name, text in cells.items()}
    return Row(step, **values)  # type: ignore[arg-type]


def _cells(row: Row) -> list[str]:
    def cell(value: float | int | None) -> str:
        if value is None:
            return ""
        return str(value) if isinstance(value, int) else f"{value:.6g}"

    return [cell(getattr(row, f.name)) for f in fields(row)]


def _csv(rows: list[list[str]]) -> str:
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue()
