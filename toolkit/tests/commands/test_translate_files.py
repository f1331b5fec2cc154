"""The command translate with files of text, and input that is refused."""

import gzip
import random
from pathlib import Path

import pytest
from relattn_mt import load
from relattn_mt.commands import translate

from tests.support.commands import assert_refused

SOURCE = random.Random(2)
WORDS = ["one", "cat", "sat", "on", "mat", "and", "two", "1,204.5", "<b>", "-", "  "]
LINES = [" ".join(SOURCE.choices(WORDS, k=1 + i % 9)) for i in range(47)]
LINES[5] = ""


def test_text_has_the_format_of_standard_output(relattn, reading, model, tmp_path, monkeypatch):
    """Numbers of lines count the whole file, which is translated in chunks."""
    monkeypatch.setattr(translate, "CHUNK", 20)
    (tmp_path / "in.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    for flags in ([], ["--format=tsv", "--align"], ["--n_best=2"]):
        reading("".join(f"{line}\n" for line in LINES).encode())
        want = relattn("translate", model, *flags).out
        out = tmp_path / f"out{len(flags)}.txt"
        assert relattn("translate", model, *flags, "--input", tmp_path / "in.gz", "--output", out).code == 0
        assert out.read_text(encoding="utf-8") == want


@pytest.mark.parametrize(
    ("name", "expected_name"),
    [
        ("in", "in.{}"),
        ("in.TXT.GZ", "in.{}.TXT"),
        ("v1.0", "v1.{}.0"),
        ("a.b/in", "a.b/in.{}"),
        ("a.html/in.gz", "a.html/in.{}"),
    ],
)
def test_default_output_has_the_format_of_the_input(relattn, model, tmp_path, name, expected_name):
    """It is not compressed."""
    content = "".join(f"{line}\n" for line in LINES).encode()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith("gz") else content)
    out = tmp_path / expected_name.format(load(model).tgt_lang or "translated")
    result = relattn("translate", model, "--input", tmp_path / name)
    assert (result.code, result.out) == (0, f"{out}\n"), result.err
    assert out.read_text(encoding="utf-8").count("\n") == len(LINES)


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_directory_as_input_is_refused(relattn, model, name):
    assert_refused(relattn("translate", model, "--input", name), "--input must be a file, got a directory")


def test_an_output_that_exists_is_kept(relattn, model, tmp_path):
    given = tmp_path / "in.txt"
    given.write_text("one\n")
    out = tmp_path / "out.txt"
    out.write_text("mine\n")
    assert_refused(relattn("translate", model, "--input", given, "--output", out), "out.txt: exists")
    assert out.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"", "", "in.txt: the file is empty"),
        (b"a\n", "--prefix=in.txt", "--prefix does not work with --input"),
        (b"a\n" + b"b" * 20_000, "", "in.txt: line 2 has 20,000 characters"),
        (b"a\n" * 5000 + b"\0\n", "", "in.txt: line 5001 must be text without NUL"),
        (b"a\n", "--n_best=9", "n_best must be at most the beam size 2, got 9"),
    ],
)
def test_wrong_input(relattn, model, tmp_path, monkeypatch, content, flags, message):
    """Nothing is translated, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_bytes(content)
    assert_refused(relattn("translate", model, "--input=in.txt", "--output=out.txt", *flags.split()), message)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--output=out.txt", "--output requires --input"),
        ("--input=nowhere --output=out", "nowhere: no such file"),
        ("--input=in.txt --output=in.txt", "the output must not replace an input"),
        ("--input=in.txt --output=out.gz", "out.gz: the output must be text"),
        ("--input=in.txt --output=out.docx", "out.docx: the output must be text"),
        ("--input=in.yaml --output=out.yaml", ".yaml is not supported"),
        *(
            (f"--input=in.{kind} --output=out.txt", "is not supported")
            for kind in ("ass", "PNG", "csv.gz", "rst", "ass.xz", "foo", "conf", "de", "tok", "docm")
        ),
        *(
            (f"--input=in.{kind} --output=out.txt", "a document must not be compressed")
            for kind in ("html.gz", "docx.zst", "PO.BZ2", "srt.xz", "jsonl.gz")
        ),
        ("--input=in.jsonl --output=out.txt", "out.txt: the output must be .jsonl"),
        ("--input=/dev/null --output=out", "/dev/null must be a regular file"),
    ],
)
def test_wrong_files(relattn, reading, model, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    reading(b"one\n")
    Path("in.txt").write_text("one\n")
    Path("in.jsonl").write_text('{"text": "one"}\n')
    assert_refused(relattn("translate", model, *flags.split()), message)
    assert {path.name for path in tmp_path.iterdir()} - {"stdin"} == {"in.txt", "in.jsonl"}
