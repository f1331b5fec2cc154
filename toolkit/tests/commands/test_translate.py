"""The commands translate and score."""

import io
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from relattn_mt import bundle, load
from relattn_mt.support.errors import InputError
from relattn_mt.support.processor import cores
from relattn_mt.translate.documents import translate_document
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import DEFAULTS, TranslateOptions
from relattn_mt.translate.translator import Translator

from tests.support.commands import assert_refused

LINES = ["one cat sat", "", "on two mat and one cat", "   ", "two", "one cat sat"]
INPUT = "\n".join(LINES).encode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--threads=0", "threads must be in [1, 1024], got 0"),
        ("--beam_size=0", "beam_size must be in [1, 1000], got 0"),
        ("--n_best=3", "n_best must be at most the beam size 2, got 3"),
        ("--n_best=0", "n_best must be in [1, 1000], got 0"),
        ("--glossary=nowhere.tsv", "nowhere.tsv: no such file"),
        ("--prefix=nowhere.txt", "nowhere.txt: no such file"),
        *((f"--device {d}", f"device {d} cannot be used: ") for d in ("abacus", "meta")),
    ],
)  # fmt: skip
def test_wrong_options(relattn, reading, model, arguments, message):
    reading(b"one cat\n")
    result = relattn("translate", model, *arguments.split())
    assert_refused(result, message)
    assert len(result.err) < 200


def test_text_in_another_encoding_is_refused(relattn, reading, model, tmp_path):
    """In each place that text is read from."""
    wide, document = tmp_path / "wide", tmp_path / "wide.po"
    for path in (wide, document):
        path.write_bytes("one\tcat\n".encode("utf-16-le"))
    out, refs = tmp_path / "out", ("--src", wide, "--ref", wide)
    for arguments, message in (
        *(
            (("translate", model, *options), f"{wide}: must be UTF-8, got UTF-16LE")
            for options in (("--glossary", wide), ("--prefix", wide), ("--input", wide, "--output", out))
        ),
        (("translate", model, "--input", document, "--output", f"{out}.po"), "the file must be UTF-8"),
        (("evaluate", model, *refs), f"{wide}: must be UTF-8"),
        (("score", model, "--src", wide, "--tgt", wide), f"{wide}: must be UTF-8"),
        (("distill", model, "--data", wide, "--out", out), f"{wide}: must be UTF-8"),
    ):
        reading(b"one\n")
        assert_refused(relattn(*arguments), message)
    for content, message in ((wide.read_bytes(), "must be UTF-8, got UTF-16LE"), (b"\0\n", "line 1 must be text")):
        reading(content)
        assert_refused(relattn("translate", model), f"standard input: {message}")
    assert not any(tmp_path.glob("out*"))


def test_verbose_says_what_runs_the_search(relattn, reading, model):
    for arguments, message in (
        ((), "compiled engine for"),
        (("--precision=int8",), r"compiled engine for .*, int8 with"),
    ):
        reading(b"one cat\n")
        result = relattn("translate", model, "--verbose", *arguments)
        assert re.match(f"search: {message}" if "int8" in message else f"search: {re.escape(message)}", result.err)
        assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "threads", "precision"),
    [("", None, "fp32"), ("--threads=3", 3, "fp32"), ("--precision=int8", None, "int8")],
)
def test_threads_and_precision(relattn, reading, model, monkeypatch, arguments, threads, precision):
    seen, translate = [], Translator.translate_sentences

    def watched(self, *arguments):
        seen.append((self.runner.workers, self.engine.precision))
        return translate(self, *arguments)

    monkeypatch.setattr(Translator, "translate_sentences", watched)
    reading(b"one cat\n")
    assert relattn("translate", model, *arguments.split()).code == 0
    assert seen == [(threads or cores(), precision)]
    with pytest.raises(InputError, match="fp32, bf16, int8, got 'half'"):
        bundle.read_bundle(model).translator(precision="half")


