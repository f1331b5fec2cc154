"""Checkpoint files: which are kept, damaged files, failed writes, and the mean of weights."""

import io
import pickle
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from relattn_mt.support.errors import Diverged, InputError
from relattn_mt.training import checkpoints

from tests.support.loopback import files_no_larger_than
from tests.support.training_states import assert_same

CONTENT = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "position": (3, 5), "best": 1.5}


def save(directory: Path, *steps: int, keep: int = 9) -> list[Path]:
    for step in steps:
        checkpoints.save(directory, step, CONTENT, keep=keep)
    return [checkpoints.checkpoint_path(directory, step) for step in steps]


def test_checkpoint_is_read_as_it_was_written(tmp_path):
    directory = tmp_path / "new" / "directory"
    (path,) = save(directory, 7)
    assert_same(checkpoints.load(path), {"format": 1, "step": 7, **CONTENT})
    subprocess.run(["sha256sum", "--check", "--strict", path.with_suffix(".sha256").name], cwd=directory, check=True)
    checkpoints.save(directory, 7, {"model": {}}, keep=1)
    assert checkpoints.load(path)["model"] == {}


def test_newest_regular_checkpoints_are_kept(tmp_path):
    """Steps 5 and 7 are those of interrupted sessions. Steps are ordered as numbers."""
    kept = []
    for step in (2, 4, 5, 6, 7, 99_999_998, 100_000_000):
        checkpoints.save(tmp_path, step, CONTENT, keep=2, every=2)
        kept.append([checkpoints.step_of(path) for path in checkpoints.list_checkpoints(tmp_path)])
    large = [[6, 99_999_998], [99_999_998, 100_000_000]]
    assert kept == [[2], [2, 4], [2, 4, 5], [4, 6], [4, 6, 7], *large]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"step-{step:08d}.{suffix}" for step in large[-1] for suffix in ("ckpt", "sha256")
    }
    assert checkpoints.newest(tmp_path)["step"] == 100_000_000


class Code:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (lambda code: b"", "tensors and plain values"),
        (lambda code: pickle.dumps({"format": 1, "model": code}, protocol=2), "tensors and plain values"),
        (lambda code: saved({"format": 1, "model": code}), "tensors and plain values"),
        (lambda code: saved({"format": 2}), "got 2"),
        (lambda code: saved([1, 2]), "got None"),
    ],
)
def test_file_with_other_content_is_refused_and_runs_no_code(tmp_path, content: Callable[[Code], bytes], fact):
    (path,) = save(tmp_path, 7)
    data = content(Code(tmp_path / "executed"))
    path.write_bytes(data)
    path.with_suffix(".sha256").write_text(f"{sha256(data).hexdigest()}  {path.name}\n")
    with pytest.raises(InputError, match=rf"^{path}.*{fact}.*$") as caught:
        checkpoints.load(path)
    assert "weights_only" not in str(caught.value)  # PyTorch's advice to run the code
    assert not (tmp_path / "executed").exists()


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_bit,
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.with_suffix(".sha256").write_text(f"{sha256(path.read_bytes()).hexdigest()}  other.ckpt\n"),
        lambda path: path.with_suffix(".sha256").write_bytes(b"\xff\xfe"),
        lambda path: path.with_suffix(".sha256").unlink(),  # power failure between the two writes
    ],
)
def test_damaged_checkpoint_is_skipped(tmp_path, caplog, damage):
    assert checkpoints.newest(tmp_path) is None
    older, newer = save(tmp_path, 2, 4)
    damage(newer)
    for warn in (False, True):
        assert checkpoints.newest(tmp_path, warn=warn)["step"] == 2
        assert [newer.name in line and older.name in line for line in caplog.messages] == [True] * warn
    damage(older)
    with pytest.raises(InputError, match=rf"{newer.name}.*; .*{older.name}"):
        checkpoints.newest(tmp_path)


def test_failed_save_keeps_earlier_checkpoints(tmp_path):
    save(tmp_path, 2, 4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with files_no_larger_than(1000), pytest.raises(InputError, match=r"step-00000006\.ckpt: .*File too large"):
        save(tmp_path, 6, keep=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_average_is_the_mean_in_float64():
    torch.manual_seed(1)
    states = [{"a": torch.randn(2, 3), "b": torch.randn(5).bfloat16(), "c": torch.randn(())} for _ in range(7)]
    before = [{name: value.clone() for name, value in state.items()} for state in states]
    mean = checkpoints.average(iter(states))
    assert_same(states, before)
    for name, value in states[0].items():
        expected = np.mean([state[name].double().numpy() for state in states], axis=0)
        assert mean.pop(name).tolist() == torch.tensor(expected).to(value.dtype).tolist()
    assert mean == {}
    assert_same(checkpoints.average(states[:1]), states[0])


@pytest.mark.parametrize(
    ("second", "error", "fact"),
    [
        ({"a": torch.zeros(3)}, InputError, "checkpoint 2"),
        ({}, InputError, "checkpoint 2"),
        ({"a": torch.tensor([1.0, torch.nan])}, Diverged, "a of checkpoint 2"),
        (None, InputError, "no checkpoint"),
    ],
)
def test_weights_that_have_no_average(second, error, fact):
    with pytest.raises(InputError, match=fact) as caught:
        checkpoints.average([] if second is None else [{"a": torch.zeros(2)}, second])
    assert caught.type is error
