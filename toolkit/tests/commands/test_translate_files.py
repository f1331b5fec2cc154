"""The command translate with files: text and tables, shards, interruptions, input that is refused."""

import gzip
import json
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from relattn_mt import bulk, load
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

from tests.support.commands import assert_refused

SOURCE = random.Random(2)
WORDS = ["one", "cat", "sat", "on", "mat", "and", "two", "1,204.5", "<b>", "-", "  "]
LINES = [" ".join(SOURCE.choices(WORDS, k=1 + i % 9)) for i in range(47)]
LINES[5] = ""
JSON = '{"id": %d0000000000000000000000, "x": 1.10, "text" :%s, "other": "\\ud83d\\u00e9", "y": [1, {}]} '
ROWS = [JSON % (i + 1, json.dumps(line)) for i, line in enumerate(LINES)]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PART", 3)


def expected(model: str, **options: Any) -> list[dict]:
    """Translations as columns, each line translated alone."""
    translator, rows = load(model), []
    for line in LINES:
        (best, *_), *_ = translator.n_best([line], TranslateOptions(**options))
        row = {"score": round(best.score, 4), "confidence": round(best.confidence, 4), "translation": best.text}
        rows.append({**row, "warnings": " ".join(best.warnings)})
        if options.get("align"):
            rows[-1]["alignment"] = " ".join(f"{i}-{j}" for i, j in best.alignment)
    return rows


def same(rows: list[dict], want: list[dict]) -> bool:
    """Return whether rows are equal, but for the last digit of numbers."""
    return [{name: pytest.approx(value, abs=2e-4) for name, value in row.items()} for row in want] == rows


def write(path: Path, kind: str) -> Path:
    """Write LINES as text or as a table."""
    path = path.with_suffix(f".{kind}")
    path.write_text("".join(f"{line}\n" for line in (ROWS if kind == "jsonl" else LINES)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("flags", "options"),
    [("", {}), ("--align", {"align": True}), ("--keep_tags --no_copy", {"keep_tags": True, "copy": False})],
)
def test_columns_are_added_to_tables(relattn, model, tmp_path, flags, options):
    out, given = tmp_path / "out.jsonl", write(tmp_path / "in", "jsonl")
    result = relattn("translate", model, "--input", given, "--output", out, *flags.split())
    assert (result.code, result.out) == (0, f"{out}\n"), result.err
    want = expected(model, **options)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(row.rstrip()[:-1]) for line, row in zip(lines, ROWS, strict=True))
    assert same([{name: json.loads(line)[name] for name in want[0]} for line in lines], want)


@pytest.mark.parametrize("kind", ["txt", "tsv", "jsonl"])
def test_shards_in_any_order_are_one_run_byte_by_byte(relattn, model, tmp_path, monkeypatch, kind):
    """Two of eight are stopped in the middle and run again."""
    given = write(tmp_path / "in", "txt" if kind == "tsv" else kind)
    flags = ["--format=tsv", "--n_best=2"] if kind == "tsv" else []
    command = ["translate", model, "--input", given, *flags, "--output"]
    assert relattn(*command, tmp_path / f"whole.{kind}").code == 0
    translate_sentences, calls = Translator.translate_sentences, []

    def counted(self, sentences, call, first_line, report_done):
        calls.append(first_line)
        if first_line in stops:
            raise KeyboardInterrupt
        return translate_sentences(self, sentences, call, first_line, report_done)

    monkeypatch.setattr(Translator, "translate_sentences", counted)
    out, stops = tmp_path / f"out.{kind}", {16, 40}  # the last part of the third shard, and of the seventh
    for shard in (3, 8, 1, 7, 2, 5, 4, 6):
        if shard in (3, 7):
            with pytest.raises(KeyboardInterrupt):
                relattn(*command, out, "--shard", f"{shard}/8")
            assert not (tmp_path / f"out-0000{shard}-of-00008.{kind}").exists()
        else:
            assert relattn(*command, out, "--shard", f"{shard}/8").code == 0
    stops.clear()
    first = list(calls)
    for shard in range(1, 9):
        assert relattn(*command, out, "--shard", f"{shard}/8").code == 0
    assert len(calls) - len(first) == 2  # what was complete is not translated again
    shards = sorted(tmp_path.glob("out-*"))
    assert [path.name for path in shards] == [f"out-0000{i}-of-00008.{kind}" for i in range(1, 9)]
    assert not [*tmp_path.glob(".out*/part-*")]
    whole = tmp_path / f"whole.{kind}"
    assert b"".join(path.read_bytes() for path in shards) == whole.read_bytes()


