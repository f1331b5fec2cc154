"""Read a directory of Hugging Face transformers: MarianMT (OPUS-MT), M2M-100 and NLLB. No code of the model is run.

    config.json              sizes and settings; settings that are missing have the defaults of the model's class
    generation_config.json   settings of the search; in old models they are in config.json
    model.safetensors        weights; or pytorch_model.bin with tensors only; or several files and an index of them
    tokenizer_config.json    special tokens

Marian's tokenizer is vocab.json, source.spm and target.spm; target_vocab.json has the target's pieces if they are
others. M2M-100's is vocab.json and sentencepiece.bpe.model, NLLB's is tokenizer.json and sentencepiece.bpe.model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn.translation.bundle import read_weights
from relattn.translation.config import SearchConfig
from relattn.translation.errors import InputError, one_line, reading, require
from relattn.translation.files import require_files
from relattn.translation.formats.foreign_model import (
    MARIAN_LANGUAGE,
    NEVER_GENERATED,
    NLLB_LANGUAGE,
    ForeignModel,
    languages_of,
    load_checkpoint,
    model_config,
    read_json,
    read_tokenizer,
    require_weights,
    typed,
)
from relattn.translation.formats.names import TRANSFORMERS

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
DIRECTORY = "model of transformers"  # name of such a directory in messages
WEIGHTS = "model.safetensors", "pytorch_model.bin"
INDICES = tuple(f"{name}.index.json" for name in WEIGHTS)
_MARIAN_FILES = "vocab.json", "source.spm", "target.spm"
_SHARED_MODEL = "sentencepiece.bpe.model"
SMALL_FILES = (
    *(CONFIG, GENERATION, TOKENIZER, *INDICES, *_MARIAN_FILES, "target_vocab.json", _SHARED_MODEL),
    *("tokenizer.json", "added_tokens.json"),
)

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
_M2M_100_LANGUAGES = {  # by the setting language_codes of the tokenizer, in the order of their ids
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}

_OTHER_SETTINGS = {  # settings that may change translations, with the values that do not
    "do_sample": (False,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "constraints": (),
    "force_words_ids": (),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "stop_strings": (),
    "max_time": (),
    "watermarking_config": (),
}


def marian_sinusoids(count: int, dim: int) -> Tensor:
    """Return Marian's positions (count, dim): sines of the even, then cosines of the odd components."""
    component = np.arange(dim)
    angle = np.arange(count)[:, None] / np.power(10_000, 2 * (component // 2) / dim)
    return torch.from_numpy(np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)).float()


def fairseq_sinusoids(count: int, dim: int, first: int) -> Tensor:
    """Return fairseq's positions (count, dim), from number `first` on: sines, then cosines."""
    half = dim // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10_000) / max(1, half - 1)))
    angle = torch.arange(first, first + count).float()[:, None] * frequency
    return torch.nn.functional.pad(torch.cat([angle.sin(), angle.cos()], dim=1), (0, dim % 2))


@dataclass(frozen=True)
class _Family:
    """Models of one `model_type`.

    Attributes:
        architecture: class of the model.
        norm: place of the layer normalization.
        defaults: settings that config.json may leave out.
        positions: function of a number of positions, the dimension and the padding id that returns the positions.
    """

    architecture: str
    norm: str
    defaults: dict[str, Any]
    positions: Callable[[int, int, int], Tensor]


_DEFAULTS = {
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "dropout": 0.1,
    "activation_dropout": 0.0,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
FAMILIES = {
    "marian": _Family(
        "MarianMTModel",
        "post",
        {
            **_DEFAULTS,
            "vocab_size": 58101,
            "activation_function": "gelu",
            "scale_embedding": False,
            "attention_dropout": 0.0,
            "pad_token_id": 58100,
            "decoder_start_token_id": 58100,
            "eos_token_id": 0,
        },
        lambda count, dim, pad: marian_sinusoids(count, dim),
    ),
    "m2m_100": _Family(
        "M2M100ForConditionalGeneration",
        "pre",
        {
            **_DEFAULTS,
            "vocab_size": 128112,
            "activation_function": "relu",
            "scale_embedding": True,
            "attention_dropout": 0.1,
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
            "eos_token_id": 2,
        },
        lambda count, dim, pad: fairseq_sinusoids(count, dim, pad + 1),
    ),
}


def is_model(path: Path) -> bool:
    """Return whether a directory has a config.json of transformers."""
    if not (path / CONFIG).is_file():
        return False
    try:
        content = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "model_type" in content


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a directory.

    A model of several languages has the tokens of the first one around its sources. `ForeignModel.tokenizer` can be
    changed to other languages.

    Args:
        path: the directory.
        src_tokenizer: SentencePiece model of the source; None takes the one in the directory.
        tgt_tokenizer: SentencePiece model of the target; None takes the one in the directory, or the source's.

    Raises:
        InputError: a file is missing or damaged, the architecture is not supported, or the model has unsupported
            features, which are all named.
    """
    config = read_config(path)
    settings = _Settings(path / CONFIG, config)
    family = FAMILIES[config["model_type"]]
    tensors = _with_shared(_tensors(path), settings)
    require_weights(tensors, path)
    positions = settings.number("max_position_embeddings")
    for name in (f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")):
        dim = tensors["model.decoder.embed_tokens.weight"].shape[-1]
        tensors.setdefault(name, family.positions(positions, dim, settings.number("pad_token_id")))
    generation = _Generation(path, settings)
    sizes = settings.number("vocab_size"), settings.number("decoder_vocab_size")
    vocabulary, models = _vocabulary(path, config["model_type"], sizes, settings)
    first_tokens = vocabulary["target_begin"]
    vocabulary |= {
        "start": _piece(vocabulary["target"], generation.token("decoder_start_token_id"), path),
        "end": _piece(vocabulary["target"], generation.token("eos_token_id"), path),
    }
    forced = generation.forced_begin
    languages = settings.languages(path)
    if forced is not None:
        piece = _piece(vocabulary["target"], forced, path)
        codes = [code for code, token in vocabulary["languages"].items() if token == piece]
        languages = (languages[0], codes[0]) if codes else languages
        vocabulary["target_begin"] = first_tokens = first_tokens or [piece]
    own_source, own_target = models
    if src_tokenizer is None and own_source.is_file():
        require_files(path, own_source.name, own_target.name, what=DIRECTORY)
        src_tokenizer = own_source
    if own_target != own_source and own_target.is_file():
        tgt_tokenizer = tgt_tokenizer or own_target
    tokenizer = read_tokenizer(path, src_tokenizer, tgt_tokenizer, **vocabulary)
    search, notes = generation.search(len(first_tokens), tokenizer.special.banned)
    if impossible := [token for token in tokenizer.special.banned if generation.removes(token)]:
        bias = tensors.get("final_logits_bias", torch.zeros(len(vocabulary["target"]))).float().clone()
        bias[impossible] = NEVER_GENERATED
        tensors["final_logits_bias"] = bias
    model = model_config(
        TRANSFORMERS,
        tensors,
        path,
        unsupported=settings.unsupported(),
        heads=settings.number("encoder_attention_heads"),
        norm=family.norm,
        activation=_ACTIVATIONS.get(str(settings["activation_function"]), "relu"),
        scaled_embeddings=settings.flag("scale_embedding"),
        norm_epsilon=1e-5,
        dropout=settings.number("dropout", float),
        attention_dropout=settings.number("attention_dropout", float),
        activation_dropout=settings.number("activation_dropout", float),
    )
    return ForeignModel(
        toolkit=f"transformers ({family.architecture})",
        source=path,
        config=model,
        tensors=tensors,
        names=TRANSFORMERS,
        tokenizer=tokenizer,
        languages=languages,
        search=search,
        notes=tuple(notes),
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of config.json. Raises InputError unless the architecture is supported."""
    config = read_json(path / CONFIG)
    kind, supported = config.get("model_type"), "marian (OPUS-MT) or m2m_100 (M2M-100, NLLB)"
    if not (isinstance(kind, str) and kind in FAMILIES):
        raise InputError(f"{path / CONFIG}: model_type must be {supported}, got {one_line(repr(kind), 40)}")
    expected = [FAMILIES[kind].architecture]
    if (architectures := config.get("architectures") or expected) != expected:
        got = one_line(json.dumps(architectures), 80)
        raise InputError(f"{path / CONFIG}: architectures must be {json.dumps(expected)}, got {got}")
    return config


class _Settings:
    """Settings in config.json, with the defaults of the model's class."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self.file, self.config = file, {**FAMILIES[config["model_type"]].defaults, **config}
        if self.config.get("decoder_vocab_size") is None:
            self.config["decoder_vocab_size"] = self.config["vocab_size"]

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
        require(isinstance(value, bool), f"{self.file}: {name} must be true or false, got {one_line(repr(value), 40)}")
        return bool(value)

    def unsupported(self) -> Iterator[str]:
        """Yield the unsupported features."""
        if str(self["activation_function"]) not in _ACTIVATIONS:
            yield f"activation_function {one_line(self['activation_function'], 40)}"
        for name in ("attention_heads", "ffn_dim"):
            sides = [self.number(f"{stack}_{name}") for stack in ("encoder", "decoder")]
            if sides[0] != sides[1]:
                yield f"encoder_{name} {sides[0]} and decoder_{name} {sides[1]}, which must be equal"
        if self["quantization_config"] is not None:
            yield "quantization_config"

    def languages(self, path: Path) -> tuple[str, str]:
        """Return the source and the target language that the tokenizer names; empty if it names none."""
        content = _optional(path / TOKENIZER)
        sides = (content.get(f"{name}_lang") or content.get(f"{short}_lang") for name, short in _SIDES)
        src, tgt = (side if isinstance(side, str) else "" for side in sides)
        return src, tgt


_SIDES = ("source", "src"), ("target", "tgt")


class _Generation:
    """Settings of a search, in generation_config.json or, in old models, in config.json."""

    def __init__(self, path: Path, settings: _Settings) -> None:
        self.settings, self.file = settings, path / GENERATION
        if self.file.is_file():
            self.content: Mapping[str, Any] = read_json(self.file)
        else:
            self.file, self.content = settings.file, settings.config

    def _number(self, name: str, default: Any, kind: type[int] | type[float] = int) -> Any:
        value = self.content.get(name)
        return default if value is None else typed(self.file, name, value, kind)

    def token(self, name: str) -> int:
        """Return the id of a special token; a list must have one."""
        value = self.content.get(name)
        value = self.settings[name] if value is None else value
        return int(typed(self.file, name, value[0] if isinstance(value, list) and len(value) == 1 else value, int))

    @property
    def forced_begin(self) -> int | None:
        """Id of the token that all translations begin with."""
        return None if self.content.get("forced_bos_token_id") is None else self.token("forced_bos_token_id")

    def removes(self, token: int) -> bool:
        """Return whether a forbidden token has no probability: those of the others are computed without it."""
        return self.content.get("renormalize_logits") is True and [token] in self._bad_words

    @property
    def _bad_words(self) -> list[Any]:
        """Sequences of tokens that are not generated."""
        words = self.content.get("bad_words_ids")
        valid = words is None or isinstance(words, list)
        require(valid, f"{self.file}: bad_words_ids must be a list, got {one_line(repr(words), 40)}")
        return words or []

    def search(self, given: int, banned: Collection[int]) -> tuple[SearchConfig, list[str]]:
        """Return our search, and notes about settings with another effect.

        Args:
            given: number of tokens that translations begin with.
            banned: tokens that our search does not generate.
        """
        beam, alpha = self._number("num_beams", 1), self._number("length_penalty", 1.0, float)
        early, ngram = self.content.get("early_stopping"), self._number("no_repeat_ngram_size", 0)
        penalty = self._number("repetition_penalty", 1.0, float)
        longest = self._number("max_new_tokens", None)
        longest = self._number("max_length", None) if longest is None else longest + 1
        limits = {} if longest is None else {"max_length_ratio": 0.0, "max_length_extra": max(1, longest - 1 - given)}
        notes = []
        changed = [name for name, values in _OTHER_SETTINGS.items() if self._has_effect(name, values)]
        words = self._bad_words
        if any(word not in [[token] for token in banned] for word in words):
            changed.append("bad_words_ids other than padding")
        end = self.content.get("forced_eos_token_id")
        if end is not None and end not in (self.token("eos_token_id"), [self.token("eos_token_id")]):
            changed.append("forced_eos_token_id")
        if not 0 <= alpha <= 5:
            changed.append(f"length_penalty {alpha}")
            alpha = 1.0
        if early not in (None, True, False, "never"):
            changed.append(f"early_stopping {one_line(early, 20)}")
        if changed:
            notes.append(f"not taken from {self.file.name}: {', '.join(changed)}")
        if ngram or penalty != 1.0:
            notes.append("no_repeat_ngram and repetition_penalty change logits here, and log-probabilities there")
        try:
            search = SearchConfig(
                beam_size=beam,
                length_penalty="average",
                alpha=alpha,
                early_stopping=True if early is True else False if early == "never" else "heuristic",
                no_repeat_ngram=ngram,
                repetition_penalty=penalty,
                **limits,
            )
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from error
        return search, notes

    def _has_effect(self, name: str, without: Collection[Any]) -> bool:
        value = self.content.get(name)
        return value is not None and value not in without


def weight_files(path: Path, available: Collection[str] | None = None) -> list[str]:
    """Return the names of the files with the weights, those of safetensors if there are several kinds.

    Args:
        path: directory of the model.
        available: names of all files, if some are not in the directory yet.

    Raises:
        InputError: there are no weights, or an index is damaged or names missing files.
    """
    names = {file.name for file in path.iterdir()} if available is None else {*available}
    for whole, index in zip(WEIGHTS, INDICES, strict=True):
        if whole in names:
            return [whole]
        if index not in names:
            continue
        shards = read_json(path / index).get("weight_map")
        files = {*shards.values()} if isinstance(shards, dict) and all(map(_is_text, shards.values())) else set()
        require(bool(files), f"{path / index}: weight_map must have the file of each weight")
        if missing := sorted(file for file in files if file not in names):
            listed = ", no ".join(one_line(each, 80) for each in missing[:5])
            raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {listed}")
        return sorted(files)
    raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {WEIGHTS[0]} and no {WEIGHTS[1]}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights in all files."""
    tensors: dict[str, Tensor] = {}
    for name in weight_files(path):
        file = path / name
        if file.suffix == ".safetensors":
            tensors |= read_weights(file)[0]
            continue
        content = load_checkpoint(file)
        valid = isinstance(content, dict) and all(
            isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
        )
        require(valid, f"{file}: must contain tensors by name, and nothing else")
        tensors |= content
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(".embed_positions.weights")}


def _with_shared(tensors: dict[str, Tensor], settings: _Settings) -> dict[str, Tensor]:
    """Return the weights with each shared matrix under all of its names.

    Raises:
        InputError: a matrix is missing, or one that must be shared has two values.
    """
    source, target, output = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
    tensors = dict(tensors)
    shared = tensors.pop("model.shared.weight", None)
    pairs = []
    if settings.flag("share_encoder_decoder_embeddings"):
        first = next((tensors[name] for name in (source, target, output) if name in tensors), None)
        shared = first if shared is None else shared
        pairs += [(source, shared, "share_encoder_decoder_embeddings"), (target, shared, "tie_word_embeddings")]
    for name, matrix, why in pairs:
        _share(tensors, name, matrix, settings.file, why)
    if settings.flag("tie_word_embeddings"):
        _share(tensors, output, tensors.get(target), settings.file, "tie_word_embeddings")
    for name in (source, target, output):
        require(name in tensors, f"{settings.file.parent}: has no {name}")
    if "final_logits_bias" in tensors:
        tensors["final_logits_bias"] = tensors["final_logits_bias"].flatten()
    return tensors


def _share(tensors: dict[str, Tensor], name: str, matrix: Tensor | None, file: Path, setting: str) -> None:
    """Give a matrix one more name."""
    if matrix is not None:
        same = torch.equal(tensors.setdefault(name, matrix), matrix)
        require(same, f"{file}: {setting} must be false, because {name} differs from the matrix that it is shared with")


def _vocabulary(
    path: Path, kind: str, sizes: tuple[int, int], settings: _Settings
) -> tuple[dict[str, Any], list[Path]]:
    """Return fields of a `Vocabulary`, without start and end, and the SentencePiece models of source and target."""
    tokenizer = _optional(path / TOKENIZER)
    end, unknown = (_token(tokenizer, name, default) for name, default in (("eos", "</s>"), ("unk", "<unk>")))
    common: dict[str, Any] = {"unknown": unknown, "source_end": [end], "source_begin": [], "target_begin": []}
    if kind == "marian":
        source = _pieces(path / "vocab.json", sizes[0])
        separate = tokenizer.get("separate_vocabs") is True
        target = _pieces(path / "target_vocab.json", sizes[1]) if separate else source
        languages = languages_of(source, MARIAN_LANGUAGE)
        begin = [next(iter(languages.values()))] if languages else []
        fields = {"source": source, "target": target, "languages": languages, "source_begin": begin}
        return {**common, **fields}, [path / "source.spm", path / "target.spm"]
    models = [path / _SHARED_MODEL] * 2
    if (path / "vocab.json").is_file():
        codes = tokenizer.get("language_codes", "m2m100")
        known = isinstance(codes, str) and codes in _M2M_100_LANGUAGES
        require(known, f"{path / TOKENIZER}: language_codes must be m2m100 or wmt21, got {one_line(repr(codes), 40)}")
        languages = {code: f"__{code}__" for code in _M2M_100_LANGUAGES[codes].split()}
        pieces = _pieces(path / "vocab.json", sizes[0], [*languages.values()])
    else:
        pieces = _pieces(path / "tokenizer.json", sizes[0])
        languages = languages_of(pieces, NLLB_LANGUAGE)
        require(bool(languages), f"{path / 'tokenizer.json'}: must have languages such as eng_Latn")
    fields = {"source": pieces, "target": pieces, "languages": languages}
    token = next(iter(languages.values()))
    if tokenizer.get("legacy_behaviour") is True:
        return {**common, **fields, "source_end": [end, token], "target_begin": [token]}, models
    return {**common, **fields, "source_begin": [token], "target_begin": [token]}, models


def _pieces(file: Path, size: int, more: Collection[str] = ()) -> list[str]:
    """Return the pieces in a vocabulary by id.

    Args:
        file: vocab.json, or tokenizer.json, which contains a vocabulary.
        size: number of rows of the embedding; further pieces get names that no text has.
        more: pieces with the ids that follow.

    Raises:
        InputError: the file is missing or damaged, or its ids are not 0, 1, 2, …
    """
    require_files(file.parent, file.name, what=DIRECTORY)
    content = read_json(file)
    if file.name == "tokenizer.json":
        with reading(file, "must have model.vocab and added_tokens"):
            added = {each["content"]: each["id"] for each in content["added_tokens"]}
            content = {**content["model"]["vocab"], **added}
    elif not more:
        content = {**content, **_optional(file.parent / "added_tokens.json")}
    whole = all(type(number) is int for number in content.values())
    ids = sorted(content.values()) if whole else []
    require(ids == [*range(len(content))], f"{file}: the ids of its pieces must be 0, 1, 2, …, each once")
    pieces = [*sorted(content, key=content.__getitem__), *more]
    require(len(pieces) <= size, f"{file}: must have at most {size:,} pieces, the vocab_size, got {len(pieces):,}")
    return [*pieces, *(f"madeupword{number}" for number in range(size - len(pieces)))]


def _piece(pieces: list[str], number: int, path: Path) -> str:
    """Return the piece with an id."""
    require(0 <= number < len(pieces), f"{path}: special tokens must have ids below {len(pieces):,}, got {number}")
    return pieces[number]


def _token(tokenizer: Mapping[str, Any], name: str, default: str) -> str:
    """Return a special token in tokenizer_config.json, which is text or has a content."""
    value = tokenizer.get(f"{name}_token") or default
    value = value.get("content", default) if isinstance(value, dict) else value
    return value if isinstance(value, str) else default


def _optional(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file that may be missing."""
    return read_json(file) if file.is_file() else {}
