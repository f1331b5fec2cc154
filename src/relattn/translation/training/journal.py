"""What a run says of itself while it goes: rows of log.csv, and a progress bar or plain lines on standard error."""

from __future__ import annotations

import csv
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from relattn.translation.errors import InputError


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
    """Appends rows to a log and shows progress on standard error.

    Args:
        path: the log; rows past `step` (from a session that went on after its last checkpoint) are taken out.
        step: steps taken before this session.
        steps: steps in all.
        show: whether anything goes to standard error: a bar where that is a terminal, else one line per row.
    """

    def __init__(self, path: Path, *, step: int, steps: int, show: bool) -> None:
        self.path, self.show = path, show
        rows = read_log(path) if path.exists() else []
        kept = [row for row in rows if row.step <= step]
        self.seconds = kept[-1].seconds if kept else 0.0
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(f.name for f in fields(Row))
            writer.writerows(_cells(row) for row in kept)
        bar = show and sys.stderr.isatty()
        self.bar = tqdm(total=steps, initial=step, unit="step", dynamic_ncols=True, file=sys.stderr) if bar else None
        self.loss, self.tokens, self.counted = 0.0, 0, 0
        self.running_since: float | None = None
        self.last_row_at = self.seconds

    def start_clock(self) -> None:
        """Count the time from here as training, if it is not counted already."""
        if self.running_since is None:
            self.running_since = time.perf_counter()

    def stop_clock(self) -> None:
        """Stop counting: validation and saving are not training."""
        if self.running_since is not None:
            self.seconds += time.perf_counter() - self.running_since
            self.running_since = None

    def count(self, loss: Tensor, tokens: int) -> None:
        """Note one step: its loss a target token and its target tokens."""
        self.loss += float(loss) * tokens
        self.tokens += tokens
        if self.bar is not None:
            self.bar.update()

    def row(self, step: int, rate: float, valid_loss: float | None = None, valid_bleu: float | None = None) -> Row:
        """Write a row over the steps noted since the one before. The clock must be stopped."""
        elapsed = max(self.seconds - self.last_row_at, 1e-9)
        loss = self.loss / self.tokens if self.tokens else float("nan")
        row = Row(step, loss, self.tokens / elapsed, rate, self.seconds, valid_loss, valid_bleu)
        self.loss, self.tokens, self.last_row_at = 0.0, 0, self.seconds
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(_cells(row))
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {row.loss:.3f}, {row.tokens_per_second:,.0f} tokens/s, lr {rate:.1e}")
            if valid_loss is not None:
                self.bar.write(row.text(), file=sys.stderr)
        elif self.show:
            print(row.text(), file=sys.stderr, flush=True)
        return row

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()


def read_log(path: Path) -> list[Row]:
    """The rows of a log.

    Raises:
        InputError: the file is not such a log.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = [f.name for f in fields(Row)]
        if reader.fieldnames != names:
            raise InputError(f"{path}: not a training log: its columns are {reader.fieldnames}, expected {names}")
        return [_parse(cells) for cells in reader]


def _parse(cells: dict[str, str]) -> Row:
    values = {name: float(text) if text else None for name, text in cells.items()}
    step = values.pop("step")
    assert step is not None
    return Row(step=int(step), **values)  # type: ignore[arg-type]


def _cells(row: Row) -> list[str]:
    def cell(value: float | int | None) -> str:
        if value is None:
            return ""
        return str(value) if isinstance(value, int) else f"{value:.6g}"

    return [cell(getattr(row, f.name)) for f in fields(row)]