def test_text_has_the_format_of_standard_output(relattn, reading, model, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    for flags in ([], ["--format=tsv", "--align"], ["--n_best=2"], ["--sampling", "--n_best=2"]):
        reading("".join(f"{line}\n" for line in LINES).encode())
        want = relattn("translate", model, *flags).out
        out = tmp_path / f"out{len(flags)}{'sampling' * ('--sampling' in flags)}.txt"
        assert relattn("translate", model, *flags, "--input", tmp_path / "in.gz", "--output", out).code == 0
        assert out.read_text(encoding="utf-8") == want


@pytest.mark.parametrize(
    ("name", "expected_name"),
    [
        ("in.jsonl", "in.{}.jsonl"),
        ("a.b.jsonl.gz", "a.b.{}.jsonl"),
        ("in", "in.{}"),
        ("in.TXT.GZ", "in.{}.TXT"),
        ("v1.0", "v1.{}.0"),
    ],
)
def test_default_output_has_the_format_of_the_input(relattn, model, tmp_path, name, expected_name):
    """It is not compressed."""
    lines = ROWS if "jsonl" in name else LINES
    content = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith("gz") else content)
    out = tmp_path / expected_name.format(load(model).tgt_lang or "translated")
    result = relattn("translate", model, "--input", tmp_path / name)
    assert (result.code, result.out) == (0, f"{out}\n"), result.err
    assert out.read_text(encoding="utf-8").count("\n") == len(LINES)


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_directory_as_input_is_refused(relattn, model, name):
    assert_refused(relattn("translate", model, "--input", name), "--input must be a file, got a directory")


