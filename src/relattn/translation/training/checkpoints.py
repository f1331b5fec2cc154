"""Checkpoints: all that is needed to go on as if nothing had happened.

One writer: beside the target, synced, with its checksum, then renamed, at step boundaries only. A checkpoint that was
damaged later is found out by its checksum, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from relattn.translation.errors import InputError
from relattn.translation.files import write_atomically

FORMAT = 4


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:08d}.ckpt"


def listed(directory: Path) -> list[Path]:
    """The checkpoints of a directory, oldest first."""
    found = [path for path in directory.glob("step-*.ckpt") if re.fullmatch(r"step-\d{8,}\.ckpt", path.name)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def save(directory: Path, step: int, content: dict[str, Any], *, keep: int, every: int = 1) -> Path:
    """Write the checkpoint of a step, then delete all but it and the newest `keep` whose steps divide by `every`.

    So a checkpoint made because a run was interrupted leaves no trace in what is kept, and averaged, in the end.

    Raises:
        InputError: it could not be written; every earlier checkpoint is still there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(directory, step)
    # Into memory first: torch.save hides why a file could not be written.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "step": step, **content}, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    write_atomically(path, buffer.getbuffer())
    write_atomically(_checksum(path), f"{digest}  {path.name}\n".encode())
    regular = [old for old in listed(directory) if step_of(old) % every == 0]
    for old in set(listed(directory)) - {path, *regular[-keep:]}:
        old.unlink()
        _checksum(old).unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. No code from it is run.

    Raises:
        InputError: it is missing, damaged, or of another format.
    """
    try:
        if not _checksum(path).exists():
            raise InputError(f"{path}: its checksum, {_checksum(path).name}, is missing")
        recorded = _checksum(path).read_bytes().split()
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if recorded != [digest.encode(), path.name.encode()]:
        raise InputError(f"{path}: damaged: its checksum is not the one in {_checksum(path).name}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types; PyTorch's message would advise to load it as code
        raise InputError(f"{path}: not a checkpoint of tensors and plain values alone") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InputError(f"{path}: checkpoint format {found}, this version reads {FORMAT}")
    return content


def newest(directory: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """The newest sound checkpoint, its content, and a line for each newer one that was passed over as damaged.

    Raises:
        InputError: there is none.
    """
    passed_over: list[str] = []
    for path in reversed(listed(directory)):
        try:
            return path, load(path), passed_over
        except InputError as error:
            passed_over.append(str(error))
    raise InputError("; ".join(passed_over) or f"{directory}: holds no checkpoint")


def _checksum(path: Path) -> Path:
    return path.with_suffix(".sha256")
