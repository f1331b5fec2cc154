"""Directory of a run: whether a run can start or continue there. A run that fails to start leaves nothing.

    out/recipe.yaml  out/tokenizer.model  out/data/  out/log.csv  out/tensorboard/  out/checkpoints/  out/bundle/

The recipe is written first. From then on the directory contains a run, which ``--resume`` continues, even if the
process was killed immediately afterwards.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from relattn.translation import bundle
from relattn.translation.config import Recipe, SearchConfig, as_dict, differences, dump
from relattn.translation.config.yaml import read_yaml, to_config
from relattn.translation.data.encode import has_data
from relattn.translation.errors import InputError, require
from relattn.translation.files import as_size, is_leftover, remove, write_atomically
from relattn.translation.locking import LOCK, locked
from relattn.translation.training import checkpoints
from relattn.translation.training.journal import LOG, read_log

RECIPE, CHECKPOINTS, TENSORBOARD, BUNDLE = "recipe.yaml", "checkpoints", "tensorboard", "bundle"
_log = logging.getLogger(__name__)

_CHANGEABLE = {  # settings that may change when a run is resumed, because the weights of a step do not depend on them
    *("out", "train.steps", "train.threads", "train.log_every", "train.activation_checkpointing"),
    *("train.valid_every", "train.valid_bleu_lines", "train.patience", "train.max_restarts"),
    *("train.checkpoint_every", "train.keep", "train.average"),
    *(f"search.{field.name}" for field in fields(SearchConfig)),
    # These may change if the number of micro-batches per step does not.
    *("train.accumulate", "train.devices", "train.nodes"),
}
# Paths may change too: the text itself is compared.
_PATHS = ("train_src", "train_tgt", "train_list", "valid_src", "valid_tgt", "valid_list")


@contextmanager
def claim(recipe: Recipe, *, resume: bool, first: bool = True) -> Iterator[None]:
    """Lock the directory of a run, after checking that the run can start or continue there.

    If the block fails before the data of a new run are complete, nothing is left of it. Other processes than the first
    wait until it has made the data, which may take longer than a process group waits.

    Raises:
        InputError: The directory of a new run is not empty, an old run cannot continue with this recipe, a file is in
            the way, or another process uses the directory.
    """
    out = Path(recipe.out)
    if not first:
        while not has_data(out):
            time.sleep(0.2)
        yield
        return
    if resume:
        require_same_run(read_recipe(out), recipe)
    else:
        _require_free(out)
    with locked(out, "training this run"):
        if not resume:
            _require_free(out)  # another process may have started a run before this one had the lock
        try:
            if not resume:
                write_atomically(out / RECIPE, dump(recipe).encode())
            _require_layout(out)
            steps, taken = recipe.train.steps, _steps_taken(out)
            require(taken <= steps, f"train.steps must be at least {taken:,}, the number of steps taken, got {steps:,}")
            yield
        finally:
            if not resume and not has_data(out):
                for entry in out.iterdir():
                    if entry.name != LOCK:
                        remove(entry)


def read_recipe(out: Path) -> Recipe:
    """Read the recipe of a run.

    Raises:
        InputError: The directory contains no run, or its recipe was changed by hand and is not valid.
    """
    require((out / RECIPE).exists(), f"{out}: contains no run, because it has no {RECIPE}")
    return to_config(Recipe, read_yaml(out / RECIPE), out / RECIPE)


def require_same_run(old: Recipe, recipe: Recipe) -> None:
    """Raise an InputError that names all changed settings, if a run cannot continue with another recipe.

    Args:
        old: Recipe that the run was started with.
        recipe: Recipe to continue with.
    """
    paths = {name: getattr(recipe.data, name) for name in _PATHS}
    moved = {name: path for name, path in paths.items() if path and getattr(old.data, name)}
    old = replace(old, data=replace(old.data, **moved))
    lines = differences(as_dict(old), as_dict(recipe))
    changed = [line for line in lines if line.partition(": ")[0] not in _CHANGEABLE]
    before, now = old.micro_batches_per_step, recipe.micro_batches_per_step
    if before != now:
        changed.append(f"train.accumulate · train.devices · train.nodes: {before} → {now}")
    require(not changed, f"{recipe.out}: these settings must be as when the run started: {'; '.join(changed)}")


def _require_layout(out: Path) -> None:
    """Raise an InputError if a file in a run's directory would stop the run later, such as one of another user."""
    for name in (CHECKPOINTS, TENSORBOARD, "data"):
        path = out / name
        require(path.is_dir() or not path.exists(), f"{path} must be a directory, got a file")
        usable = not path.exists() or os.access(path, os.R_OK | os.W_OK | os.X_OK)
        require(usable, f"{path} must be readable and writable for this user")
    bundle.require_replaceable(out / BUNDLE)


def newest_checkpoint(out: Path, *, warn: bool = True) -> dict[str, Any] | None:
    """Return the content of the newest intact checkpoint, or None. Log a warning per damaged one if `warn`."""
    if not checkpoints.list_checkpoints(out / CHECKPOINTS):
        return None
    path, state, damaged = checkpoints.newest(out / CHECKPOINTS)
    for message in damaged if warn else ():
        _log.warning("%s; continuing from %s", message, path.name)
    return state


def describe_progress(out: Path) -> str:
    """Return how far an interrupted run got and where it continues, for the end of a message."""
    rows, saved = [], _steps_taken(out)
    with suppress(InputError):
        rows = read_log(out / LOG)
    step = max(saved, rows[-1].step if rows else 0)
    after = f" after step {step}" if step else ""
    resumed = f"continues from step {saved}" if saved else "starts again"
    return f"{after}; the same command with --resume {resumed}"


def _steps_taken(out: Path) -> int:
    """Return the step of the newest checkpoint; 0 without one."""
    paths = checkpoints.list_checkpoints(out / CHECKPOINTS)
    return checkpoints.step_of(paths[-1]) if paths else 0


def disk_space(model: nn.Module, keep: int) -> int:
    """Return the size in bytes of a run's bundle, and of its checkpoints if `keep` of them are kept.

    While a checkpoint is written, there is one more than are kept. Each has the weights and Adam's two moments.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return (keep + 1) * 3 * weights + weights


def require_space(out: Path, model: nn.Module, keep: int) -> None:
    """Raise an InputError if the disk has no space for `keep` checkpoints of a run and its bundle."""
    needed = disk_space(model, keep)
    used = sum(path.stat().st_size for name in (CHECKPOINTS, BUNDLE) for path in (out / name).glob("*"))
    available = used + shutil.disk_usage(out).free
    message = f"{out}: the disk must have {as_size(needed)} for {keep} checkpoints and a bundle, got"
    require(needed <= available, f"{message} {as_size(available)}; see train.keep")


def _require_free(out: Path) -> None:
    require(not (out / RECIPE).exists(), f"{out}: contains a run; use --resume to continue it, or another out")
    # A killed process may have left a lock or a temporary file in a directory that it created.
    empty = not out.exists() or (
        out.is_dir() and all(entry.name == LOCK or is_leftover(entry) for entry in out.iterdir())
    )
    require(empty, f"{out}: out must be an empty directory or a new one")