def test_lines_are_translated_in_order(relattn, reading, model, monkeypatch):
    reading("\r\n".join(LINES).encode())
    expected = load(model).translate(LINES)
    assert relattn("translate", model) == (0, "".join(f"{line}\n" for line in expected), "")
    assert (expected[1], expected[3]) == ("", "")
    assert expected[0] == expected[5]
    assert len(set(expected)) == 4
    reading(b"one\ntwo\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = relattn("translate", model)
    assert result.out.count("\n") == 2
    assert "2line" in result.err  # the progress bar of a terminal


class Pipe(io.RawIOBase):
    """A pipe that records what each write delivers."""

    def __init__(self) -> None:
        self.delivered: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        self.delivered.append(bytes(data).decode())
        return len(data)


@pytest.mark.parametrize("split", [(), ("--split",)])
def test_each_translation_is_delivered_at_once(relattn, reading, model, monkeypatch, split):
    """A program at the other end of a pipe, where Python collects 8 KB, gets each line before it writes the next."""
    reading(b"one cat\ntwo\nmat\n")
    pipe = Pipe()
    with monkeypatch.context() as patched, io.TextIOWrapper(io.BufferedWriter(pipe), encoding="utf-8") as out:
        patched.setattr(sys, "stdout", out)
        assert relattn("translate", model, *split).code in (None, 0)
    assert [each.count("\n") for each in pipe.delivered] == [1, 1, 1]


@pytest.mark.parametrize(
    ("flags", "search", "options"),
    [
        ("--beam_size 3 --alpha 0", {"beam_size": 3, "alpha": 0.0}, {}),
        ("--early_stopping true --keep_tags", {"early_stopping": True}, {"keep_tags": True}),
        ("--glossary terms.tsv", {}, {"glossary": Glossary([(1, "cat", "löwin frau")])}),
        ("--prefix prefixes", {}, {}),
    ],
)
def test_options_of_translating(relattn, reading, tmp_path, monkeypatch, model, flags, search, options):
    monkeypatch.chdir(tmp_path)
    lines, prefixes = [*LINES, "one <b>cat</b> 5.5 km", "{name}"], ["Katze", "", "zwei", "", "eins", "", "", ""]
    Path("terms.tsv").write_text("cat\tlöwin frau\n", encoding="utf-8")
    Path("prefixes").write_text("".join(f"{prefix}\n" for prefix in prefixes), encoding="utf-8")
    translator = load(model)
    options = TranslateOptions(n_best=2, search=replace(translator.search, **search), **options)
    expected = translator.n_best(lines, options, prefixes=prefixes if "--prefix" in flags else None)
    assert expected != translator.n_best(lines, TranslateOptions(n_best=2))
    printed = [f"{n} ||| {each.text} ||| {each.score:.4f}\n" for n, best in enumerate(expected) for each in best]
    reading("\n".join(lines).encode())
    result = relattn("translate", model, "--n_best", 2, *flags.split())
    assert (result.code, result.out) == (0, "".join(printed))


def test_input_must_be_utf8(relattn, reading, tmp_path, model, monkeypatch):
    content = b"one cat\ntwo \xff mat\n"
    reading(content)
    result = relattn("translate", model)
    assert (result.code, result.out) == (2, "")  # a file is read before it is translated
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    with os.fdopen(reader) as pipe, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", pipe)
        result = relattn("translate", model)
    assert (result.code, result.out.count("\n")) == (2, 1)  # the lines before are translated
    assert result.err == "relattn-mt: error: standard input: not UTF-8 at byte 12, in line 2: 0xff\n"


def test_formats_and_alignments(relattn, reading, model):
    found = load(model).n_best(LINES, TranslateOptions(n_best=2, align=True))
    expected = [(number, each) for number, best in enumerate(found, start=1) for each in best]
    links = [" ".join(f"{a}-{b}" for a, b in each.alignment) for _, each in expected]
    assert any(links)
    reading(INPUT)
    result = relattn("translate", model, "--n_best", 2, "--align", "--format", "jsonl")
    rows = [json.loads(line) for line in result.out.split("\n")[:-1]]
    assert [(row["line"], row["translation"]) for row in rows] == [(number, each.text) for number, each in expected]
    assert [row["alignment"] for row in rows] == links
    assert [row["score"] for row in rows] == pytest.approx([each.score for _, each in expected], abs=1e-4)
    reading(b"")
    assert relattn("translate", model, "--format", "tsv") == (0, "line\tscore\tconfidence\ttranslation\twarnings\n", "")
    reading(b"one cat sat")
    assert relattn("translate", model, "--align") == (0, f"{found[0][0].text} ||| {links[0]}\n", "")


def test_score(relattn, tmp_path, model):
    """The score of a translation is that of the search, as the sum over its tokens."""
    translator = load(model)
    src = [*filter(str.strip, LINES), ""]
    found = [best for (best,) in translator.n_best(src)]
    for name, lines in (("src", src), ("tgt", [best.text for best in found])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--src", tmp_path / "src", "--tgt", tmp_path / "tgt")
    code, out, err = relattn("score", model, *files)
    assert (code, err) == (0, "")
    for line, best in zip(out.splitlines()[:-1], found, strict=False):
        penalty = ((5 + len(best.tokens) + 1) / 6) ** 0.6
        assert float(line) == pytest.approx(best.score * penalty, abs=2e-4)
    rows = [line.split("\t") for line in relattn("score", model, *files, "--tokens").out.splitlines()]
    assert [total for total, *_ in rows] == out.splitlines()
    for (total, *pieces), best in zip(rows, found, strict=True):
        names, log_probs = zip(*(each.rsplit(" ", 1) for each in pieces), strict=True)
        assert [*names] == [translator.tokenizer.vocabularies[1][i] for i in (*best.tokens, 2)]
        assert sum(map(float, log_probs)) == pytest.approx(float(total), abs=1e-4 * len(log_probs))


def test_a_line_is_divided_into_sentences(relattn, reading, model):
    translator = load(model)
    reading(b"one cat. two\n\nsat on\n")
    first, second, third = translator.translate(["one cat.", "two", "sat on"])
    assert relattn("translate", model, "--split").out == f"{first} {second}\n\n{third}\n"


def test_documents(relattn, tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    translator = load(model)
    Path("a.HTML").write_text("<p>one <b>cat</b>. two</p>", encoding="utf-8")
    Path("a.txt").write_text("one cat. two\n", encoding="utf-8")
    code, out, err = relattn("translate", model, "--input", "a.HTML", "--output", "b.html")
    assert (code, out, "b.html: " in err, "of 2 sentences have warnings" in err) == (0, "", True, True)
    wanted = translate_document(translator, "a.html", Path("a.HTML").read_bytes(), DEFAULTS)
    assert Path("b.html").read_bytes() == wanted.content
    first, second = translator.translate(["one cat.", "two"])
    assert relattn("translate", model, "--input", "a.txt", "--output", "b.txt", "--document").code == 0
    assert Path("b.txt").read_text(encoding="utf-8") == f"{first} {second}\n"
    Path("a.csv").write_text("a,b\n", encoding="utf-8")
    for flags, message in (
        ("--input a.HTML --output b.html", "exists"),
        ("--output c.html", "--output requires --input"),
        ("--input a.HTML --output no/c.html", "no/c.html: its directory must exist"),
        ("--input a.HTML --output c.html --report no/c.tsv", "no/c.tsv: its directory must exist"),
        ("--input a.HTML --output c.html --report a.txt", "a.txt: exists"),
        ("--input a.txt --output c.txt --report c.tsv", "--report requires --input with a document"),
        ("--input a.HTML --output c.html --report a.HTML", "must not replace an input"),
        ("--input a.HTML --output c.html --report c.html", "must not replace an input"),
        ("--input a.HTML --output c.txt", "the output must be .html"),
        ("--input no.docx --output c.docx", "no.docx"),
        ("--input a.csv --output c.csv", ".csv is not supported"),
        ("--input a.csv --output c.csv --document", "--document requires --input in .txt"),
        ("--document", "requires --input"),
        ("--split --input a.txt --output c.txt", "--split does not work with --input"),
    ):
        assert_refused(relattn("translate", model, *flags.split()), message)
    assert not list(tmp_path.glob("c.*"))


@pytest.mark.parametrize("option", ["--n_best=1", "--format=tsv", "--align", "--keep_tags", "--prefix=a.html"])
def test_options_for_lines_are_refused_for_texts(relattn, tmp_path, monkeypatch, model, option):
    monkeypatch.chdir(tmp_path)
    Path("a.html").write_text("one cat", encoding="utf-8")
    name = option.partition("=")[0]
    assert_refused(relattn("translate", model, "--split", option), f"--split does not work with {name}")
    message = f"{name} does not work with --input" if name == "--prefix" else f"a document does not work with {name}"
    assert_refused(relattn("translate", model, "--input=a.html", option), message)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_document_without_an_output_and_its_report(relattn, tmp_path, monkeypatch, model):
    """The report has the sentences in order, with what the translator says of each, in one line each."""
    monkeypatch.chdir(tmp_path)
    translator = load(model)
    Path("my.page.html").write_text("<p>one\t<b>cat</b>\nsat. two 1234 cats</p><p>sat on</p>", encoding="utf-8")
    name = f"my.page.{translator.tgt_lang or 'translated'}.html"
    code, _, err = relattn("translate", model, "--input", "my.page.html", "--report", "report.tsv")
    assert code == 0
    segments = translate_document(translator, "a.html", Path("my.page.html").read_bytes(), DEFAULTS).segments
    rows = [line.split("\t") for line in Path("report.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["sentence", "source", "score", "confidence", "translation", "warnings"]
    assert [row[1] for row in rows[1:]] == ["one cat sat.", "two 1234 cats", "sat on"]
    for number, (row, segment) in enumerate(zip(rows[1:], segments, strict=True), start=1):
        assert row[0] == str(number)
        assert row[3:] == [
            str(round(segment.translation.confidence, 4)),
            segment.translation.text,
            " ".join(segment.translation.warnings),
        ]
    count = sum(bool(segment.translation.warnings) for segment in segments)
    assert count > 0
    assert f"{name}: {count} of 3 sentences have warnings; see report.tsv" in err
    assert Path(name).exists()
    assert_refused(relattn("translate", model, "--input", "my.page.html"), f"{name}: exists")
    assert relattn("translate", model, "--input", "my.page.html", "--output", "b.html", "--quiet").err == ""
