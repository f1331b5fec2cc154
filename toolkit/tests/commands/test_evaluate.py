"""The command evaluate."""

import gzip
import shutil
from pathlib import Path

import pytest
from relattn_mt import load
from relattn_mt.data.text_files import read_parallel
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.evaluation import paired_bootstrap, score

from testing.bundles import save_random_bundle
from testing.commands import assert_refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((arguments, "missing argument: ") for arguments in ("", "--src a", "--ref a")),
        ("--src valid.src --ref valid.tgt --out no/out.txt", "no/out.txt: cannot be written"),
    ],
)
def test_wrong_arguments(relattn, model, text, monkeypatch, arguments, message):
    monkeypatch.chdir(Path(text["valid_src"]).parent)
    monkeypatch.setattr(NativeEngine, "search", None)  # nothing is translated
    assert_refused(relattn("evaluate", model, *arguments.split()), message)


def test_scores_and_translations(relattn, tmp_path, model, text):
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    (tmp_path / "ref.gz").write_bytes(gzip.compress("\n".join(ref for _, ref in pairs).encode()))
    translations = load(model).translate([src for src, _ in pairs])
    expected = score(translations, [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", tmp_path / "ref.gz", "--out", tmp_path / "out.txt")
    assert relattn("evaluate", model, *arguments) == (0, f"{expected}\n", "")
    assert (tmp_path / "out.txt").read_text().splitlines() == translations


def test_comparison_of_bundles(relattn, tmp_path, model, text):
    """Each row has the scores of one bundle, and the p-value of its difference to the first."""
    other = save_random_bundle(tmp_path / "other")
    arguments = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    result = relattn("evaluate", model, other, model, *arguments)
    assert result.code == 0
    sources, references = zip(*read_parallel(text["valid_src"], text["valid_tgt"]), strict=True)
    translations = [load(path).translate(sources) for path in (model, other)]
    p = paired_bootstrap(translations[0], translations[1], references)
    rows = [line.split() for line in result.out.splitlines()[1:4]]
    for row, path, lines, difference in zip(
        rows, (model, other, model), (*translations, translations[0]), ([], [f"{p:.3f}"], ["1.000"]), strict=True
    ):
        scores = score(lines, references)
        assert row == [str(path), f"{scores.bleu:.2f}", f"{scores.chrf:.2f}", *difference]
    (tmp_path / "empty").write_text("")
    empty = ("--src", tmp_path / "empty", "--ref", tmp_path / "empty")
    assert_refused(relattn("evaluate", model, other, *empty), "the file is empty")
    assert_refused(
        relattn("evaluate", model, other, *arguments, "--out", "x"), "several bundles do not work with --out"
    )


@pytest.mark.parametrize("command", ["evaluate", "analyze attention"])
def test_output_never_replaces_an_input(relattn, tmp_path, text, model, command):
    """Nor is it written into a bundle."""
    path = Path(shutil.copytree(model, tmp_path / "bundle"))
    src, ref = (Path(shutil.copy(text[f"valid_{side}"], tmp_path / side)) for side in ("src", "tgt"))
    link = tmp_path / "link"
    link.symlink_to(ref)
    arguments, outputs = (path, "--src", src, "--ref", link), [src, ref, link, path / "config.yaml"]
    if command == "analyze attention":
        arguments, outputs = (path, "one cat"), []
    before = {file: file.read_bytes() for file in (src, ref, *path.iterdir())}
    for output in (*outputs, path / "new.html"):
        assert_refused(relattn(*command.split(), *arguments, "--out", output), f"{output}: the output must not")
    assert {file: file.read_bytes() for file in (src, ref, *path.iterdir())} == before
