"""Directories that CTranslate2's own classes write say the same here, whatever of it models here have."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from contextlib import suppress
from dataclasses import dataclass, field
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

LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
DIM, HEADS, INNER, CLIP = 12, 3, 20, 2
ACTIVATION = common_spec.Activation


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> tuple[Path, Path]:
    """SentencePiece models of two kinds, which normalise text: of the source and of the target."""
    made = []
    for name, kind, size in (("src", "unigram", 60), ("tgt", "bpe", 50)):
        path = tmp_path_factory.mktemp("sentencepiece") / name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 5),
            model_prefix=str(path),
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
        )
        made.append(path.with_suffix(".model"))
    return made[0], made[1]


def pieces_of(path: Path, seed: int, specials: list[str]) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [*specials, *(model.id_to_piece(i) for i in range(3, model.get_piece_size()))]
    random.Random(seed).shuffle(pieces)
    return pieces


@dataclass
class Kind:
    """What a model of CTranslate2 is given."""

    spec: dict = field(default_factory=lambda: {"with_relative_position": True})
    config: dict = field(default_factory=dict)
    one_vocabulary: bool = False
    shared: tuple[str, ...] = ()  # of "src", "tgt", "out": one matrix
    bias: bool = True
    scaled: bool = False
    table: int = 0  # positions in a table that is added, the target's has 3 more
    weights: str | None = None


KINDS = {
    "as OpenNMT-py's": Kind(bias=True, shared=("tgt", "out")),
    "as OpenNMT-tf's": Kind(one_vocabulary=True, shared=("src", "tgt", "out"), scaled=True, weights="int8"),
    "shared inputs": Kind(one_vocabulary=True, shared=("src", "tgt"), bias=False),
    "nothing shared": Kind(weights="int16", config={"layer_norm_epsilon": 0.02}),
    "marked sources": Kind(config={"add_source_bos": True, "add_source_eos": True, "decoder_start_token": "<start>"}),
    "marked ends": Kind(config={"add_source_eos": True, "eos_token": "<end>"}, weights="float16"),
    "post": Kind(spec={"with_relative_position": True, "pre_norm": False}, scaled=True),
    "gelu": Kind(spec={"with_relative_position": True, "activation": ACTIVATION.GELU}),
    "gelu tanh": Kind(spec={"with_relative_position": True, "activation": ACTIVATION.GELUTanh}, weights="bfloat16"),
    "swish": Kind(spec={"with_relative_position": True, "activation": ACTIVATION.SWISH}),
    "table": Kind(spec={}, table=40, scaled=True),
    "sinusoids": Kind(spec={}, scaled=True),
}


def write(path: Path, kind: Kind, tokenizers: tuple[Path, Path]) -> Path:
    """A directory of such a model, with random weights, as CTranslate2's converters write it."""
    specials = ["<unk>", "<blank>", "<s>", "</s>", "<start>", "<end>"]
    src = pieces_of(tokenizers[0], 1, specials)
    tgt = src if kind.one_vocabulary else pieces_of(tokenizers[1], 2, specials)
    spec = TransformerSpec.from_config((2, 1), HEADS, **kind.spec)
    draw = np.random.default_rng(1)

    def random_of(*shape: int) -> np.ndarray:
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
        shapes = {
            "gamma": (DIM,), "beta": (DIM,), "bias": (outputs,), "weight": (outputs, inputs),
            "relative_position_keys": (2 * CLIP + 1, DIM // HEADS),
            "relative_position_values": (2 * CLIP + 1, DIM // HEADS),
        }  # fmt: skip
        setattr(layer, leaf, random_of(*shapes[leaf]))

    model_spec.visit_spec(spec, fill)
    matrices = {"src": random_of(len(src), DIM), "tgt": random_of(len(tgt), DIM), "out": random_of(len(tgt), DIM)}
    for name in kind.shared:
        matrices[name] = matrices[kind.shared[0]]
    spec.encoder.embeddings[0].weight = matrices["src"]
    spec.decoder.embeddings.weight, spec.decoder.projection.weight = matrices["tgt"], matrices["out"]
    spec.decoder.projection.bias = random_of(len(tgt)) if kind.bias else model_spec.OPTIONAL
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = kind.scaled
    if kind.table:
        spec.encoder.position_encodings.encodings = random_of(kind.table, DIM)
        spec.decoder.position_encodings.encodings = random_of(kind.table + 3, DIM)
    spec.register_source_vocabulary(src)
    spec.register_target_vocabulary(tgt)
    for name, value in kind.config.items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(kind.weights)
    path.mkdir()
    spec.save(str(path))
    return path


def tokenizers_for(kind: Kind, tokenizers: tuple[Path, Path]) -> tuple[Path, Path | None]:
    return tokenizers[0], None if kind.one_vocabulary else tokenizers[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_model_says_here_what_it_says_there(tmp_path, tokenizers, kind):
    there = write(tmp_path / "there", kind, tokenizers)
    src_tokenizer, tgt_tokenizer = tokenizers_for(kind, tokenizers)
    report = import_model(there, tmp_path / "here", tokenizer=src_tokenizer, tgt_tokenizer=tgt_tokenizer,
                        src_lang="en", tgt_lang="de", sample=["one pear"])  # fmt: skip
    assert report.parities["float32"].lines == 1
    ours = bundle.read_bundle(tmp_path / "here").translator()
    assert (ours.model.config.positions, ours.model.config.clip) == (
        ("relative", CLIP) if kind.spec.get("with_relative_position") else ("learned", None)
    )
    assert ours.model.config.max_positions == (None if "with_relative_position" in kind.spec else kind.table or 4096)
    lines = [*LINES, "pears " * 30] if not kind.table else [*LINES, "pears 17"]
    src, tgt = [ours.tokenizer.encode(x) for x in lines], [ours.tokenizer.encode_target(x) for x in reversed(lines)]
    src_pieces, tgt_pieces = ours.tokenizer.vocabularies
    theirs = ctranslate2.Translator(str(there), compute_type="float32", intra_threads=1)
    scored = theirs.score_batch(
        [[src_pieces[i] for i in row] for row in src], [[tgt_pieces[i] for i in row] for row in tgt]
    )
    for mine, its in zip(ours.log_probs(src, tgt), scored, strict=True):
        assert mine == pytest.approx(its.log_probs, abs=1e-4)
    assert len({round(x, 2) for x in mine}) > 5  # weights that say something


@pytest.mark.parametrize("name", ["as OpenNMT-py's", "as OpenNMT-tf's", "marked sources", "sinusoids"])
def test_translations_are_theirs(tmp_path, tokenizers, name):
    kind = KINDS[name]
    there = write(tmp_path / "there", kind, tokenizers)
    found = read(there, *tokenizers_for(kind, tokenizers))
    search = SearchConfig(beam_size=1, max_length_ratio=0, max_length_extra=15)
    ours = TorchTranslator(found.model(), found.tokenizer, search)
    src_pieces, tgt_pieces = ours.tokenizer.vocabularies
    theirs = ctranslate2.Translator(str(there), compute_type="float32", intra_threads=1)
    results = theirs.translate_batch(
        [[src_pieces[i] for i in ours.tokenizer.encode(line)] for line in LINES],
        beam_size=1, max_decoding_length=14, min_decoding_length=0,
    )  # fmt: skip
    for (mine,), its in zip(ours.n_best(LINES), results, strict=True):
        assert [tgt_pieces[i] for i in mine.tokens] == its.hypotheses[0][:14]
        assert mine.text == ours.tokenizer.decode(mine.tokens)
        assert not re.search("<(unk|blank|s|/s|start|end)>", mine.text)


def test_everything_that_is_lacking_is_told_at_once(tmp_path, tokenizers):
    spec = {"with_relative_position": True, "activation": ACTIVATION.Sigmoid}
    there = write(tmp_path / "there", Kind(spec=spec), tokenizers)
    change(there, {
        "decoder/alibi": np.int8(1),
        "decoder/start_from_zero_embedding": np.int8(1),
        "decoder/scale_embeddings": np.int8(1),
        "encoder/layernorm_embedding/gamma": np.ones(DIM, np.float32),
        "decoder/layernorm_embedding/gamma": np.ones(DIM, np.float32),
        "encoder/layer_1/ffn/linear_0_noact/weight": np.ones((INNER, DIM), np.float32),
        "decoder/final_logit_softcapping": np.float32(3),
    })  # fmt: skip
    with pytest.raises(InputError) as caught:
        read(there, *tokenizers)
    assert str(caught.value) == (
        f"{there / 'model.bin'}: not supported: ALiBi's positions; a first target token without an "
        "embedding; another scale of embeddings in its encoder than in its decoder; activation 6; RMS norms; "
        "decoder/final_logit_softcapping; a norm of its embeddings; gated feed-forward layers"
    )


def change(there: Path, tensors: dict[str, np.ndarray | np.generic], without: tuple[str, ...] = ()) -> None:
    """Write a model.bin again with other tensors besides."""
    file = read_model(there / "model.bin")
    kinds = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4, torch.bfloat16: 5}
    held = {**file.tensors, **{name: torch.tensor(value) for name, value in tensors.items()}}

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    out = struct.pack("<I", 6) + text(file.kind) + struct.pack("<I", file.revision)
    kept = {name: tensor for name, tensor in held.items() if name not in without}
    out += struct.pack("<I", len(kept))
    for name, tensor in kept.items():
        content = tensor.contiguous().flatten().view(torch.int8).numpy().tobytes()
        out += text(name) + struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
        out += struct.pack("<BI", kinds[tensor.dtype], len(content)) + content
    (there / "model.bin").write_bytes(out + struct.pack("<I", 0))


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizers) -> Path:
    return write(tmp_path_factory.mktemp("made") / "there", KINDS["as OpenNMT-py's"], tokenizers)


@pytest.fixture
def there(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "there"))


