"""The command evaluate."""

import gzip
import shutil
from itertools import chain
from pathlib import Path

import pytest
from relattn_mt import load
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.evaluation import score
from relattn_mt.tokens.text_files import ParallelFiles

from tests.support.commands import assert_refused


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
    pairs = list(ParallelFiles(text["valid_src"], text["valid_tgt"]))
    (tmp_path / "ref.gz").write_bytes(gzip.compress("\n".join(ref for _, ref in pairs).encode()))
    translations = load(model).translate([src for src, _ in pairs])
    expected = score(translations, [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", tmp_path / "ref.gz", "--out", tmp_path / "out.txt")
    assert relattn("evaluate", model, *arguments) == (0, f"{expected}\n", "")
    assert (tmp_path / "out.txt").read_text().splitlines() == translations


def test_output_never_replaces_an_input(relattn, tmp_path, text, model):
    """Nor another file, nor is it written into a bundle."""
    path = Path(shutil.copytree(model, tmp_path / "bundle"))
    src, ref = (Path(shutil.copy(text[f"valid_{side}"], tmp_path / side)) for side in ("src", "tgt"))
    link = tmp_path / "link"
    link.symlink_to(ref)
    arguments, outputs = (path, "--src", src, "--ref", link), [src, ref, link, path / "bundle.json"]
    before = {file: file.read_bytes() for file in (src, ref, *path.iterdir())}
    for output in (*outputs, path / "new.html"):
        assert_refused(relattn("evaluate", *arguments, "--out", output), f"{output}: the output must not")
    assert {file: file.read_bytes() for file in (src, ref, *path.iterdir())} == before
    other = tmp_path / "other"
    other.write_text("x")
    assert_refused(relattn("evaluate", *arguments, "--out", other), f"{other}: exists")
    assert other.read_text() == "x"


def test_a_loop_of_links_is_refused(relattn, tmp_path, text, model):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    files = {"--src": text["valid_src"], "--ref": text["valid_tgt"], "--out": tmp_path / "out"}
    for option, message in ("--src", "cannot be read"), ("--ref", "cannot be read"), ("--out", "cannot be written"):
        arguments = chain.from_iterable((files | {option: loop}).items())
        assert_refused(relattn("evaluate", model, *arguments), f"{loop}: {message}")
    assert loop.is_symlink()