def test_finished_outputs_are_kept(relattn, model, another, tmp_path, monkeypatch):
    given, out = write(tmp_path / "in", "jsonl"), tmp_path / "out.jsonl"
    command = ["translate", model, "--input", given, "--output", out]
    assert relattn(*command).code == 0
    before = out.stat()
    assert relattn(*command).out == f"{out}\n"
    assert out.stat() == before
    assert_refused(
        relattn(*command, "--align"), "was made from other text or with other options: options.align: False → True"
    )
    assert_refused(relattn("translate", another, *command[2:]), "with other options: model: ")
    given.write_text(given.read_text() + ROWS[0] + "\n")
    assert_refused(relattn(*command), "was made from other text or with other options: input: ")
    assert out.stat() == before
    given.write_text("".join(f"{row}\n" for row in given.read_text().splitlines()[:-1]))
    out.write_bytes(out.read_bytes()[:-9])
    assert_refused(relattn(*command), f"was complete with {before.st_size:,} bytes, and changed later")
    other = tmp_path / "other.jsonl"
    other.write_text("mine\n")
    assert_refused(relattn(*command[:-1], other), "another program made it")
    assert other.read_text() == "mine\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "other.jsonl", ".out.jsonl.relattn"}


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("in.jsonl", b'{"text": "a"}\n{"t": "a"}\n', "", "in.jsonl: line 2 must have a column 'text', got t"),
        ("in.jsonl", b'{"text": "a"}\n', "--column=src", "in.jsonl: line 1 must have a column 'src', got text"),
        ("in.jsonl", b'{"text": null}\n', "", "in.jsonl: line 1: column 'text' must be text, got null"),
        ("in.jsonl", b'{"text": 7}\n', "", "in.jsonl: line 1: column 'text' must be text, got int"),
        ("in.jsonl", b'{"text": "a"}\n\n', "", "in.jsonl: line 2: must be a JSON object"),
        ("in.JSONL", b'["text"]\n', "", "in.JSONL: line 1 must be a JSON object"),
        ("in.jsonl", b'["text"]\n', "", "in.jsonl: line 1 must be a JSON object, got '[\"text\"]'"),
        ("in.jsonl", b'{"text": "a"\n', "", "in.jsonl: line 1: must be a JSON object"),
        ("in.jsonl", b"[" * 100_000, "", "in.jsonl: line 1: must be a JSON object"),
        ("in.jsonl", b'{"text": "a", "score": 1}\n', "", "must not have a column score, because translations add it"),
        ("in.jsonl", b'{"text": "\\ud800"}\n', "", "in.jsonl: line 1 must be UTF-8"),
        ("in.jsonl", b'{"text": "' + b"a" * 20_000 + b'"}\n', "", "in.jsonl: line 1 has 20,000 characters"),
        ("in.jsonl", b"", "", "in.jsonl: the file is empty"),
        ("in.jsonl", b'{"text": "a"}\n', "--n_best=2", "do not work with a table"),
        ("in.jsonl", b'{"text": "a"}\n', "--format=tsv", "do not work with a table"),
        ("in.jsonl", b'{"text": "a"}\n', "--prefix=in.jsonl", "--prefix does not work with --input"),
        ("in.txt", b"a\n" + b"b" * 20_000, "", "in.txt: line 2 has 20,000 characters"),
        ("in.txt", b"a\n", "--n_best=9", "n_best must be at most the beam size 2, got 9"),
        ("in.txt", b"a\n", "--column=text", "--column requires a table"),
        *(
            ("in.txt", b"a\n", f"--shard={shard}", f"shard must be i/n with 1 ≤ i ≤ n, such as 3/8, got '{shard}'")
            for shard in ("9/8", "0/8", "3", "1/0", "-1/2", "1/2/3", "a/b", "1.5/2")
        ),
    ],
)  # fmt: skip
def test_wrong_input(relattn, model, tmp_path, monkeypatch, name, content, flags, message):
    """Nothing is translated, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    result = relattn("translate", model, "--input", name, "--output", f"out{Path(name).suffix}", *flags.split())
    assert_refused(result, message)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--output=out.txt", "--output requires --input"),
        ("--shard=1/2", "--shard requires --input"),
        ("--column=text", "--column requires --input"),
        ("--input=nowhere --output=out", "nowhere: no such file"),
        ("--input=in.txt --output=in.txt", "the output must not replace an input"),
        ("--input=in.txt --output=out.gz", "out.gz: the output must be text"),
        ("--input=in.txt --output=out.docx", "out.docx: the output must be text"),
        ("--input=in.yaml --output=out.yaml", ".yaml is not supported"),
        *(
            (f"--input=in.{kind} --output=out.txt", "is not supported")
            for kind in ("ass", "PNG", "csv.gz", "rst", "ass.xz")
        ),
        *(
            (f"--input=in.{kind} --output=out.txt", "a document must not be compressed")
            for kind in ("html.gz", "docx.zst", "PO.BZ2", "srt.xz")
        ),
        ("--input=in.jsonl --output=out.txt", "out.txt: the output must be .jsonl"),
        ("--input=in.jsonl --output=out.jsonl.gz", "out.jsonl.gz: the output must be .jsonl"),
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


def test_progress_is_shown_within_a_part(relattn, model, tmp_path, monkeypatch):
    counts: list[int] = []
    monkeypatch.setattr(bulk, "PART", 100)
    monkeypatch.setattr(bulk, "progress_bar", lambda *_, **__: nullcontext(counts.append))
    relattn("translate", model, "--input", write(tmp_path / "in", "txt"), "--output", tmp_path / "out.txt")
    assert sum(counts) == len(LINES)
    assert len(counts) > 1
