"""Outputs are complete or absent; devices, pipes and links are not replaced."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from relattn_mt.support import files
from relattn_mt.support.errors import InputError
from relattn_mt.support.files import output, putting, write_atomically
from relattn_mt.support.locking import locked


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_file_is_replaced_by_a_new_one(tmp_path):
    path = tmp_path / ("x" * 255)  # the longest possible name
    path.write_bytes(b"old")
    with open(path, "rb") as before:
        write_atomically(path, b"new")
        assert before.read() == b"old"  # an open file is unchanged
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == [path.name]


def test_directories_are_written_where_the_system_cannot_sync_them(tmp_path, monkeypatch):
    """On Linux, a directory cannot be opened for writing: as on Windows, opening it to sync it would fail."""
    monkeypatch.setattr(files, "CAN_SYNC_DIRECTORIES", False)
    with putting(tmp_path / "bundle") as aside:
        aside.mkdir()
        (aside / "weights").write_bytes(b"new")
    assert (tmp_path / "bundle" / "weights").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(28, "No space left on device"), InputError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
@pytest.mark.parametrize("inside", ["", "file"])
def test_failed_write_keeps_the_old_content(tmp_path, inside, error, raised):
    """The output is a file, or a directory with one."""
    path = tmp_path / "target"
    if inside:
        path.mkdir()
    (path / inside).write_bytes(b"old")
    with pytest.raises(raised), putting(path) as aside:  # noqa: PT012
        if inside:
            aside.mkdir()
        (aside / inside).write_bytes(b"half")
        raise error
    assert names(tmp_path) == ["target"]
    assert (path / inside).read_bytes() == b"old"


@pytest.mark.parametrize(
    ("number", "error", "raised"),
    [(2, OSError(5, "I/O error"), InputError), (1, KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_replacement_that_stops_between_two_renames_puts_the_old_directory_back(
    tmp_path, monkeypatch, number, error, raised
):
    """The second one fails, or the process is interrupted after the first."""
    path, rename, done = tmp_path / "target", Path.rename, []
    path.mkdir()
    (path / "file").write_bytes(b"old")

    def fails(source: Path, target: Path) -> None:
        done.append(target)
        if (number, len(done)) != (2, 2):
            rename(source, target)
        if len(done) == number:
            raise error

    with pytest.raises(raised), putting(path) as aside:  # noqa: PT012
        aside.mkdir()
        monkeypatch.setattr(Path, "rename", fails)
    assert names(tmp_path) == ["target"]
    assert (path / "file").read_bytes() == b"old"


def test_only_names_of_this_package_are_removed_after_a_kill(tmp_path):
    own = [".notes.part", ".relattn-notes.part", ".0123456789abcdef.part", ".lock"]
    (tmp_path / "data").mkdir()
    for directory in (tmp_path, tmp_path / "data"):
        for name in own:
            (directory / name).write_text("mine")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit), putting(directory / "out") as aside:  # noqa: PT012
            aside.write_text("half")
            patch.setattr(files, "remove", lambda path: None)  # killed
            raise SystemExit
        assert len(names(directory)) > len(own)
    with locked(tmp_path, "testing"):
        pass
    assert names(tmp_path) == sorted([*own, "data"])
    assert names(tmp_path / "data") == sorted(own)


@pytest.mark.parametrize(("name", "reason"), [("no/out", "No such file or directory"), ("there", "Is a directory")])
def test_unwritable_output_is_refused_before_the_work(tmp_path, name, reason):
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match=f"{name}: cannot be written: {reason}"), output(tmp_path / name):
        raise AssertionError("the block ran")
    assert names(tmp_path) == ["there"]


@contextmanager
def as_output(path):
    with putting(path) as aside:
        yield aside.write_bytes


@pytest.mark.parametrize("open_", [output, as_output])
def test_output_is_replaced_at_the_end_and_a_link_is_kept(tmp_path, open_):
    for name in ("out", "real"):
        (tmp_path / name).write_bytes(b"older and longer")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    for name in ("out", "link", "dangling"):
        path = tmp_path / name
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ZeroDivisionError), open_(path):
            _ = 1 / 0
        assert before is None or path.read_bytes() == before
        with open_(path) as write:
            write(b"new")
            assert name != "out" or path.read_bytes() == before
        assert path.read_bytes() == b"new"
        assert path.is_symlink() == (name != "out")
    assert names(tmp_path) == ["dangling", "link", "made", "out", "real"]


def test_pipes_and_devices_are_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    main, terminal = os.openpty()
    pipe = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    for path, reader in ((tmp_path / "pipe", pipe), (Path(os.ttyname(terminal)), main)):
        with output(path) as write:
            write(b"through")
        assert os.read(reader, 100) == b"through"
        assert not path.is_file()
        os.close(reader)
    os.close(terminal)
