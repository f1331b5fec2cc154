"""An imported model is a bundle like any other: it comes back, translates, is exported again and trained further."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relattn.translation import bundle
from relattn.translation.analysis.positions import by_position
from relattn.translation.commands import main as cli
from relattn.translation.config import DataConfig, ModelConfig, Recipe, SearchConfig, TrainConfig
from relattn.translation.data.imported_tokenizer import ImportedTokenizer
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.formats import argos, onnx
from relattn.translation.formats.ctranslate2 import write as ctranslate2
from relattn.translation.formats.ctranslate2.translator import load
from relattn.translation.formats.import_model import import_model
from relattn.translation.formats.parity import Report
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.train import train

FIXTURES = Path(__file__).parent / "fixtures"
ONCE = {"warmup_steps": 1, "log_every": 1, "average": 1}
LINES = ["one apple and two pears", "an old man", "17 apples, 4 pears"]
OF_TOKENIZER = {"tokenizer.model", "tokenizer.target.model", "vocabulary.json"}


def imported(path: Path, out: Path, **options: object) -> Report:
    given = {"tokenizer": FIXTURES / "sentencepiece.model", "tgt_tokenizer": None, "src_lang": "en", "tgt_lang": "de"}
    return import_model(path, out, **{**given, "sample": 5, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "bundle"
    imported(FIXTURES / "opennmt_py.pt", out)
    return out


def test_a_bundle_of_it_comes_back(path):
    assert {file.name for file in path.iterdir()} == {"config.yaml", "model.safetensors", "README.md", *OF_TOKENIZER}
    parts = bundle.read_bundle(path)
    assert isinstance(parts.tokenizer, ImportedTokenizer)
    assert (parts.src_lang, parts.tgt_lang) == ("en", "de")
    assert parts.tokenizer.vocab_sizes == (46, 37)
    assert "train.init_from" in parts.card
    (path / "vocabulary.json").rename(path / "aside")
    with pytest.raises(InputError, match=r"bundle: not a complete bundle: it has no vocabulary\.json$"):
        bundle.read_bundle(path)
    vocabulary = json.loads((path / "aside").read_text())
    vocabulary["target"][7:9] = vocabulary["target"][8:6:-1]
    (path / "vocabulary.json").write_text(json.dumps(vocabulary))
    with pytest.raises(InputError, match=r"tokenizer\.model: damaged, or not the one these weights were trained with"):
        bundle.read_bundle(path)
    (path / "aside").rename(path / "vocabulary.json")
    bundle.read_bundle(path).translator()


@pytest.mark.whole
def test_it_is_exported_again(path, tmp_path):
    parts = bundle.read_bundle(path)
    report = ctranslate2.export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    assert report.parities["float32"].worst < 1e-4
    assert not (tmp_path / "out" / "shared_vocabulary.json").exists()
    theirs = load(tmp_path / "out")
    assert theirs.src_lang == "en"
    assert theirs.translate(LINES[:1]) == [h.text for (h,) in theirs.n_best(LINES[:1])]
    imported(tmp_path / "out", tmp_path / "back", tokenizer=None, src_lang="", tgt_lang="")
    again = bundle.read_bundle(tmp_path / "back")
    assert (again.model, again.tokenizer.digest) == (parts.model, parts.tokenizer.digest)
    assert all(torch.equal(again.state[name], tensor) for name, tensor in parts.state.items())
    argos.export(parts, tmp_path / "x.argosmodel", quantization="int8", sample=LINES)
    with pytest.raises(InputError, match="ONNX export does not support imported models"):
        onnx.export(parts, tmp_path / "onnx", sample=LINES)


def test_a_package_has_one_sentencepiece_model(path, tmp_path):
    parts = bundle.read_bundle(path)
    assert isinstance(parts.tokenizer, ImportedTokenizer)
    parts.tokenizer.files["tokenizer.target.model"] += b" "
    with pytest.raises(InputError, match=r"bundle: must have one SentencePiece model"):
        argos.export(parts, tmp_path / "x.argosmodel", quantization="int8", sample=LINES)


def test_it_is_measured_by_position(path):
    translator = bundle.read_bundle(path).translator()
    bins = by_position(translator, [(LINES[0], LINES[1]), (LINES[2], "zwei Birnen")], width=100)
    scores = translator.log_probs(
        [translator.tokenizer.encode(line) for line in (LINES[0], LINES[2])],
        [translator.tokenizer.encode_target(line) for line in (LINES[1], "zwei Birnen")],
    )
    ends = [row[-1] for row in scores]
    assert bins[-1].nats == pytest.approx(-sum(ends) / 2, abs=1e-5)
    pieces = [x for row in scores for x in row[:-1]]
    assert bins[0].nats == pytest.approx(-sum(pieces) / len(pieces), abs=1e-5)


def test_it_is_trained_further(path, tmp_path):
    """The pieces keep their numbers: the first step's loss is that of the imported model on these pairs."""
    src, tgt = tmp_path / "train.en", tmp_path / "train.de"
    src.write_text("\n".join(LINES) + "\n")
    tgt.write_text("zwei Birnen\nein alter Mann\n17 Birnen\n")
    parts = bundle.read_bundle(path)
    files = {"train_src": str(src), "train_tgt": str(tgt), "valid_src": str(src), "valid_tgt": str(tgt)}
    recipe = Recipe(
        out=str(tmp_path / "run"),
        model=replace(parts.model, dropout=0.0, attention_dropout=0.0),
        data=DataConfig(**files, max_tokens=200),
        train=TrainConfig(
            init_from=str(path), steps=1, learning_rate_factor=1e-9, label_smoothing=0.0, valid_every=1, **ONCE
        ),
        search=SearchConfig(beam_size=1, max_length_extra=3, max_length_ratio=0),
    )
    out = train(recipe, show=False)
    trained = bundle.read_bundle(out)
    assert trained.tokenizer.digest == parts.tokenizer.digest
    assert all(torch.allclose(trained.state[name], tensor, atol=1e-6) for name, tensor in parts.state.items())
    ours, pairs = parts.translator(), zip(LINES, tgt.read_text().split("\n"), strict=False)
    encoded = [(ours.tokenizer.encode(a), ours.tokenizer.encode_target(b)) for a, b in pairs]
    scores = [x for row in ours.log_probs(*zip(*encoded, strict=True)) for x in row]
    logged = (tmp_path / "run" / "log.csv").read_text().splitlines()
    row = dict(zip(logged[0].split(","), logged[1].split(","), strict=True))
    assert float(row["valid_loss"]) == pytest.approx(-sum(scores) / len(scores), abs=1e-4)
    assert float(row["loss"]) == pytest.approx(-sum(scores) / len(scores), abs=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options", [{}, {"relative_tables": "keys"}, {"positions": "learned", "max_positions": 50}], ids=str
)
def test_what_was_exported_comes_home(tmp_path, options):
    """Its own tokenizer, languages, search and weights; of one table only, the other is zeros."""
    tokenizer = Tokenizer.train(LINES * 5, 290, seed=1)
    base = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=2)
    options = dict(options)
    config = base.with_positions(options.pop("positions", "relative"), **options)
    search = SearchConfig(beam_size=2, length_penalty="average", alpha=0.3, early_stopping=True, max_length_extra=5)
    recipe = Recipe(model=config, search=search, data=DataConfig(src_lang="pt_BR", tgt_lang="en"))
    torch.manual_seed(1)
    model = Transformer(config, tokenizer.vocab_size)
    bundle.save(tmp_path / "a", model=model, recipe=recipe, tokenizer=tokenizer, card="")
    ctranslate2.export(bundle.read_bundle(tmp_path / "a"), tmp_path / "out", quantization="float32", sample=LINES)
    told = imported(tmp_path / "out", tmp_path / "b", tokenizer=None, src_lang="", tgt_lang="")
    assert told.parities["float32"].same == 5
    parts = bundle.read_bundle(tmp_path / "b")
    assert (parts.src_lang, parts.tgt_lang, parts.search) == ("pt_BR", "en", search)
    assert parts.tokenizer.digest == tokenizer.digest
    assert isinstance(parts.tokenizer, Tokenizer)
    state = model.state_dict()
    assert all(torch.equal(parts.state[name], tensor) for name, tensor in state.items())
    assert not any(bool(parts.state[name].any()) for name in parts.state.keys() - state.keys())


