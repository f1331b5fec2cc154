"""Checkpoints are whole or absent, and a damaged one is found out."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from relattn.translation.errors import InputError
from relattn.translation.training import checkpoints

CONTENT = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "position": (3, 5), "best": 1.5}


def save(directory: Path, *steps: int, keep: int = 9) -> list[Path]:
    for step in steps:
        checkpoints.save(directory, step, CONTENT, keep=keep)
    return [checkpoints.checkpoint_path(directory, step) for step in steps]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def sign(path: Path) -> None:
    """Make a file count as sound."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n")


def test_what_is_loaded_is_what_was_saved(tmp_path):
    (path,) = save(tmp_path / "new" / "directory", 7)
    content = checkpoints.load(path)
    assert torch.equal(content["model"].pop("weight"), CONTENT["model"]["weight"])
    assert content == {"format": 1, "step": 7, "model": {}, "position": (3, 5), "best": 1.5}


def test_the_checksum_is_what_sha256sum_reads(tmp_path):
    (path,) = save(tmp_path, 7)
    subprocess.run(["sha256sum", "--check", "--strict", path.with_suffix(".sha256").name], cwd=tmp_path, check=True)


def test_the_newest_are_kept(tmp_path):
    save(tmp_path, 2, 4, 6, 8, keep=3)
    steps = (4, 6, 8)
    assert names(tmp_path) == sorted(f"step-{s:08d}.{end}" for s in steps for end in ("ckpt", "sha256"))
    assert checkpoints.list_checkpoints(tmp_path) == [checkpoints.checkpoint_path(tmp_path, step) for step in steps]


def test_one_made_by_an_interruption_leaves_no_trace(tmp_path):
    kept = []
    for step in (2, 4, 5, 6, 7):
        checkpoints.save(tmp_path, step, CONTENT, keep=2, every=2)
        kept.append([checkpoints.step_of(path) for path in checkpoints.list_checkpoints(tmp_path)])
    assert kept == [[2], [2, 4], [2, 4, 5], [4, 6], [4, 6, 7]]


def test_they_are_ordered_by_step_whatever_its_length(tmp_path):
    save(tmp_path, 99_999_999, 100_000_000)
    assert checkpoints.newest(tmp_path)[1]["step"] == 100_000_000


def test_a_checkpoint_is_written_again(tmp_path):
    save(tmp_path, 2)
    checkpoints.save(tmp_path, 2, {"model": {}}, keep=1)
    assert checkpoints.load(checkpoints.checkpoint_path(tmp_path, 2))["model"] == {}


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps(3)])
def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(tmp_path, content):
    """Its checksum fits."""
    (path,) = save(tmp_path, 7)
    path.write_bytes(content)
    sign(path)
    with pytest.raises(InputError) as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.with_suffix(".sha256").write_bytes(b"\xff\xfe"),
        lambda path: path.with_suffix(".sha256").unlink(),  # as where the power went between the two
    ],
    ids=["a bit", "truncated", "empty", "checksum damaged", "checksum missing"],
)
def test_a_damaged_one_is_passed_over(tmp_path, damage):
    older, newer = save(tmp_path, 2, 4)
    damage(newer)
    path, content, passed_over = checkpoints.newest(tmp_path)
    assert (path, content["step"]) == (older, 2)
    assert len(passed_over) == 1
    assert "step-00000004" in passed_over[0]
    damage(older)
    with pytest.raises(InputError, match=r"step-00000004.*; .*step-00000002"):
        checkpoints.newest(tmp_path)


def test_a_directory_without_any_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: contains no checkpoint"):
        checkpoints.newest(tmp_path)


class Bomb:
    def __init__(self, fuse: Path) -> None:
        self.fuse = fuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.fuse,)


@pytest.mark.parametrize(
    "write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))]
)
def test_code_in_a_checkpoint_is_not_run(tmp_path, write):
    (path,) = save(tmp_path, 2)
    write({"format": 2, "model": Bomb(tmp_path / "went off")}, path)
    sign(path)
    with pytest.raises(InputError, match=r"step-00000002.ckpt: must contain only tensors and plain values"):
        checkpoints.load(path)
    assert not (tmp_path / "went off").exists()


@pytest.mark.parametrize("content", [{"format": 2}, {}, [1, 2]])
def test_another_format_is_refused(tmp_path, content):
    (path,) = save(tmp_path, 2)
    torch.save(content, path)
    sign(path)
    with pytest.raises(InputError, match=r"the checkpoint format must be 1, got (2|None)"):
        checkpoints.load(path)


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_save_that_fails_keeps_what_there_was(tmp_path, monkeypatch, failing):
    save(tmp_path, 2, 4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(InputError, match=r"step-00000006.ckpt: cannot be written: No space left on device"):
        save(tmp_path, 6, keep=1)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checksum_that_is_missing_is_told(tmp_path):
    (path,) = save(tmp_path, 2)
    path.with_suffix(".sha256").unlink()
    with pytest.raises(InputError, match=r"step-00000002\.ckpt: its checksum step-00000002\.sha256 is missing$"):
        checkpoints.load(path)


@pytest.mark.whole
def test_a_disk_that_is_full_keeps_what_there_was(tmp_path):
    """A real write that is refused half-way: the process may write no file past 4 kB."""
    save(tmp_path, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    script = """
import resource, signal, sys, torch
from pathlib import Path
from relattn.translation.errors import InputError
from relattn.translation.training import checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    checkpoints.save(Path(sys.argv[1]), 4, {"model": {"weight": torch.zeros(5000)}}, keep=1)
except InputError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"{tmp_path}/step-00000004.ckpt: cannot be written: File too large")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
