"""Model of another toolkit, and what the readers of all toolkits have in common."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.engine.quantization import quantize
from relattn_mt.formats.names import Names
from relattn_mt.support.errors import InputError, naming, one_line, reading, require, require_installed
from relattn_mt.support.files import read_bytes, require_unique_entries
from relattn_mt.support.types import Fields, LanguagePair, PathPair
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, ImportedTokenizer, Vocabulary
from relattn_mt.tokens.tokenizer import pieces_of, processor
from relattn_mt.weights import LazyWeights, TensorDict, Tensors, is_quantizable, weight_table

# CTranslate2's defaults, with a wider beam. The models of other toolkits do not contain a search.
SEARCH = SearchConfig(length_penalty="average", alpha=1.0, early_stopping=True)

NLLB_LANGUAGE = re.compile("([a-z]{3}_[A-Z][a-z]{3})")
FAIRSEQ_LANGUAGES = (
    re.compile("__([a-z]{2,3})__"),
    NLLB_LANGUAGE,
    re.compile("([a-z]{2}_[A-Z]{2})"),
)  # the last: mBART's
MARIAN_LANGUAGE = re.compile(">>(.+)<<")
_COVERED = 0.8  # fraction of a vocabulary that a SentencePiece model of both sides must have
NEVER_GENERATED = -1e4  # bias of a token without probability: finite in all precisions, and exp(-1e4) is 0
BPE = "bpe.model"  # name of the codes in a package for Argos Translate
GUIDED = "transformer-align"  # OPUS-MT's name of a model that was trained with guided alignment
_POSITIONS = "encoder.0.self_attention.attention.rel_key.weight", "src_positions.signal.weight"

_STARTS = "<pad>", "<start>", "<zeros>"  # names of a first target token without an embedding

T = TypeVar("T", int, float)


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """Model of another toolkit.

    Attributes:
        toolkit: Name of the toolkit.
        source: File of the weights, for messages.
        config: Configuration of our model. The dropout is unknown.
        tensors: Weights, by the toolkit's names.
        names: Our names of these weights.
        scales: Scales (rows,) of the weights that are in int8, by the toolkit's names.
        tokenizer: Tokenizer of the model.
        languages: Source and target language; empty if unknown.
        pairs: All pairs of languages, such as "en de", of a model that was trained by this toolkit on several.
        search: Default search.
        shortlist: File of its lexical shortlist.
        notes: What differs from the toolkit, for the report.
        adds: In a model for CTranslate2, whether CTranslate2 adds the token before each source, and the one after it.
    """

    toolkit: str
    source: Path
    config: ModelConfig
    tensors: Tensors
    names: Names
    scales: Tensors = field(default_factory=dict)
    tokenizer: AnyTokenizer
    languages: LanguagePair = ("", "")
    pairs: Sequence[str] = ()
    search: SearchConfig = SEARCH
    shortlist: Path | None = None
    notes: tuple[str, ...] = ()
    adds: tuple[bool, bool] = (False, False)

    def weights(self) -> LazyWeights:
        """Return the weights of our model, each made when it is asked for.

        Raises:
            InputError: Some are missing or have other shapes.
        """
        expected = weight_table(self.config, self.tokenizer.vocab_sizes)
        return self.names.gather(self.tensors, expected, self.config, self.source)

    def quantized(self, weights: Tensors) -> LazyWeights | None:
        """Return the weights of our model as the integers of the toolkit's, or None unless all are in int8 there."""
        places = self.names.places(self.config)
        scales = {}
        for ours in filter(is_quantizable, weights):
            place = places[ours]
            if place.name not in self.scales:
                return None
            weight = weights[ours]
            own = np.split(self.scales[place.name], place.parts)[place.part]
            added = len(weight) - len(own)  # rows of zeros for pieces that the toolkit does not have
            scales[ours] = np.pad(own, (0, added))
        return quantize(weights, scales)


def read_json(path: Path) -> Fields:
    """Return a JSON object in a file. Raises InputError."""
    with reading(path, "not JSON"):
        content = json.loads(path.read_bytes())
    require(isinstance(content, dict), f"{path}: must be a JSON object")
    return dict(content)


def languages_of(pieces: Iterable[str], *patterns: re.Pattern[str]) -> dict[str, str]:
    """Return the language tokens among some pieces, by the code of their language."""
    matches = (match for piece in pieces for pattern in patterns if (match := pattern.fullmatch(piece)))
    return {match[1]: match[0] for match in matches}


def names_guided_alignment(path: Path, name: str = "") -> bool:
    """Return whether the name of a model of OPUS-MT, or the card in its directory, says that its alignment was trained.

    This is then the alignment of the first head of the last layer.
    """
    card = path / "README.md"
    return GUIDED in name or (card.is_file() and GUIDED.encode() in read_bytes(card))


