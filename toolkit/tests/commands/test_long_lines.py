"""Lines that are longer than a model can read: found before anything is translated, copied, or divided."""

import gzip
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from relattn_mt import load
from relattn_mt.bundle import Bundle
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.tokens import text_files
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.documents import translate_texts
from relattn_mt.translate.options import TranslateOptions

from tests.support.bundles import LINES
from tests.support.commands import assert_refused

SENTENCE = "one apple and two pears"
BASE64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo" * 150  # 5,250 letters
LONG = [BASE64, "x" * 20_000]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a bundle that reads at most 20 pieces."""
    path = tmp_path_factory.mktemp("short") / "bundle"
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(LINES * 5, 300, seed=1)
    size = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 1, "decoder_layers": 1}
    config = ModelConfig(**size, positions="learned", max_positions=21, alignment_layer=0)
    weights = arrays_of(Transformer(config, tokenizer.vocab_size))
    Bundle(path, config, SearchConfig(beam_size=2), "en", "de", weights, tokenizer).save("")
    return str(path)


def text_of(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write(directory: Path, kind: str, lines: list[str]) -> Path:
    """Write lines as a file of some kind."""
    path = directory / f"in.{kind}"
    path.write_bytes(gzip.compress(text_of(lines)) if kind == "gz" else text_of(lines))
    return path


@pytest.mark.parametrize("kind", ["txt", "gz"])
def test_all_long_lines_of_a_file_are_reported_before_any_is_translated(relattn, model, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(NativeEngine, "search", None)  # nothing is translated
    lines = [SENTENCE] * 10
    lines[5:5] = LONG[:1]
    lines[8:8] = LONG[1:]
    path = write(tmp_path, kind, lines)
    output = tmp_path / "out.txt"
    result = relattn("translate", model, "--input", path, "--output", output)
    assert_refused(result, f"{path}: line 6 has ")
    assert "line 9 has 20,000 characters" in result.err
    assert list(tmp_path.iterdir()) == [path]


def test_long_lines_of_standard_input_and_of_evaluate_are_reported_first(
    relattn, reading, model, tmp_path, monkeypatch
):
    monkeypatch.setattr(NativeEngine, "search", None)
    lines = [SENTENCE] * 3000
    lines[1500], lines[2999] = LONG
    reading(text_of(lines))
    result = relattn("translate", model)
    assert_refused(result, "standard input: line 1501 has ")
    assert "line 3000 has" in result.err
    path = write(tmp_path, "txt", lines)
    result = relattn("evaluate", model, "--src", path, "--ref", path)
    assert_refused(result, f"{path}: line 1501 has ")
    assert "line 3000 has" in result.err


def test_many_long_lines_are_one_short_message(relattn, model, tmp_path):
    path = write(tmp_path, "txt", [BASE64] * 40)
    result = relattn("translate", model, "--input", path, "--output", tmp_path / "out.txt")
    assert_refused(result, "40 of the input")
    assert len(result.err) < 700


def test_long_lines_are_copied(relattn, reading, model, tmp_path):
    """Other lines have the translations that they have without them."""
    others = [f"{SENTENCE}{' one' * i}" for i in range(6)]
    lines = [*others[:2], LONG[0], *others[2:], LONG[1]]
    expected = load(model).translate(others)
    expected = [*expected[:2], LONG[0], *expected[2:], LONG[1]]
    reading(text_of(lines))
    result = relattn("translate", model, "--long_lines", "copy")
    assert result.out.splitlines() == expected
    assert "line 3 has" in result.err
    assert "line 8 has" in result.err
    path = write(tmp_path, "txt", lines)
    output = tmp_path / "out.txt"
    flags = ("--long_lines=copy", "--format=tsv")
    assert relattn("translate", model, "--input", path, "--output", output, *flags).code == 0
    rows = [row.split("\t") for row in output.read_text().splitlines()[1:]]
    assert [row[3] for row in rows] == expected
    assert ["long" in row[4] for row in rows] == [line in LONG for line in lines]
    out = tmp_path / "translations"
    assert relattn("evaluate", model, "--src", path, "--ref", path, "--out", out, "--long-lines=copy").code == 0
    assert out.read_text().splitlines() == expected


def test_long_lines_are_divided(relattn, reading, short):
    """Their sentences have the translations that they have in a document."""
    long = "One apple and two. " * 4 + "Two cats sat."
    lines = [SENTENCE, long, "two"]
    texts = translate_texts(load(short), [Marked(long)], TranslateOptions()).texts
    expected = load(short).translate([SENTENCE, "two"])
    expected.insert(1, texts[0].text)
    reading(text_of(lines))
    result = relattn("translate", short, "--long_lines", "split")
    assert result[:2] == (0, text_of(expected).decode())
    assert "has" not in result.err
    assert {*re.findall(r"line (\d+)", result.err)} <= {"1", "2", "3"}
    reading(text_of([SENTENCE, "x" * 90, long, "two"]))
    rows = [
        row.split(" ||| ") for row in relattn("translate", short, "--long_lines=split", "--n_best=2").out.splitlines()
    ]
    best = {row[0]: row[1] for row in reversed(rows)}
    assert [best["0"], best["2"], best["3"]] == expected
    assert best["1"]


def alone(translator: Callable, line: str) -> bool:
    """Return whether a line is translated alone."""
    try:
        translator.translate([line])
    except InputError:
        return False
    return True


def test_the_longest_line_of_a_model_is_not_long(short):
    """Each line that is refused alone is named, and no other; parts and copies are translations of all."""
    translator = load(short)
    lengths = {f"{'a' * n}": len(translator.tokenizer.encode("a" * n)) for n in range(1, 40)}
    lines = [*lengths, "", " ", "1 " * 30, "https://example.com/" + "a" * 300, f"one {'b' * 18}", "é" * 9, "é" * 11]
    refused = [number for number, line in enumerate(lines, start=1) if not alone(translator, line)]
    assert [n for n in refused if n <= len(lengths)] == [n for n, k in enumerate(lengths.values(), start=1) if k > 20]
    with pytest.raises(InputError) as error:
        translator.translate(lines)
    assert str(error.value).startswith(f"line {refused[0]} has 21 pieces, line {refused[1]} has ")
    copied = translator.translate(lines, TranslateOptions(long_lines="copy"))
    for number, line in enumerate(lines, start=1):
        expected = [line] if number in refused else translator.translate([line])
        assert copied[number - 1 : number] == expected
    divided = translator.n_best(lines, TranslateOptions(long_lines="split"))
    for number in refused:
        (translation,) = divided[number - 1]
        assert translation.text
        assert translation.score < 0
        assert 0 < translation.confidence < 1


def test_long_lines_are_dropped_by_distill(relattn, model, tmp_path):
    """Instead of ending it: 5,000 letters are not too many for its rules."""
    path = write(tmp_path, "txt", [SENTENCE, BASE64[:4990], "two cats and one apple"])
    rules = ("--min_script=null", "--max_ratio=null", "--min_score=null")
    assert relattn("distill", model, "--data", path, "--out", tmp_path / "out", *rules).code == 0
    kept = gzip.decompress((tmp_path / "out" / "train.en.gz").read_bytes()).decode().splitlines()
    assert SENTENCE in kept
    assert BASE64[:4990] not in kept


def test_a_pipe_is_not_read_to_its_end(relattn, model, monkeypatch, tmp_path):
    """The lines of a pipe are translated as they arrive."""
    reader, writer = os.pipe()
    os.write(writer, text_of(["one", "two"]))
    os.close(writer)
    with os.fdopen(reader) as pipe, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", pipe)
        assert relattn("translate", model).out.splitlines() == load(model).translate(["one", "two"])


def test_messages_about_a_document_name_its_file_and_sentences(relattn, short, tmp_path):
    """It has no lines."""
    path, output = tmp_path / "a.html", tmp_path / "b.html"
    path.write_text(f"<p>two.</p>\n<p>{'a' * 30}</p>\n")
    assert_refused(relattn("translate", short, "--input", path, "--output", output), f"{path}: sentence 2 has ")
    path.write_text(f"<p>two.</p>\n<p>{'a' * 15}</p>\n")
    result = relattn("translate", short, "--input", path, "--output", output)
    assert result.code == 0
    assert "sentence 2: its translation was cut" in result.err
    assert "line " not in result.err
    for name, content in (
        ("a.json", "{"),
        ("a.po", "msgid 3"),
        ("a.xlf", "<a></a>"),
        ("a.docx", "PK"),
        ("a.srt", "\0"),
    ):
        (tmp_path / name).write_text(content)
        assert_refused(relattn("translate", short, "--input", tmp_path / name), f"{tmp_path / name}: ")


def test_sentences_of_divided_lines_are_counted_to_the_end(relattn, reading, short, monkeypatch):
    """Not anew in each part of standard input."""
    monkeypatch.setattr(text_files, "_CHUNK", 2)
    reading(text_of(["1", "2", "3. 4. 5", "a" * 15]))
    assert re.findall(r"(\S+ \d+): its translation", relattn("translate", short, "--split").err) == ["sentence 6"]


def test_export_does_not_warn_about_its_own_lines(relattn, short, tmp_path):
    result = relattn("export", "ctranslate2", short, "--out", tmp_path / "random", "--check_count=5")
    assert (result.code, "cut" in result.err) == (0, False)
    (tmp_path / "lines").write_text(f"{'a' * 15}\n")
    given = ("--check_lines", tmp_path / "lines")
    own = relattn("export", "ctranslate2", short, "--out", tmp_path / "own", *given)
    assert "line 1: its translation was cut" in own.err


def test_options_that_do_not_fit(relattn, reading, model):
    reading(b"one\n")
    assert_refused(relattn("translate", model, "--long_lines=split", "--align"), "does not work with align")
    assert_refused(relattn("translate", model, "--long_lines=drop"), "long_lines")
