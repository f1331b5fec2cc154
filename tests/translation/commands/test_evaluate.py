"""The commands evaluate and calibrate."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from relattn.translation import bundle, load
from relattn.translation.config import Calibration
from relattn.translation.data.text_files import read_parallel
from relattn.translation.evaluation import score
from relattn.translation.translate.confidence import confidence
from relattn.translation.translate.torch_translator import TorchTranslator
from tests.support.commands import assert_refused

LINES = ["one cat sat", "", "on two mat and one cat", "   ", "two", "one cat sat"]


@pytest.mark.parametrize(
    "arguments", [[], ["--src", "a"], ["--ref", "a"], ["--src", "a", "--ref", "b", "--builtin", "test"]]
)
def test_evaluate_needs_one_text(relattn, model, arguments):
    assert_refused(relattn("evaluate", model, *arguments), "give either --src and --ref, or --builtin")


@pytest.mark.parametrize("value", [0, -3, 10**10])
def test_lines_of_the_builtin_corpus_have_a_range(relattn, model, value):
    message = f"lines must be at least 1 and at most 1,000,000,000, got {value}"
    assert_refused(relattn("evaluate", model, "--builtin", "test", "--lines", value), message)


def test_an_output_that_will_not_do_is_refused_before_translating(relattn, tmp_path, model, monkeypatch):
    monkeypatch.setattr(TorchTranslator, "search_batch", None)
    path = tmp_path / "nowhere" / "out.txt"
    result = relattn("evaluate", model, "--builtin", "test", "--lines", 2, "--out", path)
    message = f"{path}: cannot be written: No such file or directory; what was there before is kept"
    assert_refused(result, message)


def test_evaluate_gives_scores_with_their_signatures(relattn, tmp_path, model, text):
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    (tmp_path / "ref.gz").write_bytes(gzip.compress("\n".join(ref for _, ref in pairs).encode()))
    translations = load(model).translate([src for src, _ in pairs])
    expected = score(translations, [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", tmp_path / "ref.gz", "--out", tmp_path / "out.txt")
    assert relattn("evaluate", model, *arguments) == (0, f"{expected}\n", "")
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in str(expected)
    assert (tmp_path / "out.txt").read_text().splitlines() == translations


def test_confidences_are_calibrated_by_lines_that_are_scored(relattn, reading, text, tmp_path, model, finished):
    path = tmp_path / "bundle"
    shutil.copytree(model, path)
    assert load(path).calibration == Calibration()
    files = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    assert relattn("calibrate", path, *files).code == 0
    translator = load(path)
    assert translator.calibration.bias is not None
    for side in ("src", "tgt"):
        (tmp_path / side).write_text(Path(text[f"valid_{side}"]).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    relattn("calibrate", path, "--src", tmp_path / "src", "--ref", tmp_path / "tgt")
    assert load(path).calibration == translator.calibration  # a blank line says nothing
    found = [best for (best,) in translator.n_best(LINES)]
    means = [found[0].score * ((5 + len(found[0].tokens) + 1) / 6) ** 0.6 / (len(found[0].tokens) + 1)]
    assert found[0].confidence == pytest.approx(confidence(means[0], translator.calibration), abs=1e-6)
    assert found[1].confidence == 1.0
    reading("\n".join(LINES).encode())
    rows = relattn("translate", path, "--format", "jsonl").out.split("\n")[:-1]
    assert [json.loads(row)["confidence"] for row in rows] == pytest.approx([h.confidence for h in found], abs=1e-4)
    assert bundle.read_bundle(f"{finished.out}/bundle").calibration.bias is not None  # after training, by itself


def test_builtin_lines_require_the_builtin_corpus(relattn, model, text):
    files = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    assert_refused(relattn("evaluate", model, *files, "--lines", 3), "--lines requires --builtin")


def test_evaluate_on_the_builtin_corpus(relattn, model, monkeypatch):
    read: list[object] = []
    read_bundle = bundle.read_bundle
    monkeypatch.setattr(bundle, "read_bundle", lambda path: read.append(path) or read_bundle(path))
    result = relattn("evaluate", model, "--builtin", "long", "--lines", 2, "--beam_size", 1)
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines()] == ["BLEU", "chrF", "items"]
    assert list(map(str, read)) == [model]


def test_a_calibration_that_cannot_be_fitted_leaves_the_old_one(relattn, tmp_path, finished):
    path = tmp_path / "bundle"
    shutil.copytree(f"{finished.out}/bundle", path)
    before = (path / "config.yaml").read_bytes()
    for lines in (["one cat"], ["one cat", "one cat", ""]):
        (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
        result = relattn("calibrate", path, "--src", tmp_path / "lines", "--ref", tmp_path / "lines")
        assert_refused(result, "at least two lines")
    assert (path / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("command", [("evaluate",), ("analyze", "positions", "--width=5"), ("analyze", "attention")])
def test_an_output_never_replaces_an_input_or_a_file_of_the_bundle(relattn, tmp_path, text, model, command):
    path, src, ref = tmp_path / "bundle", tmp_path / "src", tmp_path / "ref"
    shutil.copytree(model, path)
    for file, side in ((src, "src"), (ref, "tgt")):
        file.write_text(Path(text[f"valid_{side}"]).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "link").symlink_to(ref)
    inside = path / "config.yaml"
    arguments, outputs = (path, "--src", src, "--ref", ref), [src, ref, tmp_path / "link", inside, path / "new.csv"]
    if command[1:] == ("attention",):
        arguments, outputs = (path, "one cat"), [path / "new.png"]
    before = inside.read_bytes(), src.read_bytes(), ref.read_bytes()
    for output in outputs:
        assert_refused(relattn(*command, *arguments, "--out", output), f"{output}: the output must not")
    assert (inside.read_bytes(), src.read_bytes(), ref.read_bytes()) == before
    assert not list(path.glob("new.*"))