def test_the_command(tmp_path, capsys):
    out = tmp_path / "bundle"
    given = ["import", str(FIXTURES / "eole"), "--out", str(out)]
    languages = ["--src_lang", "en", "--tgt_lang", "de"]

    def refused(arguments: list[str], message: str) -> None:
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()

    refused(given, "give --tokenizer")
    given += ["--tokenizer", str(FIXTURES / "sentencepiece.model")]
    refused(given, "eole: the languages are unknown")
    refused([*given, *languages, "--check_count", "0"], "check_count must be at least 1")
    refused(["import", str(tmp_path), "--out", str(out)], "has neither model.bin (CTranslate2) nor model.*.safetensors")
    refused(["import", str(tmp_path / "none"), "--out", str(out)], "none: no such file or directory")
    assert cli.main([*given, *languages]) == 0
    assert "eole: relative positions; 2 and 2 layers, dim 8" in capsys.readouterr().out
    with gzip.open(tmp_path / "src.gz", "wt") as file:
        file.write("\n".join(LINES) + "\n")
    sample = ["--check_lines", str(tmp_path / "src.gz")]
    assert cli.main(["export", "ctranslate2", str(out), "--out", str(tmp_path / "out"), *sample]) == 0
    (out / "thesis.txt").write_text("all of it")
    assert cli.main([*given, *languages]) == 2
    assert "give --overwrite to replace it" in capsys.readouterr().err
    assert cli.main([*given, *languages, "--overwrite"]) == 2
    assert "not replaced, because it contains more than a bundle: thesis.txt" in capsys.readouterr().err
    capsys.readouterr()
    assert cli.main(["import", str(tmp_path / "out"), "--out", str(tmp_path / "b"), *sample]) == 0
    assert "in 3 lines" in capsys.readouterr().out


