"""The way through a table: each row in turn, trained unless its file is there, and the page made of those that are."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from filelock import FileLock, Timeout

from relattn.translation.errors import InputError
from relattn.translation.experiments import report, rows
from relattn.translation.experiments.scales import SCALES, Scale, at
from relattn.translation.experiments.tables import TABLES

_log = logging.getLogger(__name__)


def reproduce(
    table_name: str,
    scale_name: str,
    *,
    seeds: Sequence[int],
    chosen: Sequence[str],
    steps: int | None,
    data: Path | None,
    out: Path,
    runs: Path,
) -> Path:
    """Train what a table has no rows of, and write its page; returns where that is.

    A row whose file is there is done, whatever its budget was. One that another process is training is passed over, so
    that as many processes as there are cores can share a table.

    Args:
        table_name: of `TABLES`.
        scale_name: of `SCALES`.
        seeds: each model is trained once from each.
        chosen: names of the models that are trained, as in the names of their files; all if empty.
        steps: of each training, in place of the scale's.
        data: directory of the scale's files, in place of its own.
        out: directory of pages, and under `rows` of the rows' files.
        runs: directory of the runs.

    Raises:
        InputError, Interrupted: as `train`; the rows done so far stay, and the next call goes on.
    """
    table, scale = TABLES[table_name], _scale(scale_name, steps, data)
    entries = {entry.name: entry for entry in table.entries}
    if unknown := [name for name in chosen if name not in entries]:
        raise InputError(f"{table_name} has no model '{unknown[0]}'; it has {', '.join(entries)}")
    pairs = scale.pairs()  # text that cannot be read is told before anything is trained
    sets, files = scale.longer(pairs), out / scale.name / "rows"
    wanted, words = [], scale.short if table.short else None
    for seed in seeds:
        for name in chosen or entries:
            path = rows.path_of(files, name, seed, words)
            run = runs / scale.name / path.stem
            wanted.append((path, entries[name], rows.recipe_of(scale, entries[name], seed, run, words)))
    for number, (path, entry, recipe) in enumerate(wanted, start=1):
        Path(recipe.out).parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{recipe.out}.lock", timeout=0):
                if not path.exists():
                    _log.info(f"{number} of {len(wanted)}: {path.stem}; {_left([path for path, _, _ in wanted])}")
                    rows.write(path, rows.make(entry, recipe, pairs, sets, scale.width))
                    rows.clear(Path(recipe.out))
        except Timeout:
            _log.info(f"{number} of {len(wanted)}: {path.stem}: another process is training it")
    _log.info(_left([path for path, _, _ in wanted]))
    return report.write(table, scale, out / scale.name, pairs)


def _scale(name: str, steps: int | None, data: Path | None) -> Scale:
    scale = SCALES[name]
    if data is not None:
        if scale.recipe.data.builtin:
            raise InputError(f"--data means nothing for {name}, whose text is the built-in corpus")
        scale = replace(scale, recipe=at(scale.recipe, data))
    if steps is not None:
        scale = replace(scale, recipe=replace(scale.recipe, train=replace(scale.recipe.train, steps=steps)))
    return scale


def _left(paths: Sequence[Path]) -> str:
    """How many rows are done and left, and the time that the left ones should take, going by the others."""
    done = [rows.read(path) for path in paths if path.exists()]
    left = len(paths) - len(done)
    if not left or not done:
        return f"{len(done)} done, {left} left"
    seconds = left * statistics.median(result.wall for result in done)
    return f"{len(done)} done, {left} left, which should take {timedelta(seconds=round(seconds))} one after another"
