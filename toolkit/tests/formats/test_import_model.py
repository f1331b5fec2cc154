"""Imported models are bundles: they are read, exported again, analyzed and trained."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from relattn_mt import bundle
from relattn_mt.config import DataConfig, Recipe, SearchConfig, TrainConfig
from relattn_mt.formats import argos
from relattn_mt.formats.ctranslate2 import write as ctranslate2
from relattn_mt.formats.import_model import import_model
from relattn_mt.formats.parity import Report
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.training.train import train

from research.positions import by_position
from tests.support.bundles import tensors_of
from tests.support.commands import assert_refused
from tests.support.foreign_bundles import FIXTURES, SEARCH, convert_opennmt_py, make_bundle

LINES = ["one apple and two pears", "an old man", "17 apples, 4 pears"]
TARGETS = ["zwei Birnen", "ein alter Mann", "17 Birnen"]


def run_import(path: Path, out: Path, **options: object) -> Report:
    model = FIXTURES / "sentencepiece.model"
    defaults = {"tokenizer": model, "tgt_tokenizer": None, "src_lang": "en", "tgt_lang": "de"}
    return import_model(path, out, **{**defaults, "sample": 5, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Path:
    """A bundle of a converted model of OpenNMT-py. Read it, do not write to it."""
    out = tmp_path_factory.mktemp("imported") / "bundle"
    run_import(convert_opennmt_py(out.with_name("converted")), out)
    return out


def test_bundles_of_imported_models(imported, tmp_path):
    path = Path(shutil.copytree(imported, tmp_path / "bundle"))
    of_tokenizer = {"tokenizer.model", "tokenizer.target.model", "vocabulary.json"}
    assert {file.name for file in path.iterdir()} == {"bundle.json", "model.safetensors", "README.md", *of_tokenizer}
    parts = bundle.read_bundle(path)
    assert isinstance(parts.tokenizer, ImportedTokenizer)
    assert (parts.src_lang, parts.tgt_lang, parts.tokenizer.vocab_sizes) == ("en", "de", (46, 37))
    assert "train.init_from" in parts.card
    vocabulary = json.loads((path / "vocabulary.json").read_text())
    vocabulary["target"][7:9] = vocabulary["target"][8:6:-1]
    (path / "vocabulary.json").write_text(json.dumps(vocabulary))
    with pytest.raises(InputError, match=r"tokenizer\.model: damaged, or not the one"):
        bundle.read_bundle(path)
    (path / "vocabulary.json").unlink()
    with pytest.raises(InputError, match=r"it has no vocabulary\.json"):
        bundle.read_bundle(path)


def test_an_imported_model_is_analyzed_and_trained(imported, tmp_path):
    """The first step has the loss of the imported model, so the pieces have kept their ids."""
    parts = bundle.read_bundle(imported)
    ours = parts.translator()
    sides = [ours.tokenizer.encode(line) for line in LINES], [ours.tokenizer.encode_target(line) for line in TARGETS]
    scores = ours.log_probs(*sides)
    pieces, ends = [x for row in scores for x in row[:-1]], [row[-1] for row in scores]
    bins = by_position(parts.torch_translator(), list(zip(LINES, TARGETS, strict=True)), width=100)
    assert bins[0].nats == pytest.approx(-sum(pieces) / len(pieces), abs=1e-5)
    assert bins[-1].nats == pytest.approx(-sum(ends) / len(ends), abs=1e-5)
    src, tgt = tmp_path / "train.en", tmp_path / "train.de"
    src.write_text("\n".join(LINES) + "\n")
    tgt.write_text("\n".join(TARGETS) + "\n")
    files = {"train_src": str(src), "train_tgt": str(tgt), "valid_src": str(src), "valid_tgt": str(tgt)}
    steps = {"steps": 1, "warmup_steps": 1, "log_every": 1, "average": 1, "valid_every": 1}
    recipe = Recipe(
        out=str(tmp_path / "run"),
        model=replace(parts.model, dropout=0.0, attention_dropout=0.0),
        data=DataConfig(**files, max_tokens=200),
        train=TrainConfig(init_from=str(imported), learning_rate_factor=1e-9, label_smoothing=0.0, **steps),
        search=SearchConfig(beam_size=1, max_length_extra=3, max_length_ratio=0),
    )
    trained = bundle.read_bundle(train(recipe, show=False))
    assert trained.tokenizer.digest == parts.tokenizer.digest
    torch.testing.assert_close(tensors_of(trained), tensors_of(parts), rtol=1e-5, atol=1e-6)
    names, values = (line.split(",") for line in (tmp_path / "run" / "log.csv").read_text().splitlines()[:2])
    logged, loss = dict(zip(names, values, strict=True)), -sum(pieces + ends) / len(pieces + ends)
    assert [float(logged[name]) for name in ("valid_loss", "loss")] == pytest.approx([loss, loss], abs=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"relative_tables": "keys"}, {"positions": "learned", "max_positions": 60}], ids=str
)
def test_an_export_is_imported_as_the_same_bundle(tmp_path, options):
    """A table that the model does not have becomes zeros."""
    parts = make_bundle(tmp_path / "a", languages=("pt_BR", "en"), **options)
    ctranslate2.export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    report = run_import(tmp_path / "out", tmp_path / "b", tokenizer=None, src_lang="", tgt_lang="")
    assert report.parities["float32"].lines == 5
    again = bundle.read_bundle(tmp_path / "b")
    assert (again.src_lang, again.tgt_lang, again.search) == ("pt_BR", "en", SEARCH)
    assert again.tokenizer.digest == parts.tokenizer.digest
    assert isinstance(again.tokenizer, Tokenizer)
    assert all(np.array_equal(again.state[name], weight) for name, weight in parts.state.items())
    assert not any(bool(again.state[name].any()) for name in again.state.keys() - parts.state.keys())


def test_command(relattn, tmp_path):
    out = tmp_path / "bundle"
    bare = ["import", convert_opennmt_py(tmp_path / "converted"), "--out", out]
    full = [*bare, "--tokenizer", FIXTURES / "sentencepiece.model"]
    languages = ["--src_lang", "en", "--tgt_lang", "de"]
    for arguments, fact in (
        (bare, "--tokenizer"),
        (full, "--src_lang"),
        ([*full, *languages, "--check_count", "0"], "check_count"),
        (["import", tmp_path, "--out", out], "must be a directory with model.bin"),
        (["import", FIXTURES / "opennmt_py.pt", "--out", out], "ct2-opennmt-py-converter"),
        (["import", tmp_path / "none", "--out", out], "none: no such file"),
    ):
        assert_refused(relattn(*arguments), fact)
        assert not out.exists()
    out.mkdir()  # an empty directory may exist
    assert "CTranslate2: relative positions; 2 and 1 layers, dim 8" in relattn(*full, *languages).out
    sample = ["--check_lines", tmp_path / "src.gz"]
    with gzip.open(tmp_path / "src.gz", "wt") as file:
        file.write("\n".join(LINES) + "\n")
    assert relattn("export", "ctranslate2", out, "--out", tmp_path / "out", *sample).code == 0
    before = (out / "model.safetensors").read_bytes()
    replacing = ["import", convert_opennmt_py(tmp_path / "other", ends=1.0), *full[2:], *languages]
    assert_refused(relattn(*replacing), "--overwrite")
    assert (out / "model.safetensors").read_bytes() == before
    assert relattn(*replacing, "--overwrite").code == 0
    assert (out / "model.safetensors").read_bytes() != before
    (out / "thesis.txt").write_text("all of it")
    assert_refused(relattn(*replacing, "--overwrite"), "thesis.txt")
    assert "in 3 lines" in relattn("import", tmp_path / "out", "--out", tmp_path / "b", *sample).out


def test_outputs_inside_of_their_source_are_refused(imported, tmp_path):
    source = Path(shutil.copytree(imported, tmp_path / "bundle"))
    (tmp_path / "link").symlink_to(source)
    parts, before = bundle.read_bundle(source), {file: file.read_bytes() for file in source.iterdir()}
    for out in (source, source / "inside", source / "model.safetensors", tmp_path / "link" / "inside"):
        for export, options in (
            (ctranslate2.export, {"quantization": "float32"}),
            (argos.export, {"quantization": "float32"}),
        ):
            with pytest.raises(InputError, match=f"^{out}: must be outside of"):
                export(parts, out, sample=LINES, **options)
    converted = convert_opennmt_py(tmp_path / "converted")
    with pytest.raises(InputError, match="contains more than a bundle"):
        run_import(converted, converted, overwrite=True)
    assert {file: file.read_bytes() for file in source.iterdir()} == before