def test_an_existing_bundle_is_replaced_only_on_request(path, tmp_path):
    out = tmp_path / "bundle"
    imported(FIXTURES / "opennmt_py.pt", out)
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=rf"^{out}: exists; give --overwrite to replace it$"):
        imported(FIXTURES / "eole", out)
    assert (out / "model.safetensors").read_bytes() == before
    imported(FIXTURES / "eole", out, overwrite=True)
    assert (out / "model.safetensors").read_bytes() != before
    (tmp_path / "empty").mkdir()
    imported(FIXTURES / "eole", tmp_path / "empty")


def test_outputs_are_outside_of_their_source(path, tmp_path):
    source = tmp_path / "bundle"
    shutil.copytree(path, source)
    (tmp_path / "link").symlink_to(source)
    parts, before = bundle.read_bundle(source), {file: file.read_bytes() for file in source.iterdir()}
    for out in (source, source / "inside", source / "model.safetensors", tmp_path / "link" / "inside"):
        for export in (ctranslate2.export, argos.export):
            with pytest.raises(InputError, match=f"^{out}: must be outside of"):
                export(parts, out, quantization="float32", sample=LINES)
        with pytest.raises(InputError, match=f"^{out}: must be outside of"):
            onnx.export(parts, out, sample=LINES)
    shutil.copytree(FIXTURES / "eole", tmp_path / "eole")
    with pytest.raises(InputError, match="contains more than a bundle"):
        imported(tmp_path / "eole", tmp_path / "eole", overwrite=True)
    assert {file: file.read_bytes() for file in source.iterdir()} == before
