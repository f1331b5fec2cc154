"""Rows of a table. A row is one model, trained from one seed and measured; it is kept as compressed JSON."""

from __future__ import annotations

import json
import lzma
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relattn.translation.errors import reading
from relattn.translation.experiments.tables import Entry, Scale
from relattn.translation.files import write_atomically

VERSION = 1  # of the files
_SUFFIX = ".json.xz"
MIN_TOKENS = 300  # bins of positions with fewer tokens are not shown


class Row(NamedTuple):
    """One model, trained from one seed. All values are as in JSON.

    Attributes:
        seed: random seed.
        recipe: recipe of the run, without its directory.
        conditions: versions, code, processor and threads, without which figures cannot be compared.
        fault: error if training diverged, or empty. After an error, all of the following are empty.
        figures: `evaluation.Scores`, valid_nats (validation loss per token), parameters, seconds (of training, without
            validation and saving), longest (tokens of the longest training target). If the lines are lists of items,
            also `evaluation.ItemAccuracy`.
        log: rows of the training log (`journal.Row`).
        translations: translations of the scale's first set of lines.
        positions: bins of target positions per set of lines: label, middle, tokens, correct (fraction) and nats (per
            token).
        norms: norms of the relative-position vectors (`table_norms.Norms`), if the model has any.
    """

    seed: int
    recipe: dict[str, Any]
    conditions: dict[str, str]
    fault: str
    figures: dict[str, Any]
    log: list[dict[str, Any]]
    translations: list[str]
    positions: dict[str, list[dict[str, Any]]]
    norms: dict[str, Any]

    def valid_losses(self) -> dict[int, float]:
        """Return the validation loss by training step."""
        return {row["step"]: row["valid_loss"] for row in self.log if row["valid_loss"] is not None}

    def nats_by_position(self, lines: str, x: str) -> dict[Any, float]:
        """Return the nats per token in a set of lines, by the "label" or the "middle" of each bin."""
        return {b[x]: b["nats"] for b in self.positions[lines] if b["tokens"] >= MIN_TOKENS and b[x] is not None}


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


def path_of(directory: Path, entry: Entry, scale: Scale, seed: int | str) -> Path:
    """Return the path of a row's file."""
    words = scale.recipe.data.max_words
    return directory / f"{entry.name}{'' if words is None else f'-{words}words'}-seed{seed}{_SUFFIX}"


def name_of(path: Path) -> str:
    """Return the name of a row's run: the name of its file without its suffixes."""
    return path.name.removesuffix(_SUFFIX)


def read_model(directory: Path, entry: Entry, scale: Scale) -> Model:
    """Return a model with all rows that have a file, by seed."""
    paths = directory.glob(path_of(directory, entry, scale, "*").name)
    rows = sorted(map(read, paths), key=lambda row: row.seed)
    faults = [f"seed {row.seed}: {row.fault}" for row in rows if row.fault]
    return Model(entry, [row for row in rows if not row.fault], faults if rows else ["not trained yet"])


def write(path: Path, row: Row) -> None:
    """Write the file of a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"version": VERSION} | row._asdict(), ensure_ascii=False, indent=0)
    write_atomically(path, lzma.compress(f"{content}\n".encode(), preset=9))


def read(path: Path) -> Row:
    """Return the row in a file.

    Raises:
        InputError: the file cannot be read, or is not a row of this version.
    """
    with reading(path, "not a row of a table"):
        content = json.loads(lzma.decompress(path.read_bytes()))
        version = content.pop("version", None)
        if version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {version}")
        return Row(**content)