def test_weights_that_are_missing_or_of_other_shapes_are_named(there, tokenizers):
    norm = "encoder/layer_1/self_attention/layer_norm/"
    others = {
        "decoder/layer_0/attention/linear_1/weight": np.ones((2 * DIM, DIM + 1), np.float32),
        "decoder/projection/bias": np.ones(7, np.float32),
    }
    change(there, others, without=(f"{norm}gamma", f"{norm}beta"))
    with pytest.raises(InputError) as caught:
        read(there, *tokenizers).model()
    size = len(json.loads((there / "target_vocabulary.json").read_text()))
    assert str(caught.value) == (
        f"{there / 'model.bin'}: decoder/projection/bias must have shape ({size},), got (7,); "
        "encoder/layer_1/self_attention/layer_norm/gamma is missing; "
        "encoder/layer_1/self_attention/layer_norm/beta is missing; "
        "decoder/layer_0/attention/linear_1/weight must have shape (24, 12), got (24, 13)"
    )


def test_a_directory_that_is_wrong_is_told_in_a_line(there, tokenizers):
    def refused(message: str, *given: Path | None) -> None:
        with pytest.raises(InputError, match=message) as caught:
            read(there, *(given or tokenizers)).model()
        assert "\n" not in str(caught.value)

    refused("there: .*give --tokenizer$", None, None)
    refused("none: cannot be read: No such file", there / "none", None)
    refused(r"config\.json: not a SentencePiece model", there / "config.json", None)
    config = json.loads((there / "config.json").read_text())

    def with_(**changed: object) -> str:
        return json.dumps({**config, **changed})

    for name, content, message in (
        ("config.json", "[", r"config\.json: not JSON"),
        ("config.json", "[]", r"config\.json: must be a JSON object"),
        ("config.json", with_(decoder_start_token=None), "there: a vocabulary's start must be a string"),
        ("config.json", with_(decoder_start_token="ja"), "there: the target vocabulary must have 'ja'"),
        ("config.json", with_(layer_norm_epsilon="1"), "config.json: layer_norm_epsilon must be"),
        ("config.json", with_(layer_norm_epsilon=-1), r"model.bin: norm_epsilon must be in \[1e-12, 1\], got -1"),
        ("source_vocabulary.json", "{}", r"source_vocabulary\.json: must be a list of pieces"),
        ("source_vocabulary.json", '["a", "a"]', "there: the source vocabulary must have 'a' only once"),
        ("target_vocabulary.json", '["<unk>", "<s>", "</s>"]', "src.model|tgt.model"),
    ):  # fmt: skip
        before = (there / name).read_text()
        (there / name).write_text(content)
        refused(message)
        (there / name).write_text(before)
    pieces = json.loads((there / "source_vocabulary.json").read_text())
    (there / "source_vocabulary.json").write_text(json.dumps(pieces[:-1]))
    refused(r"encoder/embeddings_0/weight must have shape \(\d+, 12\), got \(\d+, 12\)")
    joined = [piece if piece.startswith("<") else f"￭{piece}" for piece in pieces]
    (there / "source_vocabulary.json").write_text(json.dumps(joined))
    refused("is not the source's: .* in the vocabulary .which marks joined pieces with ￭, unlike SentencePiece")
    (there / "source_vocabulary.json").unlink()
    refused("it has no shared_vocabulary.json or source_vocabulary.json$")
    (there / "source_vocabulary.txt").write_text("\n".join(pieces) + "\n")
    read(there, *tokenizers).model()
    (there / "model.bin").unlink()
    refused("not a complete model for CTranslate2: it has no model.bin$")


