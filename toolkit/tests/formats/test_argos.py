"""Packages for Argos Translate: exported, imported again, and made from models of other toolkits."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sacremoses
import sentencepiece
from ctranslate2.converters import TransformersConverter
from relattn_mt import bundle
from relattn_mt.config import SearchConfig
from relattn_mt.formats import argos
from relattn_mt.formats.import_model import import_model
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.bpe import BpeModel
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer
from relattn_mt.translate.options import TranslateOptions

from tests.support import transformers_models as models
from tests.support.commands import assert_refused
from tests.support.foreign_bundles import FIXTURES, LINES, run_import, tokenizer
from toolkit.tests.formats.test_read_ctranslate2 import write


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


CASES: dict[str, tuple[Any, dict[str, Any], tuple[str, str], tuple[str, str]]] = {
    "marian": (models.marian, {"draw": (0.2, 1.0)}, ("en", "de"), ("en", "de")),
    "marian to several languages": (models.marian, {"languages": ("deu", "fra")}, ("en", "fra"), ("en", "fr")),
    "m2m_100": (models.m2m_100, {"end": 3.5}, ("en", "de"), ("en", "de")),
    "nllb": (models.nllb, {"end": 3.0}, ("eng_Latn", "deu_Latn"), ("en", "de")),
}


@pytest.mark.parametrize("case", CASES)
def test_an_export_is_imported_as_the_same_bundle(tmp_path, case):
    make, options, languages, codes = CASES[case]
    make(tmp_path / "model", **options)
    parts = run_import(tmp_path / "model", tmp_path / "bundle", *languages)
    report = argos.export(parts, tmp_path / "x.argosmodel", quantization="float32", sample=LINES)
    again = run_import(tmp_path / "x.argosmodel", tmp_path / "again")
    model = replace(parts.model, dropout=0.1, attention_dropout=0.1, activation_dropout=0.0)  # which is not exported
    assert (again.src_lang, again.tgt_lang, again.model) == (*languages, model)
    assert again.tokenizer.digest == parts.tokenizer.digest
    assert report.parities["float32"].worst < 1e-4
    options = TranslateOptions(search=again.search, n_best=3)
    found, expected = (each.translator().n_best(LINES, options) for each in (again, parts))
    assert found == expected
    package = zipfile.ZipFile(tmp_path / "x.argosmodel")
    root = f"translate-{codes[0]}_{codes[1]}-1_0"
    metadata = json.loads(package.read(f"{root}/metadata.json"))
    assert (metadata["from_code"], metadata["to_code"]) == codes
    ours, (source, target) = parts.tokenizer, parts.tokenizer.vocabularies
    prefix = [target[i] for i in ours.special.tgt_begin]
    assert metadata.get("target_prefix", "") == "".join(prefix)

    # what Argos Translate 1.11 computes: pieces of the source, and the text of the pieces of all sentences
    model = sentencepiece.SentencePieceProcessor(model_proto=package.read(f"{root}/sentencepiece.model"))
    targets = [*map(ours.encode_target, LINES), *(each.tokens for best in expected for each in best)]
    for line in LINES:
        pieces = model.encode(line, out_type=str)
        assert [source.index(x if x in source else ours.unknown_piece) for x in pieces] == ours.encode(line)
    for ids in (ids for ids in targets if ids):
        text = model.decode_pieces([*prefix, *(target[i] for i in ids)] * 2).replace("▁", " ").replace("_", " ")
        assert text.removeprefix(" ") == ours.decode(ids * 2)


def test_packages_of_others(tmp_path, tokenizers):
    model = write(tmp_path / "model", tokenizers, shared=("src", "tgt", "out"))
    report = import_model(
        package(tmp_path / "x.argosmodel", model, tokenizers[0]), tmp_path / "bundle", tokenizer=None,
        tgt_tokenizer=None, src_lang="", tgt_lang="", sample=LINES,
    )  # fmt: skip
    assert report.parities["float32"].lines == len(LINES)
    parts = bundle.read_bundle(tmp_path / "bundle")
    assert (parts.src_lang, parts.tgt_lang) == ("en", "de")
    assert parts.search == SearchConfig(beam_size=4, length_penalty="average", alpha=0.2, early_stopping=True)


def test_packages_with_bpe(tmp_path):
    """Translations are those of Argos Translate: text as sacremoses makes it, pieces by the codes, CTranslate2."""
    codes, lines = FIXTURES / "bpe.model", [*LINES, "17 “apples”, 4 pears…"]
    model = write(tmp_path / "model", (codes, codes))
    parts = run_import(package(tmp_path / "x.argosmodel", model, codes, name="bpe.model"), tmp_path / "bundle")
    theirs = ctranslate2.Translator(str(model), compute_type="float32", intra_threads=1)
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer("en"), sacremoses.MosesTokenizer("en")
    bpe, translator, target = BpeModel(codes.read_bytes(), "argos"), parts.translator(), parts.tokenizer.vocabularies[1]
    search = replace(parts.search, beam_size=1, max_length_ratio=0.0, max_length_extra=15)
    found = translator.n_best(lines, TranslateOptions(search=search, copy=False, keep_literals=False))
    for line, (best,) in zip(lines, found, strict=True):
        pieces = [piece for token in tokenizer.tokenize(normalizer.normalize(line)) for piece in bpe.split(token)]
        (its,) = theirs.translate_batch([pieces], beam_size=1, max_decoding_length=14)
        assert [target[i] for i in best.tokens] == its.hypotheses[0]
    markup = translator.n_best(["one <b>apple</b> and two pears"], TranslateOptions(keep_tags=True))[0][0].text
    assert markup.count("<b>") == markup.count("</b>") == 1
    with pytest.raises(InputError, match="do not work with BPE"):
        translator.n_best(LINES[:1], prefixes=["zwei"])
    argos.export(parts, tmp_path / "y.argosmodel", quantization="float32", sample=LINES)
    assert run_import(tmp_path / "y.argosmodel", tmp_path / "again").tokenizer.digest == parts.tokenizer.digest
    assert zipfile.ZipFile(tmp_path / "y.argosmodel").read("translate-en_de-1_0/bpe.model") == codes.read_bytes()
    opus = ImportedTokenizer(*[codes.read_bytes()] * 2, replace(parts.tokenizer.vocabulary, bpe="opus-mt"))
    with pytest.raises(InputError, match="does not prepare text for BPE as OPUS-MT does"):
        argos.export(replace(parts, tokenizer=opus), tmp_path / "z", quantization="float32", sample=LINES)


def test_a_package_whose_translations_begin_with_a_language(tmp_path):
    models.m2m_100(tmp_path / "model")
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"))
    file = package(tmp_path / "x.zip", tmp_path / "converted", tmp_path / "model" / "sentencepiece.bpe.model",
                   target_prefix="__fr__")  # fmt: skip
    tokenizer = run_import(file, tmp_path / "bundle").tokenizer
    assert [tokenizer.vocabularies[1][i] for i in tokenizer.special.tgt_begin] == ["__fr__"]


def test_packages_that_are_refused(relattn, tmp_path, tokenizers):
    model = write(tmp_path / "model", tokenizers, shared=("src", "tgt", "out"))
    (tmp_path / "text.argosmodel").write_text("no archive")
    whole = package(tmp_path / "whole.argosmodel", model, tokenizers[0]).read_bytes()
    (tmp_path / "cut.argosmodel").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    (tmp_path / "broken.argosmodel").write_bytes(bytes(broken))
    package(tmp_path / "bpe.argosmodel", model, tokenizers[0], name="bpe.model")
    package(tmp_path / "none.argosmodel", model, tokenizers[0], name="other.model")
    package(tmp_path / "sbd.argosmodel", model, tokenizers[0], type="sbd")
    (model / "model.bin").unlink()
    package(tmp_path / "empty.argosmodel", model, tokenizers[0])
    for name, fact in (
        ("text", "not a package for Argos Translate, or a damaged one"),
        ("cut", "not a package for Argos Translate, or a damaged one"),
        ("broken", "damaged one"),
        ("bpe", "bpe.model: 'utf-8' codec can't decode byte"),
        ("none", "it has no sentencepiece.model and no bpe.model"),
        ("sbd", "must be a package of type translate, got sbd"),
        ("empty", "not a complete model for CTranslate2: it has no model.bin"),
        ("missing", "no such file"),
    ):
        path = tmp_path / f"{name}.argosmodel"
        result = relattn("import", path, "--out", tmp_path / "out")
        assert_refused(result, f"relattn-mt: error: {path}")
        assert fact in result.err.lower() or fact in result.err
        assert not (tmp_path / "out").exists()


def test_a_source_model_that_does_not_decode_the_target_is_refused(tmp_path, tokenizers):
    """The target's model has pieces for bytes, and the source's has none."""
    models.marian(tmp_path / "marian")
    parts = run_import(tmp_path / "marian", tmp_path / "bundle")
    target = tokenizer()
    vocabulary = replace(parts.tokenizer.vocabulary, target=target.vocabularies[1], start="<pad>")
    two = ImportedTokenizer(tokenizers[0].read_bytes(), target.files["tokenizer.model"], vocabulary)
    with pytest.raises(
        InputError, match=r"one SentencePiece model .* \d+ of the target's \d+ pieces, such as '<0x00>'$"
    ):
        argos.export(replace(parts, tokenizer=two), tmp_path / "x", quantization="float32", sample=LINES)
    assert not (tmp_path / "x").exists()
