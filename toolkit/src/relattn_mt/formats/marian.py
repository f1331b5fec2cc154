"""Read a model in Marian's own format, as Firefox, translateLocally and OPUS-MT publish models: a directory.

    model.*.bin or *.npz             weights, and the options of the model, special:model.yml
    vocab.*.spm                      SentencePiece model of both sides; or srcvocab.*.spm and trgvocab.*.spm; in
                                     models of HPLT and Bitextor, model.SRC-TGT.spm
    lex.*.bin                        lexical shortlist (`engine/shortlist.py`), optional
    *vocab*.yml                      in OPUS-MT, pieces by id, with source.spm and target.spm, or with *.bpe
    decoder.yml, MODEL.decoder.yml   names of the files above, and the search; optional; MODEL is that of the weights
    config.*.yml                     the same, in models of Firefox; config.yml, of a training, comes last
    metadata.json, model_info.json   languages, of Firefox and of translateLocally; optional
    *.npz.yml, README.md             options of the training, and the card of OPUS-MT; optional

A .bin has uint64 version, uint64 count; per tensor four uint64: bytes of its name, type, dimensions, bytes of its data;
then all names, all shapes in int32, uint64 bytes of padding and these, and the data. A matrix of intgemm is followed by
its multiplier, integer = rint(multiplier · weight). All numbers are little-endian.

Matrices are (inputs, outputs), except embeddings, and transposed if they are in int8.
"""

from __future__ import annotations

import math
import re
import struct
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from relattn_mt.config import SearchConfig
from relattn_mt.engine.terms import fairseq_sinusoids
from relattn_mt.formats.ctranslate2.model_bin import Reader
from relattn_mt.formats.foreign_model import (
    MARIAN_LANGUAGE,
    NEVER_GENERATED,
    ForeignModel,
    languages_of,
    model_config,
    names_guided_alignment,
    read_json,
    read_tokenizer,
    require_matrices,
    require_setting,
    require_weights,
    spm_pieces,
    typed,
    unsupported_settings,
    with_start,
)
from relattn_mt.formats.names import TABLES as NAMES
from relattn_mt.formats.names import Names
from relattn_mt.support.errors import InputError, naming, one_line, reading, require, require_at_most
from relattn_mt.support.types import Fields, LanguagePair
from relattn_mt.weights import TensorDict

# types of tensors
FLOAT32 = 0x404
INT8 = 0x101
INTGEMM8 = 0x4101
_TYPES: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype("<f4"), INT8: np.dtype("i1"), INTGEMM8: np.dtype("i1")}
_VERSION = struct.pack("<Q", 1)  # which a .bin begins with
OPTIONS = "special:model.yml"
MULTIPLIER = "_QuantMultA"  # of activations, which we quantize per row
_MATRIX = re.compile(r"(^|_)W[^_]*$")
EMBEDDING = re.compile(r"Wemb$|_Wt$")
_MOST_DIMENSIONS = 8
_POSITIONS = 1024
_OPTIMIZER = ".optimizer.npz"  # end of the name of the file with which Marian continues a training
_PAIR = re.compile(r"model\.([a-z]{2,3}(?:_[A-Za-z]+)?)-([a-z]{2,3}(?:_[A-Za-z]+)?)\.spm")  # HPLT's
_SIDES = {"src", "source"}, {"trg", "tgt", "target"}  # words in names of vocabularies
ACTIVATIONS = {"relu": "relu", "swish": "swish", "gelu": "gelu_sigmoid"}
TABLES: dict[str, Fields] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DEFAULTS = {name: values[0] for name, values in TABLES["supported"].items()}
_STUDENT = re.compile(r"\.intgemm(8|\.alphas)?\.")  # in the names of files of Firefox and translateLocally
_SETTINGS = {"alpha": "normalize", "beam_size": "beam-size", "max_length_ratio": "max-length-factor"}
_OTHER_SEARCH = "word-penalty", "allow-unk", "output-sampling"  # settings that may change translations
_SHOWN = {"dim-emb", "enc-depth", "dec-depth", "dim-vocabs", "transformer-dim-ffn", "transformer-heads", "dec-cell"}
_WITHOUT_EFFECT = re.compile(  # other options may only be off
    "version|skip|enc-type|enc-cell.*|dec-cell-.*|dim-rnn|transformer-(dim-)?aan.*|(transformer-)?guided-alignment.*|"
    "transformer-depth-scaling|factors-combine|bert-.*|char-.*|transformer-decoder-dim-ffn|special-vocab"
)


