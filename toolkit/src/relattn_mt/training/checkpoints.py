"""Checkpoints: everything that a run needs to continue as if it had never stopped.

A checkpoint is written next to its target, synced, and renamed, together with a SHA-256 checksum. A checkpoint that was
damaged later does not match its checksum, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relattn_mt.support.errors import Diverged, InputError, reading, require
from relattn_mt.support.files import file_digest, read_bytes, require_unique_entries, write_atomically

FORMAT = 1
State = dict[str, Tensor]  # weights by name
Checkpoint = dict[str, Any]  # content by name: "model", "optimizer", "progress", …
_log = logging.getLogger(__name__)


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return directory / f"step-{step:08d}.ckpt"


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, oldest first. Raise an InputError if it cannot be read."""
    with reading(directory, "cannot be read"):
        entries = [*directory.iterdir()] if directory.exists() else []
    paths = [path for path in entries if re.fullmatch(r"step-\d{8,}\.ckpt", path.name)]
    return sorted(paths, key=step_of)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def save(directory: Path, step: int, content: Checkpoint, *, keep: int, every: int = 1) -> None:
    """Write the checkpoint of a step, then delete old ones.

    The newest `keep` checkpoints whose step is a multiple of `every` are kept. So a checkpoint of an interrupted run
    does not change which checkpoints are kept, and averaged, at the end.

    Raises:
        InputError: The checkpoint could not be written. All earlier checkpoints are still there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(directory, step)
    buffer = io.BytesIO()  # torch.save to a file hides why a write failed
    torch.save({"format": FORMAT, "step": step, **content}, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    write_atomically(path, buffer.getbuffer())
    write_atomically(_checksum(path), f"{digest}  {path.name}\n".encode())
    paths = list_checkpoints(directory)
    regular = [old for old in paths if step_of(old) % every == 0]
    for old in {*paths} - {path, *regular[-keep:]}:
        old.unlink()
        _checksum(old).unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. This runs no code from it.

    Raises:
        InputError: The checkpoint is missing, damaged, or of another format.
    """
    checksum = _checksum(path)
    require(checksum.exists(), f"{path}: its checksum {checksum.name} is missing")
    if read_bytes(checksum).split() != [file_digest(path).encode(), path.name.encode()]:
        raise InputError(f"{path}: damaged: it does not match its checksum {checksum.name}")
    require_unique_entries(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch's message would advise to load it as code
        raise InputError(f"{path}: must contain only tensors and plain values") from error
    version = content.get("format") if isinstance(content, dict) else None
    require(version == FORMAT, f"{path}: the checkpoint format must be {FORMAT}, got {version}")
    return content  # type: ignore[no-any-return]


def newest(directory: Path, *, warn: bool = True) -> Checkpoint | None:
    """Return the content of the newest intact checkpoint, or None. Log a warning per damaged newer one if `warn`.

    Raises:
        InputError: All checkpoints are damaged.
    """
    damaged = []
    for path in reversed(list_checkpoints(directory)):
        try:
            content = load(path)
        except InputError as error:
            damaged.append(str(error))
            continue
        for message in damaged if warn else ():
            _log.warning("%s; continuing from %s", message, path.name)
        return content
    require(not damaged, "; ".join(damaged))
    return None


def average(states: Iterable[State]) -> State:
    """Return the mean of the weights of several checkpoints, which usually translates better than the last one.

    They are summed in float64, and the mean has their dtypes.

    Raises:
        InputError: There are none, or names or shapes of their weights differ.
        Diverged: A weight is not finite.
    """
    total: State = {}
    count = 0
    state: State = {}
    for count, state in enumerate(states, start=1):
        same = {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in (total or state).items()}
        require(same, f"checkpoint {count} to average must have the weights of the first one")
        for name, value in state.items():
            if not value.isfinite().all():
                raise Diverged(
                    f"weights to average must be finite, got {name} of checkpoint {count}: training diverged"
                )
            total[name] = value.double() + total.get(name, 0)
    require(count > 0, "there is no checkpoint to average")
    return {name: (value / count).to(state[name].dtype) for name, value in total.items()}


def _checksum(path: Path) -> Path:
    return path.with_suffix(".sha256")