def load_checkpoint(path: Path) -> TensorDict:
    """Return the tensors in a checkpoint of PyTorch, in float32. Nothing in it is executed.

    Raises:
        InputError: The file cannot be read, is damaged, names code, or holds anything but dense tensors of
            floating-point numbers by name; or PyTorch is not installed.
    """
    require_installed("train", "torch")
    import torch

    content = _unpickle(path)
    valid = isinstance(content, dict) and all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    )
    require(valid, f"{path}: must contain tensors by name, and nothing else")
    floats = torch.float16, torch.bfloat16, torch.float32, torch.float64
    for name, tensor in content.items():
        is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
        storage = f"{tensor.dtype}, {tensor.layout}, {tensor.device.type}"
        _require_floats(is_dense and tensor.dtype in floats, name, path, storage)
    return {name: tensor.float().numpy() for name, tensor in content.items()}


def _unpickle(path: Path) -> Any:
    import torch

    with reading(path, "not a checkpoint of PyTorch"), warnings.catch_warnings(action="ignore"):
        require_unique_entries(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # of many types; its message may advise to load the file with weights_only=False
            match = re.search(r"GLOBAL (\S+)", str(error))
            code = match and f"it names {match[1]}, and may run code"

            raise InputError(
                f"{path}: not loaded: {code or 'not a checkpoint of PyTorch, or a damaged one'}"
            ) from error


def read_tokenizer(
    source: Path, src_model: Path | None, tgt_model: Path | None, /, **vocabulary: Any
) -> ImportedTokenizer:
    """Return the tokenizer of a model.

    Args:
        source: Name of the model in messages.
        src_model: SentencePiece model of the source; or codes of subword-nmt, if the name is bpe.model or ends in .bpe.
        tgt_model: The same of the target; None takes the source's.
        vocabulary: Fields of a `Vocabulary`.

    Raises:
        InputError: The vocabulary is invalid, or a file is missing, damaged or belongs to another vocabulary.
    """
    if src_model is None:
        raise InputError(f"{source}: the model does not contain its SentencePiece model: give --tokenizer")
    bpe = "argos" if src_model.name == BPE else "opus-mt" if src_model.suffix == ".bpe" else ""
    with naming(source):
        vocabularies = Vocabulary(**vocabulary, bpe=bpe)
    paths = (src_model, tgt_model or src_model)
    tokenizer = ImportedTokenizer(read_bytes(paths[0]), read_bytes(paths[1]), vocabularies, paths)
    if not bpe and vocabularies.source != vocabularies.target:
        _require_sides(tokenizer, paths)
    return tokenizer


def _require_sides(tokenizer: ImportedTokenizer, paths: PathPair) -> None:
    """Raise an InputError if SentencePiece models are swapped, or if one for both sides is that of one side only."""
    source, target = map(set, tokenizer.vocabularies)
    src_model, tgt_model = (set(spm_pieces(path)) for path in paths)
    is_source = len(src_model & source) >= len(src_model & target)
    is_target = len(tgt_model & target) >= len(tgt_model & source)
    message = f"{paths[0]}: must be the source's SentencePiece model, got the target's, and {paths[1]}"
    require(is_source or is_target, message)
    for side, vocabulary in (("source", source), ("target", target)):
        known = len(src_model & vocabulary)
        pieces = f"{len(vocabulary):,} pieces, got {known:,}; give the {side}'s own model"
        message = f"{paths[0]}: a SentencePiece model for both sides must have the {side}'s {pieces}"
        require(src_model != tgt_model or known >= _COVERED * len(vocabulary), message)


def spm_pieces(path: Path) -> list[str]:
    """Return the pieces of a SentencePiece model by id. Raises InputError."""
    content = read_bytes(path)
    with naming(path):
        return pieces_of(processor(content))


def with_start(tensors: Tensors, names: Names, vocabulary: Fields) -> TensorDict:
    """Return the weights with one more piece, whose embedding is zeros, and let it start the decoder.

    The piece has no probability. It is also in the source's vocabulary if both sides have the same one.
    """
    start = next(name for name in _STARTS if name not in vocabulary["target"])
    matrices = ["embedding", "output_weight"]
    if vocabulary["source"] == vocabulary["target"]:
        vocabulary["source"] = [*vocabulary["source"], start]
        matrices.append("src_embedding")
    count = len(vocabulary["target"])
    vocabulary["target"] = [*vocabulary["target"], start]
    vocabulary["start"] = start
    extended = dict(tensors)
    for name in {names.entries[ours] for ours in matrices} & tensors.keys():
        extended[name] = np.pad(tensors[name], ((0, 1), (0, 0)))
    name = names.entries["output_bias"]
    bias = tensors.get(name, np.zeros(count, np.float32))
    extended[name] = np.append(bias, np.float32(NEVER_GENERATED))
    return extended


def require_matrices(tensors: Tensors, source: Path, names: Iterable[str]) -> None:
    """Raise an InputError unless there is a matrix of each name."""
    for name in names:
        require(name in tensors, f"{source}: has no {name}")
        shape = tuple(tensors[name].shape)
        require(len(shape) == 2, f"{source}: {name} must have two dimensions, got shape {shape}")


def require_weights(tensors: Tensors, source: Path) -> None:
    """Raise an InputError unless all tensors hold finite floating-point numbers."""
    for name, tensor in tensors.items():
        _require_floats(tensor.dtype.kind == "f", name, source, str(tensor.dtype))
        with np.errstate(over="ignore"):
            finite = np.isfinite(tensor.astype(np.float32, copy=False)).all()
        require(finite, f"{source}: {one_line(name, 80)} must hold finite numbers only")


def _require_floats(valid: bool, name: str, source: Path, storage: str) -> None:
    what = f"{source}: {one_line(name, 80)} must be a dense tensor of floating-point numbers"
    require(valid, f"{what}, got {storage}")


def require_setting(valid: object, source: Path, name: str, rule: str, value: object) -> None:
    """Raise an InputError unless the value of a setting in a file is as the rule says, such as "a whole number"."""
    require(valid, f"{source}: {name} must be {rule}, got {one_line(repr(value), 40)}")


def typed(source: Path, name: str, value: Any, kind: type[T]) -> T:
    """Return the value of a setting. Raises InputError unless it has the type, int or float, and is finite."""
    valid = type(value) in ((int, float) if kind is float else (int,)) and abs(value) <= sys.float_info.max
    expected = "a finite number" if kind is float else "a whole number"
    require_setting(valid, source, name, expected, value)
    return kind(value)


def unsupported_settings(supported: Mapping[str, Collection[Any]], get: Callable[[str, Any], Any]) -> list[str]:
    """Return the settings, with their values, that have an unsupported value. The first supported is the default."""
    unsupported = []
    for name, known in supported.items():
        value = get(name, next(iter(known)))
        if value not in known:
            unsupported.append(f"{name} {one_line(value, 40)}")
    return unsupported


def model_config(
    names: Names,
    tensors: Tensors,
    source: Path,
    *,
    unsupported: Iterable[str],
    explain: Callable[[str], str | None] = str,
    **settings: Any,
) -> ModelConfig:
    """Return the configuration of our model: sizes from the weights, and other settings.

    Args:
        names: Names of the weights.
        tensors: Weights, and other tensors in the file.
        source: Name of the file in messages.
        unsupported: Unsupported features of the model.
        explain: Function that returns the feature that an unknown tensor belongs to; None ignores the tensor.
        settings: Settings of a `ModelConfig` that weights do not show: heads, norm, activation, scaled_embeddings,
            norm_epsilon.

    Raises:
        InputError: Features are not supported, which are all named; weights are missing; a setting is invalid.
    """
    features = list(unsupported)
    places = names.places(ModelConfig(encoder_layers=1, decoder_layers=1))
    found = {ours: tensors[place.name] for ours, place in places.items() if place.name in tensors}
    needed = ("src_embedding", "embedding", "output_weight", "encoder.0.feed_forward.0.weight")
    missing = [places[ours].name for ours in needed if ours not in found]
    if missing:
        require_supported(features, source)
        raise InputError(f"{source}: has no {', no '.join(missing)}")
    require_matrices(tensors, source, [places[ours].name for ours in (*needed, *_POSITIONS) if ours in found])
    src, tgt, output, inner = (found[ours] for ours in needed)
    table, added = map(found.get, _POSITIONS)
    if added is not None:
        settings |= {"positions": "learned", "max_positions": len(added)}
    elif table is not None:
        settings["clip"] = len(table) // 2
    if (table is None) == (added is None):
        features.append("no positions" if table is None else "positions of two kinds")
    try:
        config = ModelConfig(
            dim=tgt.shape[-1],
            feed_forward_dim=len(inner),
            encoder_layers=names.layers(tensors, "encoder"),
            decoder_layers=names.layers(tensors, "decoder"),
            shared_embeddings=_shared(src, tgt, output),
            output_bias="output_bias" in found,
            **settings,
        )
    except InputError as error:
        require_supported(features, source)
        raise InputError(f"{source}: {error}") from error
    known = {place.name for place in names.places(config).values()}
    for name in sorted(tensors.keys() - known):
        feature = explain(name)
        if feature is not None:
            features.append(re.sub(r"(?<=[._])\d+(?=[./])", "*", feature))
    require_supported(features, source)
    return config


def _shared(src: np.ndarray, tgt: np.ndarray, output: np.ndarray) -> Literal["all", "target", "inputs", "none"]:
    """Return which of three matrices are equal."""
    inputs = np.array_equal(src, tgt)
    if np.array_equal(tgt, output):
        return "all" if inputs else "target"
    return "inputs" if inputs else "none"


def require_supported(features: Iterable[str], source: Path) -> None:
    """Raise an InputError that names all unsupported features, if there are any."""
    if listed := "; ".join(dict.fromkeys(features)):
        raise InputError(f"{source}: not supported: {listed}")