def weight_files(path: Path) -> list[Path]:
    """Return the files with weights in a directory."""
    files = sorted(file for suffix in ("npz", "bin") for file in path.glob(f"*.{suffix}") if file.is_file())
    found = []
    for file in files:
        is_model = file.suffix == ".npz" and not file.name.endswith(_OPTIMIZER)
        if file.suffix == ".bin":
            with reading(file, "cannot be read"), file.open("rb") as opened:
                is_model = opened.read(len(_VERSION)) == _VERSION
        if is_model:
            found.append(file)
    return found


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a directory, quantized or not. The integers of one in int8 are kept.

    Args:
        path: The directory.
        src_tokenizer: SentencePiece model of the source; None takes the one in the directory.
        tgt_tokenizer: SentencePiece model of the target; None takes the one in the directory, or the source's.

    Raises:
        InputError: A file is missing or damaged, or the model has unsupported features, which are all named.
    """
    file, settings = _settings(path)
    (source,) = _named(path, settings, "models", weight_files(path), 1)
    content = _read(source)
    options = DEFAULTS | _mapping(source, content.options)
    names = names_of(options, content.tensors)
    tensors = {name: tensor for name, tensor in content.tensors.items() if not name.endswith(MULTIPLIER)}
    matrices = names.entries["src_embedding"], names.entries["embedding"]
    require_matrices(tensors, source, matrices)
    sizes = [len(tensors[name]) for name in matrices]
    tensors[names.entries["src_positions.signal.weight"]] = fairseq_sinusoids(_POSITIONS, tensors[matrices[1]].shape[1])
    vocabulary, models = _vocabulary(path, settings)
    pieces = [len(vocabulary["source"]), len(vocabulary["target"])]
    require(pieces == sizes, f"{path}: the vocabularies must have {sizes} pieces, as {source.name} has, got {pieces}")
    tensors = with_start(tensors, names, vocabulary)
    tokenizer = read_tokenizer(path, src_tokenizer or models[0], tgt_tokenizer or models[1], **vocabulary)
    unknown = vocabulary["target"].index(vocabulary["unknown"])
    bias = tensors[names.entries["output_bias"]]
    bias[unknown : unknown + 1] = NEVER_GENERATED
    config = model_config(
        names,
        tensors,
        source,
        unsupported=_unsupported(options),
        heads=typed(source, "transformer-heads", options.get("transformer-heads", 8), int),
        norm="post",
        embedding_norm="n" in str(options["transformer-postprocess-emb"]),
        activation=ACTIVATIONS.get(str(options["transformer-ffn-activation"]), "relu"),
        norm_epsilon=1e-6,
        decoder_mixer="ssru" if options["transformer-decoder-autoreg"] == "rnn" else "scheme",
        **_alignment(source, options, names.layers(tensors, "decoder")),
    )
    expected = {
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "dim-emb": config.dim,
        "dim-vocabs": sizes,
        "transformer-dim-ffn": config.feed_forward_dim,
    }
    lists = _named(path, settings, "shortlist", sorted(path.glob("lex*.bin"))[:1], 1, 0)
    for name, size in expected.items():
        option = options.get(name, size)
        require_setting(option == size, source, name, f"{size}, as its tensors have it", option)
    unused = [f"{name} {settings[name]}" for name in _OTHER_SEARCH if settings.get(name)]
    return ForeignModel(
        toolkit="Marian",
        source=source,
        # a scheme that training keeps, so that the model can be exported again
        config=replace(config, positions="marian", max_positions=None),
        tensors=tensors,
        names=names,
        scales=content.scales,
        tokenizer=tokenizer,
        languages=_languages(path),
        search=_search(file, settings),
        shortlist=lists[0] if lists else None,
        notes=(f"not taken from {file.name}: {', '.join(unused)}",) if unused else (),
    )


@dataclass(frozen=True)
class _Content:
    """Content of a file: options of the model, weights in float32, and the scales (rows,) of those in int8."""

    options: bytes
    tensors: TensorDict
    scales: TensorDict


def _read(path: Path) -> _Content:
    """Return the content of a file. Raises InputError if it is damaged or has other tensors than float32 and int8."""
    scales: TensorDict = {}
    with reading(path, "not a model of Marian, or a damaged one"):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                tensors = {name: file[name] for name in file.files}
        else:
            content = path.read_bytes()
            with naming(f"{path}: not a model of Marian, or a damaged one"):
                tensors = _read_bin(Reader(memoryview(content)), scales)
    options = tensors.pop(OPTIONS, np.zeros(0, np.int8)).tobytes().rstrip(b"\0")
    require_weights(tensors, path)
    for name, tensor in tensors.items():
        is_matrix = _MATRIX.search(name)
        if is_matrix and name not in scales and not EMBEDDING.search(name):
            tensor = tensor.T
        elif not is_matrix and tensor.ndim == 2 and len(tensor) == 1:
            tensor = tensor[0]
        tensors[name] = np.ascontiguousarray(tensor, np.float32)
    return _Content(options, tensors, scales)


def _read_bin(file: Reader, scales: TensorDict) -> TensorDict:
    """Return the tensors of a .bin, and add the scales of those in int8."""
    version = file.number("Q", "the version")
    count = file.number("Q", "the number of tensors")
    require(version == 1, f"the version must be 1, got {version}")
    heads = [struct.unpack("<4Q", file.take(32, "the list of tensors")) for _ in range(count)]
    names = [bytes(file.take(head[0], "the names")).rstrip(b"\0").decode() for head in heads]
    shapes = []
    for name, (_, _, rank, _) in zip(names, heads, strict=True):
        require_at_most(_MOST_DIMENSIONS, rank, name, "dimensions")
        shapes.append(struct.unpack(f"<{rank}i", file.take(4 * rank, f"the shape of {name}")))
    file.take(file.number("Q", "the padding"), "the padding")
    tensors: TensorDict = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
        require(kind in _TYPES, f"{name} must have type float32, int8 or intgemm8, got {kind:#x}")
        data = file.take(size, name)
        count = math.prod(shape)
        end = count * _TYPES[kind].itemsize
        needed = end + 4 if kind == INTGEMM8 else end
        require(min(shape, default=1) >= 0 and needed <= size, f"{name}, {shape}, must have {needed:,} bytes")
        require(name not in tensors, f"{name} must be there once")
        tensor: np.ndarray = np.frombuffer(data, _TYPES[kind], count)
        if kind == INTGEMM8:
            (multiplier,) = struct.unpack_from("<f", data, end)
            require(0 < multiplier < math.inf, f"{name} must have a positive multiplier, got {multiplier}")
            require(not name.endswith("_Wt"), f"{name} must have type float32, got intgemm8")
            shape = shape if EMBEDDING.search(name) else shape[::-1]
            scale = np.float32(1) / np.float32(multiplier)
            scales[name] = np.full(shape[:1], scale)
            tensor = tensor * scale
        tensors[name] = tensor.reshape(shape)
    return tensors


def names_of(options: Fields, tensors: Fields) -> Names:
    """Return the names of the weights of a model with these options."""
    is_tied = options["tied-embeddings"] is True
    is_joint = options["tied-embeddings-src"] is True
    are_all = options["tied-embeddings-all"] is True
    embeddings = {"src_embedding": "encoder_Wemb", "embedding": "decoder_Wemb"}
    if is_joint or are_all:
        embeddings = {"src_embedding": "Wemb", "embedding": "Wemb"}
    output = "decoder_ff_logit_out_Wt"
    if is_tied or are_all:
        output = embeddings["embedding"]
    elif "decoder_ff_logit_out_W" in tensors:
        output = "decoder_ff_logit_out_W"
    mixer = "rnn" if options["transformer-decoder-autoreg"] == "rnn" else "self-attention"
    return Names(
        NAMES["marian"] | NAMES[f"marian-{mixer}"] | embeddings | {"output_weight": output},
        norm=("scale", "bias"),
        has_biases=True,
        first=1,
    )


def _unsupported(options: Fields) -> Iterator[str]:
    """Yield the options that have an unsupported value."""

    def get(name: str, default: Any) -> Any:
        value = options.get(name, default)
        return value.replace("d", "") if "process" in name and isinstance(value, str) else value

    yield from unsupported_settings(TABLES["supported"], get)
    if options["transformer-decoder-autoreg"] == "rnn" and options.get("dec-cell") != "ssru":
        yield f"dec-cell {one_line(options.get('dec-cell'), 40)}"
    for name, value in options.items():
        if value and name not in DEFAULTS.keys() | _SHOWN and not _WITHOUT_EFFECT.fullmatch(str(name)):
            yield f"{one_line(name, 40)} {one_line(value, 40)}"


def _alignment(source: Path, options: Fields, layers: int) -> Fields:
    """Return the settings of the alignment. Guided alignment trains the first head of one layer, counted from 1."""
    training = source.with_name(f"{source.name}.yml")  # options of the training
    settings = _mapping(training, training.read_bytes()) if training.is_file() else {}
    guided = options.get("guided-alignment", settings.get("guided-alignment"))
    if guided is None:  # unless the name says that it is one of OPUS-MT's "transformer-align" or of Firefox's students
        guided = _STUDENT.search(source.name) or names_guided_alignment(source.parent, source.name)
    if guided in ("none", "", False):
        return {}
    name = "transformer-guided-alignment-layer"
    layer = options.get(name, "last")
    number = layers if layer == "last" else typed(source, name, int(layer) if str(layer).isdecimal() else layer, int)
    require_setting(1 <= number <= layers, source, name, f"in [1, {layers}] or last", layer)
    return {"alignment_layer": number - 1, "alignment_heads": 1}


def _mapping(file: Path, content: bytes) -> Fields:
    """Return a mapping in YAML."""
    with reading(file, "not YAML"):
        settings = yaml.safe_load(content.decode())
    require(isinstance(settings, dict), f"{file}: must have options by name")
    return dict(settings)


def _named(path: Path, settings: Fields, name: str, files: list[Path], most: int, least: int = 1) -> list[Path]:
    """Return the files that the settings name, or else those that were found, `least` to `most`."""
    listed = settings.get(name)
    if not isinstance(listed, list):
        listed = [listed]
    files = [path / Path(file).name for file in listed if isinstance(file, str)] or files
    missing = [file.name for file in files if not file.is_file()]
    require(not missing, f"{path}: the settings name {', '.join(missing)} in {name}, which must be there")
    names = ", ".join(file.name for file in files) or "none"
    require(least <= len(files) <= most, f"{path}: must have one file of {name}{' per side' * (most > 1)}, got {names}")
    return files


def _settings(path: Path) -> tuple[Path, Fields]:
    """Return the file that names the vocabularies and sets the search, and its content.

    Without such a file, the result is the directory and an empty dictionary.

    Marian writes MODEL.decoder.yml for each file of weights, and reads that of the weights that it is given.
    """
    weights = weight_files(path)
    own = sorted(path.glob("*.decoder.yml"))
    if len(weights) == 1:
        matching = path / f"{weights[0].name}.decoder.yml"
        own = [matching] if matching in own else own
    # config.yml may be the training's
    others = sorted(path.glob("config*.yml"), key=lambda file: (file.name == "config.yml", file.name))
    default = path / "decoder.yml"
    if not default.is_file():
        names = ", ".join(file.name for file in own)
        require(len(own) <= 1, f"{path}: must have decoder.yml or one *.decoder.yml, got {names}")
    files = [file for file in (default, *own, *others) if file.is_file()]
    if not files:
        return path, {}
    settings = _mapping(files[0], files[0].read_bytes())
    model = path / files[0].name.removesuffix(".decoder.yml")
    if model in weights:
        settings["models"] = [model.name]
    return files[0], settings


def _vocabulary(path: Path, settings: Fields) -> tuple[Fields, tuple[Path | None, Path | None]]:
    """Return the fields of a `Vocabulary`, without the start, and the SentencePiece models of both sides."""
    candidates = sorted(path.glob("*vocab*.spm")) or sorted(path.glob("model.*-*.spm"))  # srcvocab before trgvocab
    candidates = candidates or sorted(path.glob("*vocab*.yml"))
    files = _named(path, settings, "vocabs", candidates, 2)
    if not settings.get("vocabs") or len(files) == 1:
        _require_sides(path, files)
    source, target = (_pieces(file) for file in (files[0], files[-1]))
    languages = languages_of(source, MARIAN_LANGUAGE)
    fields: Fields = {"source": source, "target": target, "end": "</s>", "unknown": "<unk>"}
    fields |= {"source_end": ["</s>"], "languages": languages, "source_begin": [*languages.values()][:1]}
    models = (files[0], files[-1])
    if files[0].suffix != ".spm":
        suffix = "spm" if (path / "source.spm").is_file() else "bpe"
        models = (path / f"source.{suffix}", path / f"target.{suffix}")
    return fields, models if models[0].is_file() and models[1].is_file() else (None, None)


def _require_sides(path: Path, files: list[Path]) -> None:
    """Raise an InputError unless the names of vocabularies show that they are all, and which side each is of."""
    sides = []
    for file in files:
        words = set(re.split(r"[^a-z]+|vocab", file.name.lower()))  # vocab.srcs.spm is of Serbian and Czech
        sides.append([bool(words & names) for names in _SIDES])
    known = sides in ([[False, False]], [[True, True]], [[True, False], [False, True]])
    names = ", ".join(file.name for file in files)
    rule = "must have one vocabulary, or srcvocab and trgvocab, unless decoder.yml names them in vocabs"
    require(known, f"{path}: {rule}, got {names}")


def _pieces(file: Path) -> list[str]:
    """Return the pieces in a vocabulary by id."""
    if file.suffix == ".spm":
        return spm_pieces(file)
    with reading(file, "not a vocabulary"):
        content = re.sub(r"(?m)^\? (.*)\n: (\d+)$", r"\1: \2", file.read_bytes().decode())  # as YAML writes long keys
        lines = [line.rstrip("\r").rsplit(": ", 1) for line in content.split("\n") if line]
        pieces = {int(number): piece for piece, number in lines}
    require(sorted(pieces) == [*range(len(lines))], f"{file}: the ids must be 0, 1, 2, …, each once")
    quoted = [pieces[number] for number in range(len(pieces))]
    return [yaml.load(piece, yaml.BaseLoader) if piece[:1] in ("'", '"') else piece for piece in quoted]


def _languages(path: Path) -> LanguagePair:
    """Return the languages that the metadata or the name of the file has; empty if they are unknown."""
    for name in ("metadata.json", "model_info.json"):
        if not (path / name).is_file():
            continue
        metadata = read_json(path / name)
        tags = metadata.get("srcTags")
        src = next(iter(tags), "") if isinstance(tags, dict) else metadata.get("sourceLanguage")
        tgt = metadata.get("trgTag") or metadata.get("targetLanguage")
        if isinstance(src, str) and isinstance(tgt, str):
            return src, tgt
    matches = [re.match(r"model\.([a-z]{2})([a-z]{2})\.", file.name) for file in weight_files(path)]
    matches += [_PAIR.fullmatch(file.name) for file in path.glob("*.spm")]
    match = next(filter(None, matches), None)
    return (match[1], match[2]) if match else ("", "")


def _search(file: Path, settings: Fields) -> SearchConfig:
    """Return the search that the settings name, by default Firefox's.

    Marian's limit counts the end of the source, and not that of the translation.
    """
    beam = typed(file, "beam-size", settings.get("beam-size", 1), int)
    alpha = typed(file, "normalize", settings.get("normalize", 1.0), float)
    ratio = typed(file, "max-length-factor", settings.get("max-length-factor", 2.0), float)
    try:
        return SearchConfig(
            beam_size=beam,
            length_penalty="average" if alpha else "none",
            alpha=alpha,
            early_stopping=True,
            max_length_ratio=ratio,
            max_length_extra=math.ceil(ratio) + 1,
        )
    except InputError as error:
        message = re.sub("^alpha|^beam_size|^max_length_ratio", lambda match: _SETTINGS[match[0]], str(error))
        raise InputError(f"{file}: {message}") from error
