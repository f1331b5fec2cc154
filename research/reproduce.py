"""Train and measure the models of a table that have no row yet, and write the page of the scale."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import relattn
import relattn_mt
import torch
from filelock import FileLock, Timeout
from relattn_mt import bundle
from relattn_mt.config import Recipe, as_dict
from relattn_mt.data.encode import ENCODED
from relattn_mt.data.storage import open_pairs
from relattn_mt.evaluation import score
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import Diverged, unknown
from relattn_mt.support.files import remove
from relattn_mt.training.journal import read_log
from relattn_mt.training.train import train
from relattn_mt.translate.options import TranslateOptions

from research import corpus, report, rows
from research.positions import by_position
from research.tables import SCALES, TABLES, Pairs, Scale, in_directory

WIDTH = 15  # target positions per bin
_log = logging.getLogger(__name__)


def reproduce(
    table: str,
    scale: str,
    *,
    seeds: Sequence[int],
    models: Sequence[str],
    steps: int | None,
    data: str,
    out: Path,
    runs: Path,
) -> Path:
    """Train the models of a table that have no row yet, and return the path of the scale's page, which has all tables.

    A row that has a file is never trained again, even if the recipe has changed. Several processes can share a table:
    each skips the rows that another one is training.

    Args:
        table: Name of the table.
        scale: Name of the scale.
        seeds: Random seeds; each model is trained once per seed.
        models: Names of the models to train, as in the files of rows; all if empty.
        steps: Training steps, instead of the scale's.
        data: Directory of the scale's text, instead of the usual one if not empty.
        out: Directory of the pages, and under `rows` of the rows of each scale.
        runs: Directory of the training runs.

    Raises:
        InputError, Interrupted: As `train`. Finished rows are kept, and the next call continues.
    """
    chosen = with_options(SCALES[scale], steps, data)
    entries = {entry.name: entry for entry in TABLES[table].entries}
    for name in models:
        if name not in entries:
            raise unknown("model", name, entries)
    usual = {"data": as_dict(SCALES[scale].recipe.data)}  # rows do not keep the directory of this machine
    recipes: dict[Path, Recipe] = {}
    for seed in seeds:
        for name in models or entries:
            entry = entries[name]
            path = rows.path_of(out / "rows" / scale, entry, seed)
            model = entry.model(chosen.recipe.model)
            recipes[path] = replace(chosen.recipe, out=str(runs / scale / rows.name_of(path)), seed=seed, model=model)
    if scale == "demo":
        corpus.write_files(chosen.directory)
    texts, long = chosen.texts(), chosen.long()  # fails before training if a text cannot be read
    for path, recipe in recipes.items():
        try:
            with FileLock(f"{recipe.out}.lock", timeout=0):
                if not path.exists():
                    done = sum(row.exists() for row in recipes)
                    _log.info(f"{rows.name_of(path)}: training; {done} of {len(recipes)} rows are done")
                    row = train_row(recipe, texts, long, has_items=chosen.has_items)
                    rows.write(path, row._replace(recipe=row.recipe | usual))
                    for name in ("checkpoints", "data"):
                        remove(Path(recipe.out) / name)
        except Timeout:
            _log.info(f"{rows.name_of(path)}: skipped, because another process is training it")
    return report.write(chosen, out, texts)


def with_options(scale: Scale, steps: int | None, directory: str) -> Scale:
    """Return a scale with the number of steps and the directory of the command line."""
    data, train_config = scale.recipe.data, scale.recipe.train
    if directory:
        data = in_directory(data, directory)
    if steps is not None:
        train_config = replace(train_config, steps=steps)
    return scale._replace(recipe=replace(scale.recipe, data=data, train=train_config))


def train_row(recipe: Recipe, texts: Mapping[str, Pairs], long: Pairs, *, has_items: bool) -> rows.Row:
    """Train a model, or continue its training, and measure it. A run that diverges gives a row without figures.

    Args:
        recipe: Recipe of the run.
        texts: Texts to translate.
        long: Lines whose tokens are predicted, by position.
        has_items: Whether lines are lists of items, of which the correct ones are counted.

    Raises:
        InputError, Interrupted: As `train`.
    """
    out = Path(recipe.out)
    row = rows.Row(recipe.seed, as_dict(recipe) | {"out": ""}, conditions(recipe), "", {}, [], {}, {}, [])
    try:
        trained = train(recipe, resume=(out / "recipe.yaml").exists(), again="the same command")
    except Diverged as error:
        return row._replace(fault=str(error))
    read = bundle.read_bundle(trained)
    translator = read.translator()
    _log.info("measuring the model on %d lines, and on %d long ones", sum(map(len, texts.values())), len(long))
    translations, scores = {}, {}
    options = TranslateOptions(keep_literals=False)
    for name, pairs in texts.items():
        sources, references = zip(*pairs, strict=True)
        lines = translations[name] = translator.translate(sources, options, progress=shows_progress())
        items = corpus.item_accuracy(lines, references)._asdict() if has_items else {}
        scores[name] = vars(score(lines, references)) | items
    log = read_log(out / "log.csv")
    return row._replace(
        figures={
            "valid_nats": [row.valid_loss for row in log if row.valid_loss is not None][-1],
            "parameters": sum(math.prod(weight.shape) for weight in read.state.values()),
            "seconds": log[-1].seconds,
            "longest": int(open_pairs(out / ENCODED).tgt.lengths().max()),
        },
        log=list(map(asdict, log)),
        scores=scores,
        translations=translations,
        positions=[each._asdict() for each in by_position(read.torch_translator(), long, width=WIDTH)],
    )


def conditions(recipe: Recipe) -> dict[str, str]:
    """Return the conditions of a row's figures."""
    return {
        "relattn": relattn.__version__,
        "code": code_digest(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": str(recipe.train.threads or torch.get_num_threads()),
    }


def _processor() -> str:
    """Return the processor's name and number of cores, such as ``"Intel Xeon Processor, 2 cores"``."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def code_digest() -> str:
    """Return 8 hexadecimal digits that change with every change of the code of both packages."""
    digest = hashlib.sha256()
    for package in (Path(relattn.__file__).parent, Path(relattn_mt.__file__).parent):
        for path in sorted(package.rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]
