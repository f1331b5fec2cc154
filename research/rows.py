"""Rows of a table. A row is one model, trained from one seed and measured; it is kept as compressed JSON."""

from __future__ import annotations

import json
import lzma
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relattn_mt.support.errors import reading
from relattn_mt.support.files import write_atomically

from research.tables import Entry

VERSION = 2  # of the files
_SUFFIX = ".json.xz"
MIN_TOKENS = 300  # bins of positions with fewer tokens are not shown


class Row(NamedTuple):
    """One model, trained from one seed. All values are as in JSON.

    Attributes:
        seed: Random seed.
        recipe: Recipe of the run, without its directory.
        conditions: Versions, code, processor and threads, without which figures cannot be compared.
        fault: Error if training diverged, or empty. After an error, all of the following are empty.
        figures: By name: valid_nats (validation loss per token), parameters, seconds (of training, without validation
            and saving), longest (tokens of the longest training target).
        log: Rows of the training log (`journal.Row`).
        scores: `evaluation.Scores` of each text, by name, with `evaluation.ItemAccuracy` if its lines are lists.
        translations: Translations of each text, by name.
        positions: Bins of target positions in the long lines: label, middle, tokens, correct (fraction) and nats (per
            token).
    """

    seed: int
    recipe: dict[str, Any]
    conditions: dict[str, str]
    fault: str
    figures: dict[str, Any]
    log: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]
    translations: dict[str, list[str]]
    positions: list[dict[str, Any]]

    def valid_losses(self) -> dict[int, float]:
        """Return the validation loss by training step."""
        return {row["step"]: row["valid_loss"] for row in self.log if row["valid_loss"] is not None}

    def nats_by_position(self) -> dict[float, float]:
        """Return the nats per token of the long lines by the middle of each bin, without the end of the sentence."""
        enough = (b for b in self.positions if b["tokens"] >= MIN_TOKENS)
        return {b["middle"]: b["nats"] for b in enough if b["middle"] is not None}


class Model(NamedTuple):
    """A model of a table, its rows with figures, one per seed, and the faults of the others."""

    entry: Entry
    rows: list[Row]
    faults: list[str]

    def curve(self, points: Callable[[Row], Mapping[Any, float]]) -> dict[Any, float]:
        """Return the mean over seeds of a curve, given the points (x → y) of a row."""
        curves = [points(row) for row in self.rows]
        xs = dict.fromkeys(x for curve in curves for x in curve)
        return {x: statistics.mean(curve[x] for curve in curves if x in curve) for x in xs}


def path_of(directory: Path, entry: Entry, seed: int | str) -> Path:
    """Return the path of a row's file."""
    return directory / f"{entry.name}-seed{seed}{_SUFFIX}"


def name_of(path: Path) -> str:
    """Return the name of a row's run: the name of its file without its suffixes."""
    return path.name.removesuffix(_SUFFIX)


def read_model(directory: Path, entry: Entry) -> Model:
    """Return a model with all rows that have a file, by seed."""
    paths = directory.glob(path_of(directory, entry, "*").name)
    rows = sorted(map(read, paths), key=lambda row: row.seed)
    faults = [f"seed {row.seed}: {row.fault}" for row in rows if row.fault]
    return Model(entry, [row for row in rows if not row.fault], faults)


def write(path: Path, row: Row) -> None:
    """Write the file of a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"version": VERSION} | row._asdict(), ensure_ascii=False, indent=0)
    write_atomically(path, lzma.compress(f"{content}\n".encode(), preset=9))


def read(path: Path) -> Row:
    """Return the row in a file.

    Raises:
        InputError: The file cannot be read, or is not a row of this version.
    """
    with reading(path, "not a row of a table"):
        content = json.loads(lzma.decompress(path.read_bytes()))
        version = content.pop("version", None)
        if version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {version}")
        return Row(**content)
