"""Where the word alignment of a model is: taken from the files of other toolkits, and written to theirs."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from relattn_mt.alignment_head import AttentionHead, measure
from relattn_mt.bundle import Bundle, read_bundle
from relattn_mt.formats.ctranslate2.model_bin import read_model
from relattn_mt.formats.ctranslate2.read import read as read_ctranslate2
from relattn_mt.formats.ctranslate2.write import export as export_ctranslate2
from relattn_mt.formats.import_model import read
from relattn_mt.formats.marian_export import export
from relattn_mt.support.errors import InputError
from relattn_mt.text.lexicon import lexicon

from tests.support import firefox_models, marian_models, transformers_models
from tests.support.foreign_bundles import FIXTURES, LINES, make_bundle, run_import
from toolkit.tests.formats.test_read_ctranslate2 import HEADS, change, write

ASSUMED = ("assumed", 0)


def settings(path: Path) -> tuple[Any, int]:
    config = read(path, None, None).config
    return config.alignment_layer, config.alignment_heads


def firefox(path: Path, name: str, **options: Any) -> Path:
    """Write a model with three decoder layers under a name of Firefox or of translateLocally."""
    path.mkdir()
    tensors, options = firefox_models.random_model(45, layers=(1, 3), **options)
    firefox_models.write_bin(path / name, tensors, options)
    (path / "vocab.spm").write_bytes((FIXTURES / "sentencepiece.model").read_bytes())
    return path


@pytest.mark.parametrize(
    ("name", "options", "training", "expected"),
    [
        ("model.ende.intgemm.alphas.bin", {}, None, (2, 1)),
        ("model.intgemm8.bin", {"transformer_guided_alignment_layer": "last"}, None, (2, 1)),
        ("model.intgemm.alphas.bin", {"transformer_guided_alignment_layer": "1"}, None, (0, 1)),
        ("model.ende.intgemm.alphas.bin", {}, {"guided-alignment": "none"}, ASSUMED),
        ("model.bin", {"transformer_guided_alignment_layer": "last"}, None, ASSUMED),
        ("model.bin", {"transformer_guided_alignment_layer": 2}, {"guided-alignment": "corpus.aln"}, (1, 1)),
        ("model.bin", {"guided_alignment": "text", "transformer_guided_alignment_layer": "3"}, None, (2, 1)),
        ("model.bin", {}, {"type": "transformer"}, ASSUMED),
    ],
)
def test_guided_alignment_of_marian(tmp_path, name, options, training, expected):
    path = firefox(tmp_path / "model", name, **options)
    if training is not None:
        (path / f"{name}.yml").write_text(yaml.safe_dump(training))
    assert settings(path) == expected


@pytest.mark.parametrize("layer", ["0", "4", "first", 1.5])
def test_another_layer_of_marian_is_refused(tmp_path, layer):
    path = firefox(tmp_path / "model", "model.intgemm8.bin", transformer_guided_alignment_layer=layer)
    with pytest.raises(InputError, match="transformer-guided-alignment-layer must be"):
        settings(path)


@pytest.mark.parametrize("kind", ["Marian", "transformers"])
def test_models_of_opus_mt(tmp_path, kind):
    """The name of the file or the card says whether the alignment was trained."""
    path = tmp_path / "model"
    if kind == "Marian":
        marian_models.write(path, **{"tied-embeddings-all": True})
    else:
        transformers_models.marian(path)
    assert settings(path) == ASSUMED
    for model, expected in (("transformer", ASSUMED), ("transformer-align", (0, 1))):
        (path / "README.md").write_text(f"# opus\n\n* dataset: opus\n* model: {model}\n")
        assert settings(path) == expected
    if kind == "Marian":
        (path / "README.md").unlink()
        name = "opus.spm32k-spm32k.transformer-align.model1.npz.best-perplexity.npz"
        (path / "model.npz").rename(path / name)
        decoder = yaml.safe_load((path / "decoder.yml").read_text()) | {"models": [name]}
        (path / "decoder.yml").write_text(yaml.safe_dump(decoder))
        assert settings(path) == (0, 1)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ((-1, 1), (0, 1)),
        ((0, 2), (0, 2)),
        ((0, HEADS), (0, 0)),
        ((0, 0), (0, 0)),
        ((-1, HEADS), ASSUMED),
        (None, ASSUMED),
    ],
)
def test_the_specification_of_ctranslate2(tmp_path, tokenizers, written, expected):
    path = write(tmp_path / "model", tokenizers)
    names = ("decoder/alignment_layer", "decoder/alignment_heads")
    numbers = dict(zip(names, map(np.int16, written or (-1, 1)), strict=True))
    change(path, numbers, without=() if written else names)
    config = read_ctranslate2(path, *tokenizers).config
    assert (config.alignment_layer, config.alignment_heads) == expected


@pytest.mark.parametrize("written", [(1, 1), (-2, 1), (0, HEADS + 1)])
def test_other_specifications_of_ctranslate2_are_refused(tmp_path, tokenizers, written):
    path = write(tmp_path / "model", tokenizers)
    change(path, dict(zip(("decoder/alignment_layer", "decoder/alignment_heads"), map(np.int16, written), strict=True)))
    with pytest.raises(InputError, match=r"alignment_(layer|heads) must be"):
        read_ctranslate2(path, *tokenizers)


def imported(tmp_path: Path, **options: Any) -> Bundle:
    path = firefox(tmp_path / "model", "model.intgemm8.bin", transformer_guided_alignment_layer="2", **options)
    return run_import(path, tmp_path / "bundle", src_lang="en", tgt_lang="de")


def test_exports_say_where_the_alignment_is(tmp_path):
    bundle = imported(tmp_path)
    assert "word alignment: the first head of decoder layer 2" in bundle.card
    export(bundle, tmp_path / "marian", int8=False, sample=LINES)
    assert settings(tmp_path / "marian") == (1, 1)


def test_an_export_without_a_known_alignment_claims_none(tmp_path):
    path = firefox(tmp_path / "model", "model.bin")
    bundle = run_import(path, tmp_path / "bundle", src_lang="en", tgt_lang="de")
    assert "decoder layer 3 (assumed)" in bundle.card
    export(bundle, tmp_path / "marian", int8=False, sample=LINES)
    assert settings(tmp_path / "marian") == ASSUMED


@pytest.mark.parametrize(("layer", "heads"), [(0, 0), (1, 0), (1, 1), (0, 2), ASSUMED], ids=lambda value: str(value))
def test_exports_for_ctranslate2(tmp_path, layer, heads):
    bundle = make_bundle(tmp_path / "bundle", decoder_layers=2, alignment_layer=layer, alignment_heads=heads)
    export_ctranslate2(bundle, tmp_path / "out", quantization="float32", sample=LINES)
    tensors = read_model(tmp_path / "out" / "model.bin").tensors
    written = tuple(int(tensors[f"decoder/alignment_{name}"]) for name in ("layer", "heads"))
    assert written == (-1 if layer == "assumed" else layer, heads or bundle.model.heads)
    assert settings(tmp_path / "out") == (layer, heads)


def test_an_import_measures_on_a_text(relattn, tmp_path):
    """The best place is that of the text's lexicon, which has the words that this place links."""
    path = firefox(tmp_path / "model", "model.bin")
    draw = random.Random(1)
    words = list(dict.fromkeys("".join(draw.choices("aeinrst", k=4)) for _ in range(40)))
    lines = [" ".join(draw.sample(words, 6)) for _ in range(200)]
    for name, text in (("src", lines), ("tgt", lines)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text))
    files = [tmp_path / "src", tmp_path / "tgt"]
    command = ["import", path, "--src_lang", "en", "--tgt_lang", "de", "--out"]
    result = relattn(*command, tmp_path / "bundle", "--alignment_text", *files)
    assert result.code == 0, result.err
    assert "word alignment: " in result.out
    assert "right for" in result.out
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.model.alignment_layer != "assumed"
    pairs = list(zip(lines, lines, strict=True))
    found = measure(bundle.translator(), bundle.model, pairs, lexicon(pairs))
    layer, heads = bundle.model.alignment
    chosen = AttentionHead(layer, 0 if heads == 1 else None)
    assert found[chosen].right >= max(each.right for each in found.values()) * 0.9
    files.pop()
    assert "alignment_text must have two files" in relattn(*command, tmp_path / "x", "--alignment_text", *files).err
    (tmp_path / "short").write_text("a\n")
    result = relattn(*command, tmp_path / "x", "--alignment_text", tmp_path / "src", tmp_path / "short")
    assert "must have the same number of lines, got 200 and 1" in result.err
