import bz2
import gzip
import os
import random

import pytest

from relattn.translation.data import text_files
from relattn.translation.data.text_files import ParallelFiles, read_lines, read_parallel, stream_lines
from relattn.translation.errors import InputError

LINES = ["a cat", "", "  eine Katze ", "naïve\u2028\u0085 café", "中文 😀"]


def write(path, content: bytes):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_come_back_without_their_ends(tmp_path, name, end, last, mark):
    content = mark + (end.join(LINES) + (end if last else "")).encode()
    assert list(read_lines(write(tmp_path / name, content))) == LINES


def test_reading_is_a_stream(tmp_path):
    path = write(tmp_path / "text", b"first\nsecond\n\xff\n")
    lines = read_lines(path)
    assert (next(lines), next(lines)) == ("first", "second")
    with pytest.raises(InputError):
        next(lines)


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize(
    ("content", "offset"),
    [(b"\xff", 0), (b"ab\ncd\xc3(\n", 5), ("é\n".encode() * 1000 + b"x\xe2\x82", 3001), (b"\xef\xbb\xbfab\n\xff", 6)],
)
def test_invalid_utf8_is_reported_by_file_and_byte(tmp_path, name, content, offset):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        list(read_lines(path))
    line = content[:offset].count(b"\n") + 1
    assert str(caught.value) == f"{path}: not UTF-8 at byte {offset}, in line {line}: 0x{content[offset]:02x}"
    assert content[offset] >= 0x80


def test_errors_name_the_file(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    whole = gzip.compress(b"some text that is long enough\n" * 100)
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.gz").write_bytes(b"not gzip at all\n")
    (tmp_path / "flipped.gz").write_bytes(whole[:12] + bytes(255 - byte for byte in whole[12:30]) + whole[30:])
    write(tmp_path / "empty", b"")
    write(tmp_path / "empty.gz", b"")
    expected = {
        "missing": "no such file",
        "missing.gz": "no such file",
        ".": "cannot be read: Is a directory",
        "loop": "cannot be read: Too many levels of symbolic links",
        "cut.gz": "cannot be read: Compressed file ended before the end-of-stream marker was reached",
        "plain.gz": "cannot be read: Not a gzipped file",
        "flipped.gz": "cannot be read: Error -3 while decompressing data",
        "empty": "the file is empty",
        "empty.gz": "the file is empty",
    }
    for name, message in expected.items():
        path = tmp_path / name
        with pytest.raises(InputError) as caught:
            list(read_lines(path))
        assert str(caught.value).startswith(f"{path}: {message}")
        assert "\n" not in str(caught.value)


def test_a_file_without_permission_is_reported(tmp_path, monkeypatch):
    from pathlib import Path

    def refuse(self, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="secret: cannot be read: Permission denied"):
        list(read_lines(tmp_path / "secret"))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_compressed_text_is_recognized_whatever_its_name(tmp_path, compress):
    (tmp_path / "text.en").write_bytes(compress(b"one\ntwo\n"))
    (tmp_path / "cut.en").write_bytes(compress(b"some text that is long enough\n" * 100)[:-9])
    assert list(read_lines(tmp_path / "text.en")) == ["one", "two"]
    with pytest.raises(InputError, match=r"cut\.en: cannot be read: Compressed file ended"):
        list(read_lines(tmp_path / "cut.en"))


def test_pairs_keep_their_order(tmp_path):
    src = write(tmp_path / "text.en.gz", b"one\ntwo\n\n")
    tgt = write(tmp_path / "text.de", b"eins\nzwei\ndrei")
    pairs = [("one", "eins"), ("two", "zwei"), ("", "drei")]
    assert list(read_parallel(src, tgt)) == pairs
    files = ParallelFiles(str(src), str(tgt))
    assert list(files) == pairs == list(files)


@pytest.mark.parametrize(("src_lines", "tgt_lines"), [(3, 5), (5, 3), (1, 2)])
def test_sides_of_different_length_are_reported_by_count_and_file(tmp_path, src_lines, tgt_lines):
    src = write(tmp_path / "text.en", b"a\n" * src_lines)
    tgt = write(tmp_path / "text.de.gz", b"b\n" * tgt_lines)
    pairs = read_parallel(src, tgt)
    for _ in range(min(src_lines, tgt_lines)):
        assert next(pairs) == ("a", "b")
    with pytest.raises(InputError) as caught:
        next(pairs)
    message = f"{src} and {tgt} must have the same number of lines, got {src_lines} and {tgt_lines}"
    assert str(caught.value) == message


def streamed(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for chunk in stream_lines(descriptor):
            assert 1 <= len(chunk) <= text_files._CHUNK
            yield from chunk
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_and_standard_input_are_read_alike(tmp_path, monkeypatch, seed):
    """Lines and error messages are the same, whatever the sizes of the blocks that are read."""
    source = random.Random(seed)
    parts = [
        b"a",
        "é".encode(),
        b"\n",
        b"\r\n",
        b"\r",
        b"\xef\xbb\xbf",
        b"x" * 30,
        *([b"\xff", b"\xe2\x82"] if seed % 2 else []),
    ]
    content = b"".join(source.choices(parts, k=60))
    monkeypatch.setattr(text_files, "_BLOCK", source.choice([1, 2, 7, 1000]))
    monkeypatch.setattr(text_files, "_CHUNK", 3)
    path = write(tmp_path / "text", content)
    found = []
    for lines in (read_lines(path), read_lines(write(tmp_path / "text.gz", content)), streamed(path)):
        read = []
        try:
            read += [("line", line) for line in lines]
        except InputError as error:
            read.append(("error", str(error).split(": ", 1)[1]))
        found.append(read)
    assert found[0][-1:] == found[1][-1:] == found[2][-1:]
    if found[0][-1][0] == "line":
        assert found[0] == found[1] == found[2]
        assert [line for _, line in found[0]] == [
            line.removesuffix("\r") for line in content.decode("utf-8-sig").removesuffix("\n").split("\n")
        ]


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 1 << 20)
    path = write(tmp_path / "text", b"short\n" + b"x" * (1 << 21))
    for lines in (read_lines(path), streamed(path)):
        assert next(lines) == "short"
        with pytest.raises(InputError, match=r": line 2 must have at most 1 MiB; is this text\?$"):
            next(lines)
