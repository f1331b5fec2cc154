"""Directory of a run: whether a run can start or continue there. A run that fails to start leaves nothing.

    out/recipe.yaml  out/tokenizer.model  out/data/  out/log.csv  out/checkpoints/  out/bundle/

The recipe is written first. From then on the directory contains a run, which ``--resume`` continues, even if the
process was killed immediately afterwards.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from torch import nn

from relattn_mt import bundle
from relattn_mt.config import Recipe, SearchConfig, as_dict, differences, dump
from relattn_mt.config.settings import to_config
from relattn_mt.config.yaml import read_yaml
from relattn_mt.data.encode import has_data
from relattn_mt.support.errors import require
from relattn_mt.support.files import as_size, is_leftover, remove, write_atomically
from relattn_mt.support.locking import LOCK, locked
from relattn_mt.training import checkpoints

RECIPE = "recipe.yaml"
CHECKPOINTS = "checkpoints"
BUNDLE = "bundle"

_CHANGEABLE = {  # settings that may change when a run is resumed, because the weights of a step do not depend on them
    *("out", "train.steps", "train.threads", "train.log_every", "train.activation_checkpointing"),
    *("train.valid_every", "train.valid_bleu_lines", "train.patience"),
    *("train.checkpoint_every", "train.keep", "train.average"),
    *(f"search.{field.name}" for field in fields(SearchConfig)),
}
# Paths may change too: the text itself is compared.
_PATHS = ("train_src", "train_tgt", "train_list", "valid_src", "valid_tgt", "valid_list")


def read_recipe(out: Path) -> Recipe:
    """Read the recipe of a run.

    Raises:
        InputError: The directory contains no run, or its recipe was changed by hand and is not valid.
    """
    require((out / RECIPE).exists(), f"{out}: contains no run, because it has no {RECIPE}")
    return to_config(Recipe, read_yaml(out / RECIPE), out / RECIPE)


def require_same_run(old: Recipe, recipe: Recipe) -> None:
    """Raise an InputError that names all changed settings, if a run cannot continue with another recipe."""
    before = as_dict(old)
    after = as_dict(recipe)
    for name in _PATHS:
        if before["data"][name] and after["data"][name]:
            before["data"][name] = after["data"][name]
    lines = differences(before, after)
    changed = [line for line in lines if line.partition(": ")[0] not in _CHANGEABLE]
    require(not changed, f"{recipe.out}: these settings must be as when the run started: {'; '.join(changed)}")


@contextmanager
def claimed(recipe: Recipe, *, resume: bool, first: bool) -> Iterator[None]:
    """Lock the directory of a run, after checking that the run can start or continue there.

    If the block fails before the data of a new run are complete, nothing is left of it. Other processes than the first
    wait until it has made the data, which may take longer than a process group waits.

    Raises:
        InputError: The directory of a new run is not empty, an old run cannot continue with this recipe, a file is in
            the way, or another process uses the directory.
    """
    out = recipe.directory
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
            _require_usable(recipe)
            yield
        finally:
            if not resume and not has_data(out):
                for entry in out.iterdir():
                    if entry.name != LOCK:
                        remove(entry)


def _require_free(out: Path) -> None:
    require(not (out / RECIPE).exists(), f"{out}: contains a run; use --resume to continue it, or another out")
    # A killed process may have left a lock or a temporary file in a directory that it created.
    empty = not out.exists() or (
        out.is_dir() and all(entry.name == LOCK or is_leftover(entry) for entry in out.iterdir())
    )
    require(empty, f"{out}: out must be an empty directory or a new one")


def _require_usable(recipe: Recipe) -> None:
    """Raise an InputError if a file would stop the run later, such as one of another user, or it has more steps."""
    out = recipe.directory
    for path in (out / CHECKPOINTS, out / "data"):
        require(path.is_dir() or not path.exists(), f"{path} must be a directory, got a file")
        usable = not path.exists() or os.access(path, os.R_OK | os.W_OK | os.X_OK)
        require(usable, f"{path} must be readable and writable for this user")
    bundle.require_replaceable(out / BUNDLE)
    taken = max(map(checkpoints.step_of, checkpoints.list_checkpoints(out / CHECKPOINTS)), default=0)
    steps = recipe.train.steps
    require(taken <= steps, f"train.steps must be at least {taken:,}, the number of steps taken, got {steps:,}")


def require_space(recipe: Recipe, model: nn.Module) -> None:
    """Raise an InputError if the disk has no space for the run's bundle, the checkpoints to keep and a new one.

    A checkpoint has the weights and Adam's two moments. The space of those that exist counts as available.
    """
    out = recipe.directory
    keep = recipe.train.keep
    weights = sum(parameter.nbytes for parameter in model.parameters())
    needed = (keep + 1) * 3 * weights + weights
    used = sum(path.stat().st_size for part in (CHECKPOINTS, BUNDLE) for path in (out / part).glob("*"))
    available = used + shutil.disk_usage(out).free
    message = f"{out}: the disk must have {as_size(needed)} for {keep} checkpoints and a bundle, got"
    require(needed <= available, f"{message} {as_size(available)}; see train.keep")
