"""Lines of files and of standard input, and errors that name the file."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from functools import partial

import pyarrow
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from relattn_mt.support.errors import InputError
from relattn_mt.text.patterns import has_text
from relattn_mt.tokens import text_files
from relattn_mt.tokens.text_files import ParallelFiles, read_lines, stream_lines


def zstd(content):
    return pyarrow.compress(content, "zstd", asbytes=True)


COMPRESSORS = ("gzip", partial(gzip.compress, mtime=0)), ("bzip2", bz2.compress), ("xz", lzma.compress), ("zstd", zstd)
LONG = gzip.compress(b"some text that is long enough\n" * 100, mtime=0)


def streamed(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for lines in stream_lines(descriptor):
            assert 1 <= len(lines) <= text_files._CHUNK
            yield from lines
    finally:
        os.close(descriptor)


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # stored as it is
        archive.writestr("a", text)
    return file.getvalue()


def outcome(lines):
    """Return the lines before an error, and the error without its file name."""
    read = []
    try:
        read.extend(lines)
    except InputError as error:
        return read, str(error).split(": ", 1)[1]
    return read, None


@given(
    parts=st.lists(
        st.sampled_from([b"a", "é\u2028\u0085😀".encode(), b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b"x" * 30]),
        min_size=1,
    ),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    wrong=st.sampled_from([b"", b"", b"\xff", b"\xe2\x82", b"\xc3("]),
    rest=st.sampled_from([b"", b"\nb\n"]),
    block=st.sampled_from([1, 2, 7, 1000]),
)
@example(parts=[b"a\n"], mark=b"", wrong=b"\xff", rest=b"\nb\n", block=1000)
def test_files_and_standard_input_are_read_alike(tmp_path_factory, parts, mark, wrong, rest, block):
    """Lines and errors are the same in plain and compressed files, whatever the sizes of the blocks that are read."""
    content = mark + b"".join(parts) + wrong + rest
    directory = tmp_path_factory.mktemp("text")
    paths = [directory / name for name in ("text", "text.gz", "gzip", "bzip2", "xz", "zstd")]
    for path, compress in zip(
        paths, (bytes, gzip.compress, gzip.compress, bz2.compress, lzma.compress, zstd), strict=True
    ):
        path.write_bytes(compress(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_BLOCK", block)
        patch.setattr(text_files, "_CHUNK", 3)
        results = [outcome(lines) for lines in (*map(read_lines, paths), streamed(paths[0]))]
    text = content[: len(content) - len(wrong + rest) if wrong else None].decode("utf-8-sig")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n" * (not wrong)).split("\n")]
    expected = lines, None
    if wrong:
        offset = content.index(wrong, len(mark) + len(b"".join(parts)))
        message = f"not UTF-8 at byte {offset}, in line {len(lines)}: 0x{wrong[0]:02x}"
        expected = lines[:-1], message
    assert results == [expected] * 7


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "no such file"),
        ("cut.gz", LONG[:50], "cannot be read: Compressed file ended before the end"),
        ("cut", bz2.compress(b"line\n" * 100)[:-9], "cannot be read: Compressed file ended before the end"),
        ("cut.xz", lzma.compress(b"line\n" * 100)[:-9], "cannot be read: Compressed file ended before the end"),
        ("damaged.xz", b"\xfd7zXZ\0\0\4", "cannot be read: "),
        ("cut.zst", zstd(b"line\n" * 100)[:-9], "cannot be read: "),
        ("zip", zipped("line\n"), "must be text, got zip"),
        ("damaged.zst", b"\x28\xb5\x2f\xfd\x04\x50", "cannot be read: "),
        ("zst of zst", zstd(zstd(b"line\n")), "must be text, got zstd"),
        ("twice", gzip.compress(LONG, mtime=0), "must be text, got gzip"),
        ("empty.bz2", bz2.compress(b""), "the file is empty"),
        ("plain.gz", b"not gzip at all\n", "cannot be read: Not a gzipped file"),
        ("empty", b"", "the file is empty"),
        *((f"text after {name}", compress(b"a\n") + b"b\n", "cannot be read: ") for name, compress in COMPRESSORS),
        *((f"zip after {name}", compress(b"a\n") + zipped("b"), "cannot be read: ") for name, compress in COMPRESSORS),
        *((f"cut {name}", (compress(b"a\n") * 2)[:-3], "cannot be read: ") for name, compress in COMPRESSORS),
        *(
            (f"{name} after zeros", compress(b"a\n") + bytes(1 << 17) + b"b", "cannot be read: ")
            for name, compress in COMPRESSORS
        ),
        ("lzma after xz", lzma.compress(b"a\n") + lzma.compress(b"b\n", lzma.FORMAT_ALONE), "cannot be read: "),
        ("parquet", b"PAR1\x15\x04", "must be text, got Parquet"),
    ],
)
def test_errors_name_the_file(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_lines(path))
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


WIDE = ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("text", ["One cat.\n", "слово", "مرحبا\n", "สวัสดี", "😀 😀\n", "a\nb\n", "日本 語\nk\n"])
def test_text_in_utf_16_and_utf_32_is_refused(tmp_path, text, encoding, mark):
    (tmp_path / "text").write_bytes((mark + text).encode(encoding))
    (tmp_path / "text.gz").write_bytes(gzip.compress((mark + text).encode(encoding)))
    for lines in (read_lines(tmp_path / "text"), streamed(tmp_path / "text"), read_lines(tmp_path / "text.gz")):
        read, message = outcome(lines)
        assert read == []
        assert "\n" not in message
        if mark or text in ("One cat.\n", "слово", "مرحبا\n"):
            assert message == f"must be UTF-8, got {encoding}; convert it with `iconv -f {encoding} -t UTF-8`"


def test_nul_in_a_line_is_refused_after_the_lines_before_it(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\nthree \0\nfour\n")
    for block in (1, 3, 1000):
        monkeypatch.setattr(text_files, "_BLOCK", block)
        for lines in (read_lines(path), streamed(path)):
            read, message = outcome(lines)
            assert read == ["one", "two"]
            assert message.startswith("line 3 must be text without NUL")
            assert "iconv" in message
    assert list(read_lines(path, accepts_nul=True)) == ["one", "two", "three \0", "four"]


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress, bz2.compress, lambda _: zipped("line\n")])
def test_compressed_standard_input(tmp_path, compress):
    (tmp_path / "text").write_bytes(compress(b"line\n" * 100))
    with pytest.raises(InputError, match=r"^standard input: must be text, got (xz|gzip|bzip2|zip);"):
        list(streamed(tmp_path / "text"))


def test_parts_that_were_compressed_one_by_one(tmp_path):
    for compress in (gzip.compress, bz2.compress, lzma.compress, zstd):
        (tmp_path / "text").write_bytes(b"".join(compress(b"%d\n" % i) for i in range(3)))
        assert list(read_lines(tmp_path / "text")) == ["0", "1", "2"]


def test_padding_and_frames_that_are_skipped(tmp_path):
    """Tools pad xz with zeros; pzstd writes frames without text, also first."""
    skipped = b"\x50\x2a\x4d\x18\3\0\0\0abc"
    one, two = lzma.compress(b"1\n"), zstd(b"1\n")
    for content in (one + bytes(1 << 17) + one, one + bytes(8) + one + bytes(4), skipped + two + skipped + two):
        (tmp_path / "text").write_bytes(content)
        assert list(read_lines(tmp_path / "text")) == ["1", "1"]


def test_lines_without_visible_characters():
    blank = ["", " \t\u00a0\u3000", "\u200b\u200d\ufeff", "\u00ad", "\u2060\u180e\ufe0f", "\u3164\u115f", "\U000e0041"]
    assert not any(map(has_text, blank))
    assert all(map(has_text, (".", "\u0600", "\0", "\ud800", "\ue000", "\u200bא", "\u0301", "\u094d")))
    ignored = regex.compile(r"[\s\p{Default_Ignorable_Code_Point}\u2800\ufff9-\ufffb]")
    assigned = (*range(0x40000), *range(0xE0000, 0xF0100), *range(0x10FF00, 0x110000))
    characters = map(chr, assigned)
    assert [c for c in characters if has_text(c) == (ignored.match(c) is not None)] == list("\x1c\x1d\x1e\x1f")


def test_a_line_without_end_is_refused_after_the_lines_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 1 << 20)
    (tmp_path / "text").write_bytes(b"short\n" + b"x" * (1 << 21))
    for lines in (read_lines(tmp_path / "text"), streamed(tmp_path / "text")):
        assert next(lines) == "short"
        with pytest.raises(InputError, match=r": line 2 must have at most 1 MiB"):
            next(lines)


@pytest.mark.parametrize(("src_lines", "tgt_lines"), [(3, 3), (3, 5), (5, 3)])
def test_sides_have_the_same_number_of_lines(tmp_path, src_lines, tgt_lines):
    src, tgt = tmp_path / "text.en", tmp_path / "text.de.gz"
    src.write_bytes(b"a\n" * src_lines)
    tgt.write_bytes(gzip.compress(b"b\n" * tgt_lines))
    if src_lines == tgt_lines:
        files = ParallelFiles(src, tgt)
        assert list(files) == list(files) == [("a", "b")] * 3
        return
    read = iter(ParallelFiles(src, tgt))
    assert [next(read) for _ in range(3)] == [("a", "b")] * 3
    with pytest.raises(InputError, match=f"{src} and {tgt} must have .* got {src_lines} and {tgt_lines}"):
        next(read)


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_streams_and_what_follows_them(tmp_path, compress):
    """Nothing is dropped without an error: the standard library stops at what is no stream."""
    path, one = tmp_path / "a", compress(b"one\n")
    path.write_bytes(one + bytes(8) + compress(b"two\n") + bytes(4))
    assert list(read_lines(path)) == ["one", "two"]
    for rest in (gzip.compress(b"two\n"), compress(b"two\n")[:-3], b"\0\0\0\0two"):
        path.write_bytes(one + rest)
        with pytest.raises(InputError, match="cannot be read"):
            list(read_lines(path))
