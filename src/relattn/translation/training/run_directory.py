"""A run's directory: whose it is, whether a run may begin or go on there, and that a beginning in vain leaves nothing.

    out/recipe.yaml  out/tokenizer.model  out/data/  out/log.csv  out/tensorboard/  out/checkpoints/  out/bundle/

The recipe is written first. From then on the directory holds a run, which `--resume` goes on with, even if the process
was killed before it came to anything else.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from relattn.translation import bundle
from relattn.translation.config import Recipe, SearchConfig, TrainConfig, as_dict, differences, dump
from relattn.translation.data.encode import has_data
from relattn.translation.errors import InputError
from relattn.translation.files import PART, as_size, remove, write_atomically
from relattn.translation.locking import LOCK, locked
from relattn.translation.training import checkpoints
from relattn.translation.training.journal import LOG, read_log

RECIPE, CHECKPOINTS, TENSORBOARD, BUNDLE = "recipe.yaml", "checkpoints", "tensorboard", "bundle"
TRAINING = "training this run"
_log = logging.getLogger(__name__)

_FREE = (  # settings that may change when a run is resumed, because the weights of a step do not depend on them
    *("out", "train.steps", "train.threads", "train.log_every", "train.activation_checkpointing"),
    *("train.valid_every", "train.valid_bleu_lines", "train.patience"),
    *("train.checkpoint_every", "train.keep", "train.average"),
    *(f"search.{field.name}" for field in fields(SearchConfig)),
    *("train.accumulate", "train.devices", "train.nodes", "train.strategy"),  # where steps have as many parts as before
)
_PATHS = (  # may change too: the text itself is held to
    *("train_src", "train_tgt", "train_list"),
    *("valid_src", "valid_tgt", "valid_list"),
)


@contextmanager
def begun(recipe: Recipe) -> Iterator[None]:
    """The recipe's directory, made and locked for a new run; whatever fails before its data are there leaves nothing.

    Raises:
        InputError: something stands there already, or another process begins a run there.
    """
    out = Path(recipe.out)
    _require_free(out)
    with locked(out, TRAINING):
        _require_free(out)
        try:
            write_atomically(out / RECIPE, dump(recipe).encode())
            yield
        finally:
            if not has_data(out):
                _empty(out)


def require_same_run(began: Recipe, recipe: Recipe) -> None:
    """Refuse to go on with a run by another recipe than it began with.

    Raises:
        InputError: a setting that shapes the model differs; the message names all of them.
    """
    moved = {name: getattr(recipe.data, name) for name in _PATHS if getattr(recipe.data, name)}
    moved = {name: path for name, path in moved.items() if getattr(began.data, name)}
    began = replace(began, data=replace(began.data, **moved))
    changed = [line for line in differences(as_dict(began), as_dict(recipe)) if line.partition(": ")[0] not in _FREE]
    if began.parts != recipe.parts:
        changed.append(f"train.accumulate · train.devices · train.nodes: {began.parts} → {recipe.parts}")
    if changed:
        raise InputError(f"{recipe.out}: the recipe has changed since this run began: {'; '.join(changed)}")


def require_layout(out: Path) -> None:
    """Raise an `InputError` if something in a run's directory would stop the run later, such as a file named data."""
    for name in (CHECKPOINTS, TENSORBOARD, "data"):
        if (out / name).exists() and not (out / name).is_dir():
            raise InputError(f"{out / name} must be a directory, and a file is there")
    bundle.require_replaceable(out / BUNDLE)


def newest_checkpoint(out: Path, *, warn: bool = True) -> dict[str, Any] | None:
    """Content of the newest sound checkpoint, or None; says which damaged ones were passed over."""
    if not checkpoints.listed(out / CHECKPOINTS):
        return None
    path, state, passed_over = checkpoints.newest(out / CHECKPOINTS)
    for line in passed_over if warn else ():
        _log.warning("%s; going on from %s", line, path.name)
    return state


def how_far(out: Path, again: str) -> str:
    """The rest of a line that tells of a run's early end: how far its log goes, and where `again` goes on from."""
    found, rows = checkpoints.listed(out / CHECKPOINTS), []
    with suppress(InputError):
        rows = read_log(out / LOG)
    saved = checkpoints.step_of(found[-1]) if found else 0
    after = max(saved, rows[-1].step if rows else 0)
    goes_on = f"goes on from step {saved}" if saved else "begins again"
    return f"{f' after step {after}' if after else ''}; {again} {goes_on}"


def room_for(model: nn.Module, train: TrainConfig) -> int:
    """Bytes of a run's checkpoints, one more than are kept while the oldest is not yet deleted, and of its bundle."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return (train.keep + 1) * 3 * weights + weights  # with Adam's two moments


def require_space(out: Path, model: nn.Module, train: TrainConfig) -> None:
    """Refuse a run, by an InputError, whose disk has no room for its checkpoints and bundle beside those it has."""
    needed = room_for(model, train)
    held = sum(path.stat().st_size for name in (CHECKPOINTS, BUNDLE) for path in (out / name).glob("*"))
    free = shutil.disk_usage(out).free
    if needed > held + free:
        raise InputError(
            f"{out}: {train.keep} checkpoints and a bundle need {as_size(needed)}, and {as_size(held + free)} are free "
            "there; see train.keep"
        )


def _require_free(out: Path) -> None:
    if (out / RECIPE).exists():
        raise InputError(f"{out}: holds a run already; give --resume to go on with it, or another directory as out")
    if out.exists() and (not out.is_dir() or not all(_left(entry) for entry in out.iterdir())):
        raise InputError(f"{out}: is not an empty directory; give another as out")


def _left(entry: Path) -> bool:
    """Whether a process that was killed may have left this in a directory that it made for a run."""
    return entry.name == LOCK or entry.match(PART)


def _empty(out: Path) -> None:
    """Take out all that a beginning made."""
    for entry in out.iterdir():
        if entry.name != LOCK:
            remove(entry)
