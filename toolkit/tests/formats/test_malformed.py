"""Malformed models: importing one gives an error in one line that names the file."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.formats.ctranslate2.model_bin import read_model as read_file
from relattn_mt.formats.import_model import read as read_model
from relattn_mt.support.errors import InputError

from tests.support import transformers_models as models
from toolkit.tests.formats.test_read_ctranslate2 import change, rewrite, serialize, write

VALUES = [2.5, math.nan, -1, "two", None, [2], {"a": 1}]
Edit = Callable[[dict[str, Any]], object]


def fault(path: Path, tokenizers: tuple[Path | None, Path | None]) -> str:
    """Return the error of reading a model, which must be one line that begins with a path; empty if there is none."""
    message = ""
    try:
        read_model(path, *tokenizers).weights()
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert message.startswith("/") or not message
    return message


def last(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that replaces the last number of a tensor."""
    return lambda x: torch.cat([x.flatten()[:-1], torch.tensor([value])]).reshape(x.shape)


# Damages of a tensor; those of the first group must be refused for any tensor.
REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": last(math.nan), "inf": last(math.inf), "integer": lambda x: x.int(), "boolean": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64), "too large for float32": lambda x: x.double() + 1e300,
    "0-d": lambda x: x.sum(), "1-d": lambda x: x.flatten()[:3], "3-d": lambda x: x[None], "empty": lambda x: x[:0],
}  # fmt: skip
IN_PICKLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda x: x.to_sparse(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "meta": lambda x: x.to("meta"),
}


def edit_json(file: Path, edit: Edit) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizers) -> Path:
    return write(tmp_path_factory.mktemp("made") / "model", tokenizers)


@pytest.fixture
def path(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


ROWS = np.ones((5, 12), np.float32)
NORM, LINEAR = "encoder/layer_1/self_attention/layer_norm/", "decoder/layer_0/attention/linear_1/weight"


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [
        (dict.fromkeys([f"{NORM}gamma", f"{NORM}beta"]), [f"{NORM}gamma is missing", f"{NORM}beta is missing"]),
        ({"decoder/projection/bias": np.ones(7, np.float32)}, ["decoder/projection/bias must have shape", "got (7,)"]),
        ({LINEAR: np.ones((24, 13), np.float32)}, [f"{LINEAR} must have shape (24, 12), got (24, 13)"]),
        *(({name: damaged}, [name])
          for name in ("encoder/embeddings_0/weight",)
          for damaged in (ROWS * np.nan, ROWS.astype(np.int8), ROWS.sum(), ROWS.flatten()[:3], ROWS[:0])),
        *(({f"{stack}/{name}": value for stack in ("encoder", "decoder")}, [])
          for name in ("num_heads", "pre_norm", "activation", "scale_embeddings")
          for value in (np.float32(2.5), np.ones(2, np.int8))),
    ],
)  # fmt: skip
def test_tensors_for_ctranslate2(path, tokenizers, tensors, facts):
    change(path, {n: x for n, x in tensors.items() if x is not None}, [n for n, x in tensors.items() if x is None])
    message = fault(path, tokenizers)
    assert all(fact in message for fact in facts), message


@pytest.mark.parametrize(
    ("version", "tensors", "fact"),
    [
        (5, {"unk_token": np.array([-1, -1], np.int8)}, "model.bin: not UTF-8"),
        (5, {"eos_token": np.int8(3)}, "model.bin: eos_token is not text"),
        (5, {"bos_token": np.float32([2.5])}, "model.bin: bos_token is not text"),
        (5, {"user_decoder_start_tokens": np.array([1], np.int8)}, "bin: decoder_start_token must"),
        (4, {"with_source_bos": np.ones(2, np.float32)}, "model.bin: with_source_bos must be one whole number"),
        (4, {"num_heads": np.float32(2.5)}, "encoder/num_heads must be one whole number"),
        (4, {"decoder/layernorm_embedding/gamma": np.ones(12, np.float32)}, "a norm of its target embeddings"),
        (3, {"encoder/embeddings/weight": np.ones(3, np.int8)}, "encoder/embeddings_0/weight must be"),
    ],
)
def test_tensors_for_ctranslate2_before_version_3(path, tokenizers, version, tensors, fact):
    rewrite(path, version)
    file = read_file(path / "model.bin")
    (path / "model.bin").write_bytes(serialize(replace(file, tensors=file.tensors | tensors)))
    assert fact in fault(path, tokenizers)
    (path / "model.bin").write_bytes(serialize(replace(file, revision=1)))
    assert "revision must be at least 2, got 1" in fault(path, tokenizers)


def start_with_joiner(pieces: list[str]) -> None:
    pieces[:] = [piece if piece.startswith("<") else f"￭{piece}" for piece in pieces]


