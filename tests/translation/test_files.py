"""Outputs are complete or absent; devices, pipes and links are not replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relattn.translation.errors import InputError
from relattn.translation.files import output, putting, write_atomically


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_file_is_replaced_by_a_new_one(tmp_path):
    path = tmp_path / ("x" * 255)  # the longest possible name
    path.write_bytes(b"old")
    with open(path, "rb") as before:
        write_atomically(path, b"new")
        assert before.read() == b"old"  # an open file is unchanged
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_an_error_keeps_what_was_there(tmp_path, kind):
    path = tmp_path / "target"
    if kind == "directory":
        path.mkdir()
    (path / "inside" if kind == "directory" else path).write_bytes(b"old")
    for error, raised in (
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with pytest.raises(raised), putting(path) as aside:  # noqa: PT012
            if kind == "directory":
                aside.mkdir()
            (aside / "inside" if kind == "directory" else aside).write_bytes(b"half")
            raise error
        assert names(tmp_path) == ["target"]
        assert (path / "inside" if kind == "directory" else path).read_bytes() == b"old"


def test_an_output_is_refused_before_anything_is_done(tmp_path):
    (tmp_path / "directory").mkdir()
    for path, reason in (
        (tmp_path / "nowhere" / "out", "No such file or directory"),
        (tmp_path / "directory", "Is a directory"),
    ):
        with pytest.raises(InputError, match=f"{path}: cannot be written: {reason}"), output(path):
            raise AssertionError("work was begun")
    assert names(tmp_path) == ["directory"]


def test_an_output_replaces_a_file_at_the_end_alone(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with output(path) as write:
        write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), output(path):
        _ = 1 / 0
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["out"]


def test_an_output_through_a_link_keeps_the_link_and_what_it_holds_till_the_end(tmp_path):
    (tmp_path / "real").write_bytes(b"older and longer")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    with pytest.raises(ZeroDivisionError), output(tmp_path / "link"):
        _ = 1 / 0
    assert (tmp_path / "real").read_bytes() == b"older and longer"
    for name in ("link", "dangling"):
        with output(tmp_path / name) as write:
            write(b"new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == b"new"


def test_pipes_and_devices_are_written_directly(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    main, terminal = os.openpty()
    for path, reader in ((pipe, os.open(pipe, os.O_RDWR | os.O_NONBLOCK)), (Path(os.ttyname(terminal)), main)):
        with output(path) as write:
            write(b"through")
        assert os.read(reader, 100) == b"through"
        assert not path.is_file()
        os.close(reader)
    os.close(terminal)
