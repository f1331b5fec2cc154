"""Files of a model of transformers, and its architecture: families of models and their settings.

    config.json              sizes and settings; settings that are missing have the defaults of the model's class
    generation_config.json   settings of the search; in old models they are in config.json
    model.safetensors        weights; or pytorch_model.bin with tensors only; or several files and an index of them
    tokenizer_config.json    special tokens

Marian's tokenizer is vocab.json, source.spm and target.spm; target_vocab.json has the target's pieces if they are
others. The other families have sentencepiece.bpe.model, M2M-100 with vocab.json, NLLB and some of mBART-50 with
tokenizer.json.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relattn_mt.engine.terms import fairseq_sinusoids
from relattn_mt.formats.foreign_model import load_checkpoint, read_json, require_setting, typed
from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.support.files import read_bytes
from relattn_mt.support.types import Fields, LanguagePair
from relattn_mt.weights import Tensors, read_weights

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
DIRECTORY = "model of transformers"  # name of such a directory in messages
WEIGHTS = "model.safetensors", "pytorch_model.bin"
INDICES = tuple(f"{name}.index.json" for name in WEIGHTS)
_MARIAN_FILES = "vocab.json", "source.spm", "target.spm"
ADAPTER = "adapter_config.json"
SHARED_MODEL = "sentencepiece.bpe.model"
T5_MODEL = "spiece.model"
CARD = "README.md"
SMALL_FILES = (
    *(CONFIG, GENERATION, TOKENIZER, *INDICES, *_MARIAN_FILES, "target_vocab.json", SHARED_MODEL),
    *(T5_MODEL, "tokenizer.json", "added_tokens.json", CARD),
)

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "quick_gelu": "gelu_sigmoid"}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")
ACTIVATIONS |= dict.fromkeys(("swish", "silu"), "swish")


def marian_sinusoids(count: int, dim: int) -> np.ndarray:
    """Return Marian's positions (count, dim): sines of the even, then cosines of the odd components."""
    component = np.arange(dim)
    angle = np.arange(count)[:, None] / np.power(10_000, 2 * (component // 2) / dim)
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1).astype(np.float32)


@dataclass(frozen=True)
class _Family:
    """Models of one `model_type`, as in families.toml.

    Attributes:
        architecture: Class of the model.
        norm: Kind of the normalization.
        defaults: Settings that config.json may leave out.
        positions: Function of a number of positions, the dimension and the padding id that returns the positions; None
            if the weights have them: T5's biases, or positions after two rows that are not used, and norms of the
            embeddings.
    """

    architecture: str
    norm: str
    defaults: Fields
    positions: Callable[[int, int, int], np.ndarray] | None


_SINUSOIDS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "marian": lambda count, dim, pad: marian_sinusoids(count, dim),
    "m2m_100": lambda count, dim, pad: fairseq_sinusoids(count, dim, pad + 1),
}
_TABLES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
FAMILIES = {kind: _Family(**table, positions=_SINUSOIDS.get(kind)) for kind, table in _TABLES.items()}


def is_model(path: Path) -> bool:
    """Return whether a directory has a config.json of transformers."""
    try:
        return "model_type" in read_json(path / CONFIG)
    except InputError:
        return False


def read_config(path: Path) -> Fields:
    """Return the content of config.json. Raises InputError unless the architecture is supported."""
    config = read_json(path / CONFIG)
    kind = config.get("model_type")
    supported = "marian (OPUS-MT), m2m_100 (M2M-100, NLLB), mbart (mBART-50), t5 (T5, FLAN-T5, MADLAD), mt5 or umt5"
    if not (isinstance(kind, str) and kind in FAMILIES):
        raise InputError(f"{path / CONFIG}: model_type must be {supported}, got {one_line(repr(kind), 40)}")
    expected = [FAMILIES[kind].architecture]
    if (architectures := config.get("architectures") or expected) != expected:
        got = one_line(json.dumps(architectures), 80)
        raise InputError(f"{path / CONFIG}: architectures must be {json.dumps(expected)}, got {got}")
    return config


def require_no_adapter(names: Collection[str], path: str | Path) -> None:
    """Raise an InputError if a directory with files of these names has an adapter, such as one of LoRA."""
    advice = "merge it into its model with merge_and_unload of PEFT and save that, or remove it"
    require(ADAPTER not in names, f"{path}: must have no adapter, got {ADAPTER}; {advice}")