@pytest.mark.parametrize(
    ("name", "edit", "fact"),
    [
        ("config.json", "[", "config.json: not JSON"),
        ("config.json", "[]", "config.json: must be a JSON object"),
        ("config.json", lambda c: c.update(decoder_start_token="ja"), "target vocabulary must have 'ja'"),
        ("config.json", lambda c: c.update(layer_norm_epsilon=-1), "norm_epsilon must be in"),
        ("config.json", lambda c: c.update(add_source_bos=1), "config.json: add_source_bos"),
        ("config.json", lambda c: c.update(eos_token=[2]), "config.json: eos_token must be a string, got [2]"),
        ("config.json", None, "it has no config.json"),
        ("source_vocabulary.json", "{}", "source_vocabulary.json: must be a list of pieces"),
        ("source_vocabulary.json", '["a", "a"]', "source vocabulary must have 'a' only once"),
        ("source_vocabulary.json", lambda c: c.pop(), "encoder/embeddings_0/weight must have shape"),
        ("source_vocabulary.json", start_with_joiner, "marks joined pieces with ￭"),
        ("source_vocabulary.json", None, "it has no shared_vocabulary.json or source_vocabulary.json"),
        (
            "target_vocabulary.json",
            '["<unk>", "<s>", "</s>"]',
            "tgt.model: the SentencePiece model is not the target's",
        ),
        ("model.bin", None, "must be a directory with model.bin"),
        ("model.bin", b"TransformerSpec => WhisperSpecLike", "must be a TransformerSpec, got WhisperSpecLike"),
    ],
)
def test_directories_for_ctranslate2(path, tokenizers, name, edit, fact):
    file = path / name
    if edit is None:
        file.unlink()
    elif isinstance(edit, str):
        file.write_text(edit)
    elif isinstance(edit, bytes):
        file.write_bytes(file.read_bytes().replace(*edit.split(b" => ")))
    else:
        edit_json(file, edit)
    assert fact in fault(path, tokenizers)


@settings(max_examples=40)
@given(st.data())
def test_changed_bits_for_ctranslate2(made, tokenizers, tmp_path_factory, data):
    """Other numbers, or an error in one line."""
    path = tmp_path_factory.getbasetemp() / "bits"
    shutil.copytree(made, path, dirs_exist_ok=True)
    content = bytearray((path / "model.bin").read_bytes())
    content[data.draw(st.integers(0, 600) | st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (path / "model.bin").write_bytes(content)
    fault(path, tokenizers)


def test_tokenizers_that_are_missing(path, tokenizers):
    assert "give --tokenizer" in fault(path, (None, None))
    assert "none: cannot be read" in fault(path, (path / "none", None))
    assert "not a SentencePiece model" in fault(path, (path / "config.json", None))


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, Path]:
    """Models of transformers. Copy them, do not write to them."""
    path = tmp_path_factory.mktemp("published")
    models.marian(path / "marian", languages=("deu", "fra"))
    models.m2m_100(path / "m2m_100")
    models.nllb(path / "nllb")
    models.mbart_50(path / "mbart_50")
    return {each.name: each for each in path.iterdir()}


@pytest.mark.parametrize(
    ("name", "file", "edit", "facts"),
    [
        ("marian", "config.json", {"model_type": "longt5"}, ["config.json: model_type must be marian", "got 'longt5'"]),
        ("marian", "config.json", {"architectures": ["MarianForCausalLM"]}, ["MarianMTModel", "MarianForCausalLM"]),
        ("marian", "config.json", {"activation_function": "tanh", "encoder_ffn_dim": 7}, ["tanh", "encoder_ffn_dim 7"]),
        ("marian", "config.json", {"quantization_config": {"bits": 8}}, ["not supported: quantization_config"]),
        ("marian", "config.json", {"encoder_attention_heads": 2}, ["encoder_attention_heads 2", "must be equal"]),
        ("m2m_100", "config.json", {"decoder_layers": 3}, ["config.json: decoder_layers must be 1", "got 3"]),
        ("marian", "config.json", {"vocab_size": 10**12}, ["vocab_size must be ", "embed_tokens.weight"]),
        ("marian", "config.json", {"max_position_embeddings": 10**12}, ["must be at most 65,536"]),
        ("marian", "generation_config.json", {"eos_token_id": [0, 3]}, ["eos_token_id must be a whole number"]),
        ("marian", "generation_config.json", {"decoder_start_token_id": 999}, ["ids below", "got 999"]),
        ("marian", "vocab.json", {"<unk>": 3}, ["vocab.json: the ids of its pieces must be 0, 1, 2"]),
        ("marian", "tokenizer_config.json", {"unk_token": "<none>"}, ["must have '<none>'"]),
        ("marian", "tokenizer_config.json", {"separate_vocabs": True}, ["it has no target_vocab.json"]),
        ("m2m_100", "tokenizer_config.json", {"language_codes": "all"}, ["language_codes must be m2m100 or wmt21"]),
        ("m2m_100", "config.json", {"model_type": "bart"}, ["model_type must be ", ", mt5 or umt5, got 'bart'"]),
        ("mbart_50", "config.json", {"decoder_layers": 3}, ["config.json: decoder_layers must be 1", "got 3"]),
        ("mbart_50", "tokenizer_config.json", {"tokenizer_class": "MBartTokenizer"}, ["must be MBart50Tokenizer, got"]),
        (
            "m2m_100",
            "tokenizer_config.json",
            {"tokenizer_class": "SMALL100Tokenizer"},
            ["must be M2M100Tokenizer, got"],
        ),
        ("m2m_100", "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer"}, ["must be M2M100Tokenizer, got"]),
        ("m2m_100", "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, ["have no auto_map"]),
        (
            "marian",
            "config.json",
            {"auto_map": {"AutoTokenizer": ["a.B", None]}},
            ["config.json: must have no auto_map"],
        ),
        ("nllb", "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"}, ["must be NllbTokenizer, got 'M2M"]),
        ("marian", "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer"}, ["must be MarianTokenizer, got 'N"]),
        ("nllb", "tokenizer.json", {"added_tokens": None}, ["tokenizer.json: must have model.vocab and added_tokens"]),
    ],
)
def test_settings_of_transformers(published, tmp_path, name, file, edit, facts):
    path = Path(shutil.copytree(published[name], tmp_path / "model"))
    edit_json(path / file, lambda content: content.update(edit))
    message = fault(path, (None, None))
    assert all(fact in message for fact in facts), message


