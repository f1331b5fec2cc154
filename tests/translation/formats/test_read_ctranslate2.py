"""Models that CTranslate2's own classes wrote, imported and compared with CTranslate2."""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import torch
from ctranslate2.specs import TransformerSpec, common_spec, model_spec

from relattn.translation import bundle
from relattn.translation.config import SearchConfig
from relattn.translation.errors import InputError
from relattn.translation.formats import parity
from relattn.translation.formats.ctranslate2.model_bin import read_model
from relattn.translation.formats.ctranslate2.read import read
from relattn.translation.formats.import_model import import_model
from relattn.translation.translate.torch_translator import TorchTranslator
from tests.support.covering import pairwise
from tests.translation.formats.bundles import LINES

DIM, HEADS, INNER, CLIP = 12, 3, 20, 2
Activation = common_spec.Activation
SPECIALS = ["<unk>", "<blank>", "<s>", "</s>", "<start>", "<end>"]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory) -> tuple[Path, Path]:
    """SentencePiece models of two types, of the source and the target, which normalize text."""
    path = tmp_path_factory.mktemp("sentencepiece")
    for name, kind, size in (("src", "unigram", 60), ("tgt", "bpe", 50)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 5), model_prefix=str(path / name), model_type=kind, vocab_size=size,
            hard_vocab_limit=False, character_coverage=1.0, minloglevel=2,
        )  # fmt: skip
    return path / "src.model", path / "tgt.model"


def pieces_of(path: Path, seed: int) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [*SPECIALS, *(model.id_to_piece(i) for i in range(3, model.get_piece_size()))]
    return random.Random(seed).sample(pieces, len(pieces))