@pytest.mark.whole
def test_damage_is_an_error_of_one_line_or_another_number(there, tokenizers):
    whole = (there / "model.bin").read_bytes()
    draw = random.Random(1)
    sound = 0
    for _ in range(120):
        damaged = bytearray(whole)
        at = draw.choice([draw.randrange(len(whole)), draw.randrange(600)])
        damaged[at] ^= 1 << draw.randrange(8)
        (there / "model.bin").write_bytes(damaged)
        with suppress(InputError):
            read(there, *tokenizers).model()
            sound += 1
    assert 10 < sound < 110


def test_other_models_are_refused(there, tokenizers):
    content = (there / "model.bin").read_bytes()
    (there / "model.bin").write_bytes(content.replace(b"TransformerSpec", b"WhisperSpecLike"))
    with pytest.raises(InputError, match=r"model\.bin: must be a TransformerSpec, got WhisperSpecLike$"):
        read(there, *tokenizers)


def test_a_model_that_disagrees_is_not_imported(there, tokenizers, tmp_path, monkeypatch):
    """As if a future CTranslate2 computed something else."""
    monkeypatch.setattr(parity, "TOLERANCE", 1e-9)
    src, tgt = tokenizers
    with pytest.raises(InputError, match="there: not imported: log-probabilities must differ"):
        import_model(there, tmp_path / "here", tokenizer=src, tgt_tokenizer=tgt, src_lang="en", tgt_lang="de", sample=3)
    assert not (tmp_path / "here").exists()