@pytest.mark.parametrize("name", ["marian", "m2m_100", "nllb"])
def test_a_class_of_the_tokenizer_in_either_file(published, tmp_path, name):
    path = Path(shutil.copytree(published[name], tmp_path / "model"))
    edit_json(path / "tokenizer_config.json", lambda content: content.pop("tokenizer_class"))
    assert fault(path, (None, None)) == ""
    edit_json(path / "config.json", lambda content: content.update(tokenizer_class="SMALL100Tokenizer"))
    assert "got 'SMALL100Tokenizer'" in fault(path, (None, None))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "first"), [("marian", 0), ("m2m_100", 3), ("mbart_50", 6)])
def test_settings_of_transformers_of_any_value(published, tmp_path, name, first):
    path = Path(shutil.copytree(published[name], tmp_path / "model"))
    for file in (path / name for name in ("config.json", "generation_config.json", "tokenizer_config.json")):
        whole = file.read_text()
        for at, key in enumerate(json.loads(whole), first):
            file.write_text(json.dumps({**json.loads(whole), key: VALUES[at % len(VALUES)]}))
            fault(path, (None, None))
        file.write_text(whole)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_files_of_transformers(published, tmp_path):
    weights = safetensors.torch.load_file(published["marian"] / "model.safetensors")
    path = tmp_path / "model"

    def start(*without: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(published["marian"], path)
        for file in without:
            (path / file).unlink()

    for file in ("config.json", "vocab.json", "source.spm", "model.safetensors"):
        start(file)
        assert str(path) in fault(path, (None, None))
        start()
        (path / file).write_bytes((path / file).read_bytes()[:-9])
        assert fault(path, (None, None)).startswith(str(path))
    start("model.safetensors")
    for content, fact in (
        ({**weights, "code": models.marian}, "pytorch_model.bin: not loaded: it names tests"),
        ([*weights.values()], "pytorch_model.bin: must contain tensors by name"),
        ({"state_dict": weights}, "pytorch_model.bin: must contain tensors by name"),
        ({**weights, 3: torch.ones(2)}, "pytorch_model.bin: must contain tensors by name"),
        ({**weights, "model.encoder.layers.0.lora": torch.ones(2)}, "not supported: model.encoder.layers.*.lora"),
        ({k: v for k, v in weights.items() if k[-8:] != "fc1.bias"}, "model.encoder.layers.0.fc1.bias is missing"),
        ({**weights, "lm_head.weight": weights["model.shared.weight"] + 1}, "tie_word_embeddings must be false"),
    ):
        torch.save(content, path / "pytorch_model.bin")
        assert fact in fault(path, (None, None))
    for damage in (REFUSED | IN_PICKLES).values():
        for name in ("model.shared.weight", "final_logits_bias", "model.encoder.layers.0.self_attn.k_proj.weight"):
            torch.save({**weights, name: damage(weights[name])}, path / "pytorch_model.bin")
            assert fault(path, (None, None)).startswith(str(path)) or name == "final_logits_bias"
    (path / "pytorch_model.bin").unlink()
    index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "it has no model-00001-of-00002.safetensors" in fault(path, (None, None))
    for files in ({}, {"x": 3}, {"x": 3, "y": "z"}, {"x": "../x.safetensors"}, None):
        (path / "model.safetensors.index.json").write_text(json.dumps({} if files is None else {"weight_map": files}))
        assert fault(path, (None, None)).startswith(str(path))
    start("source.spm", "target.spm")
    assert "give --tokenizer" in fault(path, (None, None))
    models.train_sentencepiece(tmp_path / "other.model", "unigram", 30, ["одно яблоко и две груши", "старик"])
    assert "pieces are in the vocabulary" in fault(path, (tmp_path / "other.model", None))