def write(
    path: Path, tokenizers: tuple[Path, Path], *, positions: str = "relative", shared: Sequence[str] = ("tgt", "out"),
    bias: bool = True, scaled: bool = False, weights: str | None = None, config: dict | None = None, **spec: object,
) -> Path:  # fmt: skip
    """Write a model with random weights, as the converters of CTranslate2 do.

    Args:
        path: directory of the model.
        tokenizers: SentencePiece models of source and target; if source and target are shared, the first is used.
        positions: "relative"; "table" for one that is added to embeddings; "sinusoids" that CTranslate2 computes.
        shared: equal matrices among "src", "tgt" and "out".
        bias: whether logits have a bias.
        scaled: whether embeddings are scaled.
        weights: quantization.
        config: settings of config.json.
        spec: options of a TransformerSpec.
    """
    src = pieces_of(tokenizers[0], 1)
    tgt = src if {"src", "tgt"} <= set(shared) else pieces_of(tokenizers[1], 2)
    spec = TransformerSpec.from_config((2, 1), HEADS, with_relative_position=positions == "relative", **spec)
    draw = np.random.default_rng(1)

    def random_array(*shape: int) -> np.ndarray:
        return draw.normal(0.2 * (len(shape) == 1), 0.4, shape).astype(np.float32)

    def fill(layer: object, name: str, value: object) -> None:
        leaf, scope = name.rsplit("/", 1)[-1], name.rsplit("/", 2)[-2]
        if value is not None and not (leaf == "bias" and "projection" not in name):
            return
        inputs, outputs = DIM, DIM
        if "ffn" in name:
            inputs, outputs = (DIM, INNER) if scope == "linear_0" else (INNER, DIM)
        elif scope == "linear_0" and "/attention/" not in name:
            outputs = 3 * DIM
        elif scope == "linear_1" and "/attention/" in name:
            outputs = 2 * DIM
        shapes = {"gamma": (DIM,), "beta": (DIM,), "bias": (outputs,), "weight": (outputs, inputs)}
        setattr(layer, leaf, random_array(*shapes.get(leaf, (2 * CLIP + 1, DIM // HEADS))))

    model_spec.visit_spec(spec, fill)
    matrices = {
        "src": random_array(len(src), DIM),
        "tgt": random_array(len(tgt), DIM),
        "out": random_array(len(tgt), DIM),
    }
    for name in shared:
        matrices[name] = matrices[shared[0]]
    spec.encoder.embeddings[0].weight = matrices["src"]
    spec.decoder.embeddings.weight, spec.decoder.projection.weight = matrices["tgt"], matrices["out"]
    spec.decoder.projection.bias = random_array(len(tgt)) if bias else model_spec.OPTIONAL
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = scaled
    if positions == "table":
        spec.encoder.position_encodings.encodings = random_array(40, DIM)
        spec.decoder.position_encodings.encodings = random_array(43, DIM)
    spec.register_source_vocabulary(src)
    spec.register_target_vocabulary(tgt)
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(weights)
    path.mkdir()
    spec.save(str(path))
    return path


@pairwise(
    positions=["relative", "table", "sinusoids"],
    shared=[("tgt", "out"), ("src", "tgt", "out"), ("src", "tgt")],
    activation=[Activation.RELU, Activation.GELU, Activation.GELUTanh, Activation.SWISH],
    weights=[None, "int8", "int16", "float16", "bfloat16"],
    pre_norm=[True, False],
    bias=[True, False],
    scaled=[True, False],
    config=[
        {},
        {"add_source_bos": True, "add_source_eos": True, "decoder_start_token": "<start>"},
        {"add_source_eos": True, "eos_token": "<end>", "layer_norm_epsilon": 0.02},
    ],
)
def test_imported_models_agree_with_ctranslate2(
    tmp_path, tokenizers, positions, shared, activation, weights, pre_norm, bias, scaled, config
):
    """Scores of given translations, and greedy translations, whose text has no special tokens."""
    options = {"positions": positions, "shared": shared, "activation": activation, "weights": weights, "bias": bias}
    path = write(tmp_path / "model", tokenizers, **options, pre_norm=pre_norm, scaled=scaled, config=config)
    tgt_tokenizer = None if {"src", "tgt"} <= set(shared) else tokenizers[1]
    report = import_model(path, tmp_path / "bundle", tokenizer=tokenizers[0], tgt_tokenizer=tgt_tokenizer,
                          src_lang="en", tgt_lang="de", sample=["one pear"])  # fmt: skip
    assert report.parities["float32"].lines == 1
    parts = bundle.read_bundle(tmp_path / "bundle")
    expected = {"relative": ("relative", CLIP, None), "table": ("learned", None, 40)}
    found = parts.model.positions, parts.model.clip, parts.model.max_positions
    assert found == expected.get(positions, ("learned", None, 4096))
    ours = TorchTranslator(
        parts.translator().model, parts.tokenizer, SearchConfig(beam_size=1, max_length_ratio=0, max_length_extra=15)
    )
    lines = [*LINES, "pears 17" if positions == "table" else "pears " * 30]
    src, tgt = [ours.tokenizer.encode(x) for x in lines], [ours.tokenizer.encode_target(x) for x in reversed(lines)]
    src_pieces, tgt_pieces = ours.tokenizer.vocabularies
    theirs = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    sources = [[src_pieces[i] for i in row] for row in src]
    scored = theirs.score_batch(sources, [[tgt_pieces[i] for i in row] for row in tgt])
    for mine, its in zip(ours.log_probs(src, tgt), scored, strict=True):
        assert mine == pytest.approx(its.log_probs, abs=1e-4)
    results = theirs.translate_batch(sources, beam_size=1, max_decoding_length=14, min_decoding_length=0)
    for (mine,), its in zip(ours.n_best(lines), results, strict=True):
        pieces = its.hypotheses[0][:14]
        end = next((i for i, piece in enumerate(pieces) if piece in SPECIALS), None)  # CTranslate2 bans no tokens
        assert [tgt_pieces[i] for i in mine.tokens][:end] == pieces[:end]
        assert not any(tgt_pieces[i] in mine.text for i in (*ours.tokenizer.special.banned, ours.tokenizer.special.eos))


def change(path: Path, tensors: dict[str, np.ndarray | np.generic], without: Sequence[str] = ()) -> None:
    """Write a model.bin again with other tensors."""
    file = read_model(path / "model.bin")
    types = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4, torch.bfloat16: 5}
    changed = {**file.tensors, **{name: torch.tensor(value) for name, value in tensors.items()}}

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    kept = {name: tensor for name, tensor in changed.items() if name not in without}
    out = struct.pack("<I", 6) + text(file.kind) + struct.pack("<II", file.revision, len(kept))
    for name, tensor in kept.items():
        content = tensor.contiguous().flatten().view(torch.int8).numpy().tobytes()
        out += text(name) + struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
        out += struct.pack("<BI", types[tensor.dtype], len(content)) + content
    (path / "model.bin").write_bytes(out + struct.pack("<I", 0))


def test_all_unsupported_features_are_named(tmp_path, tokenizers):
    path, off = write(tmp_path / "model", tokenizers, activation=Activation.Sigmoid), np.int8(1)
    features = {
        "decoder/alibi": (off, "ALiBi"),
        "decoder/start_from_zero_embedding": (off, "without an embedding"),
        "decoder/scale_embeddings": (off, "scale of embeddings"),
        "encoder/layernorm_embedding/gamma": (np.ones(DIM, np.float32), "norm of its embeddings"),
        "decoder/layernorm_embedding/gamma": (np.ones(DIM, np.float32), "RMS norms"),
        "encoder/layer_1/ffn/linear_0_noact/weight": (np.ones((INNER, DIM), np.float32), "gated"),
        "decoder/final_logit_softcapping": (np.float32(3), "decoder/final_logit_softcapping"),
    }
    change(path, {name: value for name, (value, _) in features.items()})
    with pytest.raises(InputError) as refused:
        read(path, *tokenizers)
    for fact in ("activation 6", *(fact for _, fact in features.values())):
        assert fact in str(refused.value)


def test_a_model_that_disagrees_is_not_imported(tmp_path, tokenizers, monkeypatch):
    """As if another version of CTranslate2 computed something else."""
    path, (src, tgt) = write(tmp_path / "model", tokenizers), tokenizers
    monkeypatch.setattr(parity, "TOLERANCE", 1e-9)
    importing = functools.partial(import_model, path, tmp_path / "bundle", tokenizer=src, tgt_tokenizer=tgt)
    with pytest.raises(InputError, match=f"{path}: not imported"):
        importing(src_lang="en", tgt_lang="de", sample=3)
    assert not (tmp_path / "bundle").exists()
    monkeypatch.setattr("relattn.translation.formats.import_model.find_spec", lambda name: None)
    assert "not checked" in str(importing(src_lang="en", tgt_lang="de", sample=3))


def test_plain_text_vocabularies(tmp_path, tokenizers):
    path = write(tmp_path / "model", tokenizers)
    file = path / "source_vocabulary.json"
    (path / "source_vocabulary.txt").write_text("\n".join(json.loads(file.read_text())) + "\n")
    file.unlink()
    read(path, *tokenizers).model()
