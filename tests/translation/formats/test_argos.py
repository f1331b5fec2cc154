"""Packages for Argos Translate: exported, imported again, and made from models of other toolkits."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from ctranslate2.converters import TransformersConverter

from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.config import SearchConfig
from relattn.translation.errors import InputError
from relattn.translation.formats import argos
from relattn.translation.formats.import_model import import_model
from relattn.translation.translate.options import TranslateOptions
from tests.translation.formats import transformers_models as models
from tests.translation.formats.bundles import LINES, make_bundle
from tests.translation.formats.test_read_ctranslate2 import write


def run_import(path: Path, out: Path, src_lang: str = "", tgt_lang: str = "") -> bundle.Bundle:
    import_model(path, out, tokenizer=None, tgt_tokenizer=None, src_lang=src_lang, tgt_lang=tgt_lang, sample=3)
    return bundle.read_bundle(out)


def package(path: Path, model: Path, sentencepiece: Path, name: str = "sentencepiece.model", **metadata: str) -> Path:
    """Write a package, as Argos Translate publishes them."""
    with zipfile.ZipFile(path, "w") as archive:
        about = {"from_code": "en", "to_code": "de", "package_version": "1.0", **metadata}
        archive.writestr("translate-en_de-1_0/metadata.json", json.dumps(about))
        archive.write(sentencepiece, f"translate-en_de-1_0/{name}")
        archive.writestr("translate-en_de-1_0/stanza/resources.json", "{}")
        archive.writestr("translate-en_de-1_0/model/", "")
        for file in sorted(model.iterdir()):
            archive.write(file, f"translate-en_de-1_0/model/{file.name}")
    return path


@pytest.mark.parametrize("kind", ["own", "m2m_100"])
def test_an_export_is_imported_as_the_same_bundle(tmp_path, kind):
    if kind == "own":
        parts = make_bundle(tmp_path / "bundle", languages=("en", "de"), positions="learned", max_positions=60)
    else:
        models.m2m_100(tmp_path / "model")
        parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "de")
    report = argos.export(parts, tmp_path / "x.argosmodel", quantization="float32", sample=LINES)
    again = run_import(tmp_path / "x.argosmodel", tmp_path / "again")
    assert (again.src_lang, again.tgt_lang, again.model) == ("en", "de", parts.model)
    assert again.tokenizer.digest == parts.tokenizer.digest
    assert report.parities["float32"].worst < 1e-4
    options = TranslateOptions(search=again.search)
    found, expected = (each.translator().n_best(LINES, options) for each in (again, parts))
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in expected]
    metadata = json.loads(zipfile.ZipFile(tmp_path / "x.argosmodel").read("translate-en_de-1_0/metadata.json"))
    assert metadata.get("target_prefix") == (None if kind == "own" else "__de__")


def test_packages_of_others(tmp_path, tokenizers):
    model = write(tmp_path / "model", tokenizers, shared=("src", "tgt", "out"))
    report = import_model(
        package(tmp_path / "x.argosmodel", model, tokenizers[0]), tmp_path / "bundle", tokenizer=None,
        tgt_tokenizer=None, src_lang="", tgt_lang="", sample=LINES,
    )  # fmt: skip
    assert report.parities["float32"].same == len(LINES)
    parts = bundle.read_bundle(tmp_path / "bundle")
    assert (parts.src_lang, parts.tgt_lang) == ("en", "de")
    assert parts.search == SearchConfig(beam_size=4, length_penalty="average", alpha=0.2, early_stopping=True)


def test_a_package_whose_translations_begin_with_a_language(tmp_path):
    models.m2m_100(tmp_path / "model")
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"))
    file = package(tmp_path / "x.zip", tmp_path / "converted", tmp_path / "model" / "sentencepiece.bpe.model",
                   target_prefix="__fr__")  # fmt: skip
    tokenizer = run_import(file, tmp_path / "bundle").tokenizer
    assert [tokenizer.vocabularies[1][i] for i in tokenizer.special.tgt_begin] == ["__fr__"]


def test_packages_that_are_refused(tmp_path, tokenizers, capsys):
    model = write(tmp_path / "model", tokenizers, shared=("src", "tgt", "out"))
    (tmp_path / "text.argosmodel").write_text("no archive")
    whole = package(tmp_path / "whole.argosmodel", model, tokenizers[0]).read_bytes()
    (tmp_path / "cut.argosmodel").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    (tmp_path / "broken.argosmodel").write_bytes(bytes(broken))
    package(tmp_path / "bpe.argosmodel", model, tokenizers[0], name="bpe.model")
    package(tmp_path / "sbd.argosmodel", model, tokenizers[0], type="sbd")
    (model / "model.bin").unlink()
    package(tmp_path / "empty.argosmodel", model, tokenizers[0])
    for name, fact in (
        ("text", "not a package for Argos Translate, or a damaged one"),
        ("cut", "not a package for Argos Translate, or a damaged one"),
        ("broken", "damaged one"),
        ("bpe", "it has no sentencepiece.model (bpe.model is not supported)"),
        ("sbd", "must be a package of type translate, got sbd"),
        ("empty", "not a complete model for CTranslate2: it has no model.bin"),
        ("none", "no such file"),
    ):
        path = tmp_path / f"{name}.argosmodel"
        assert cli.main(["import", str(path), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"relattn: error: {path}")
        assert fact in error.lower() or fact in error
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()
    models.marian(tmp_path / "marian")
    parts = run_import(tmp_path / "marian", tmp_path / "bundle")
    with pytest.raises(InputError, match="must have one SentencePiece model"):
        argos.export(parts, tmp_path / "y.argosmodel", quantization="float32", sample=LINES)