class Settings:
    """Settings of a model, with the defaults of its class.

    Args:
        path: The directory.

    Attributes:
        path: The same.
        file: Its config.json.
        config: Settings in it.
        tokenizer: Settings in tokenizer_config.json.
        family: Family of the model.

    Raises:
        InputError: A file is damaged, or the architecture is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / CONFIG
        config = read_config(path)
        self.family = FAMILIES[config["model_type"]]
        self.config = self.family.defaults | config
        if self["decoder_vocab_size"] is None:
            self.config["decoder_vocab_size"] = self["vocab_size"]
        self.tokenizer = optional(path / TOKENIZER)

    def __getitem__(self, name: str) -> Any:
        return self.config.get(name)

    def number(self, name: str, kind: type[int] | type[float] = int) -> Any:
        """Return a setting that is a number."""
        value = typed(self.file, name, self[name], kind)
        require(value >= 0, f"{self.file}: {name} must not be negative, got {value}")
        return value

    def flag(self, name: str) -> bool:
        """Return a setting that is true or false."""
        value = self[name]
        require_setting(isinstance(value, bool), self.file, name, "true or false", value)
        return bool(value)

    def unsupported(self) -> Iterator[str]:
        """Yield the unsupported features."""
        if str(self["activation_function"]) not in ACTIVATIONS:
            yield f"activation_function {one_line(self['activation_function'], 40)}"
        for name in ("attention_heads", "ffn_dim"):
            encoder = self.number(f"encoder_{name}")
            decoder = self.number(f"decoder_{name}")
            if encoder != decoder:
                yield f"encoder_{name} {encoder} and decoder_{name} {decoder}, which must be equal"
        if self["quantization_config"] is not None:
            yield "quantization_config"

    def languages(self) -> LanguagePair:
        """Return the source and the target language that the tokenizer names; empty if it names none."""
        src = self.tokenizer.get("source_lang") or self.tokenizer.get("src_lang")
        tgt = self.tokenizer.get("target_lang") or self.tokenizer.get("tgt_lang")
        return (src if isinstance(src, str) else "", tgt if isinstance(tgt, str) else "")

    def special_token(self, name: str, default: str) -> str:
        """Return a special token of the tokenizer, which is text or has a content."""
        value = self.tokenizer.get(f"{name}_token") or default
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else default

    def require_tokenizer(self, *classes: str | None) -> None:
        """Raise an InputError unless the tokenizer has one of these classes. None stands for one without a class.

        Others may put other tokens around a text.
        """
        file = self.path / TOKENIZER
        name = self.tokenizer.get("tokenizer_class") or self["tokenizer_class"]
        known = name in (*classes, f"{classes[0]}Fast")
        require_setting(known, file, "tokenizer_class", str(classes[0]), name)
        for source, code in ((file, self.tokenizer.get("auto_map")), (self.file, self["auto_map"])):
            require(not code, f"{source}: must have no auto_map, which names code, got {one_line(repr(code), 80)}")


def weight_files(path: Path, available: Collection[str] | None = None) -> list[str]:
    """Return the names of the files with the weights, those of safetensors if there are several kinds.

    `available` names all files, if some are not in the directory yet.

    Raises:
        InputError: The weights are missing, or an index is damaged or lists files that do not exist.
    """
    names = {file.name for file in path.iterdir()} if available is None else {*available}
    for whole, index in zip(WEIGHTS, INDICES, strict=True):
        if whole in names:
            return [whole]
        if index not in names:
            continue
        shards = read_json(path / index).get("weight_map")
        files = [*shards.values()] if isinstance(shards, dict) else []
        valid = files and all(isinstance(file, str) for file in files)
        require(valid, f"{path / index}: weight_map must have the file of each weight")
        if missing := sorted({*files} - names):
            listed = ", no ".join(one_line(file, 80) for file in missing[:5])
            raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {listed}")
        return sorted({*files})
    raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {WEIGHTS[0]} and no {WEIGHTS[1]}")


def licence(path: Path) -> list[str]:
    """Return the note about the licence that the card in a directory names; nothing if it names none."""
    card = path / CARD
    if not card.is_file():
        return []
    match = re.search(r"^license: *(\S.*)$", read_bytes(card).decode(errors="replace"), re.MULTILINE)
    return [f"licence of the model, in its {CARD}: {one_line(match[1], 80)}"] if match else []


def weights_in(path: Path) -> Tensors:
    """Return the weights in all files. Those of safetensors are read one by one, when they are asked for."""
    files = [path / name for name in weight_files(path)]
    if files[0].suffix == ".safetensors":
        return read_weights(*files)[0]
    return {name: tensor for file in files for name, tensor in load_checkpoint(file).items()}


def optional(file: Path) -> Fields:
    """Return the JSON object in a file that may be missing."""
    return read_json(file) if file.is_file() else {}
