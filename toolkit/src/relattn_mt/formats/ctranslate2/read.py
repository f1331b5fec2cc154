"""Read a directory for CTranslate2, written by any of its converters or by relattn.

CTranslate2 3 moved the special tokens from model.bin to config.json (version 6 of model.bin), and renamed settings
(revision 5 of the model). Models of earlier versions are read by the current names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from relattn_mt.engine.terms import fairseq_sinusoids
from relattn_mt.formats.ctranslate2.directory import (
    CONFIG,
    DIRECTORY,
    MODEL,
    read_settings,
    read_vocabularies,
)
from relattn_mt.formats.ctranslate2.model_bin import ModelFile, int8_scales, read_model, weights
from relattn_mt.formats.foreign_model import (
    BPE,
    FAIRSEQ_LANGUAGES,
    MARIAN_LANGUAGE,
    ForeignModel,
    languages_of,
    model_config,
    read_json,
    read_tokenizer,
    require_setting,
    require_weights,
    typed,
    with_start,
)
from relattn_mt.formats.names import CTRANSLATE2, CTRANSLATE2_ACTIVATIONS
from relattn_mt.support.errors import reading, require
from relattn_mt.support.files import require_files
from relattn_mt.support.types import Fields
from relattn_mt.tokens.imported_tokenizer import tokenizer_in
from relattn_mt.tokens.tokenizer import TOKENIZER
from relattn_mt.weights import TensorDict, Tensors

_KINDS = {"TransformerSpec": 0, "TransformerBase": 8, "TransformerBig": 16}  # and their heads before revision 3
_ACTIVATIONS = {number: name for name, number in CTRANSLATE2_ACTIVATIONS.items()}
_EPSILON = 1e-5  # default of layer normalisation
_TABLES = tuple(CTRANSLATE2.entries[f"{side}_positions.signal.weight"] for side in ("src", "tgt"))
_ZERO_START = "decoder/start_from_zero_embedding"
_SINUSOIDS = 4096  # positions of a model whose sinusoids CTranslate2 computes
_EQUAL = {  # settings that must be equal in encoder and decoder: the default, and the feature otherwise
    "num_heads": (0, "other heads"),
    "pre_norm": (1, "norms in other places"),
    "activation": (0, "another activation"),
}
_IGNORED = (
    "scale_embeddings|start_from_zero_embedding|embeddings_merge|alignment_layer|alignment_heads|"
    "alibi_use_positive_positions|scale_alibi"
)
_SPM_FILES = (  # of the source and the target
    (TOKENIZER,),
    ("source.spm", "target.spm"),
    ("sentencepiece.bpe.model",),
    ("sentencepiece.model",),
    (BPE,),
)
_SWITCHES = {  # settings that must be off, and the feature otherwise
    "decoder/alibi": "ALiBi's positions",
    "encoder/multi_query_attention": "fewer heads of keys than of queries",
    "decoder/multi_query_attention": "fewer heads of keys than of queries",
}
_FEATURES = {  # patterns of the names of weights that only a model with the feature has; None changes nothing
    rf"^(encoder|decoder)/({'|'.join(_EQUAL)}|{_IGNORED})$|^({'|'.join(_SWITCHES)})$": None,
    r"(input|post_attention|\w+_feedforward|shared|external_\w+)_layer_norm/": "other norms in its layers",
    r"linear_0_noact/": "gated feed-forward layers",
    r"layernorm_embedding/": "a norm of its target embeddings only",
    r"relative_attention_": "T5's positions (import the model of transformers instead)",
    r"relative_(asymmetric|left|right)_": "other relative positions for the left than for the right",
    r"rotary_": "rotary positions",
    r"embeddings_[1-9]": "factors of the source",
    r"/num_heads_kv$": "fewer heads of keys than of queries",
    r"/[qkv]_norm/": "norms of queries and keys",
    r"/project_(in|out)/": "projections around its layers",
}


_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}  # special tokens and their defaults
_FLAGS = {"with_source_bos": 0, "with_source_eos": 0, "with_target_bos": 1, "user_decoder_start_tokens": 0}
_IMPLIED = "with_relative_position", "layernorm_embedding"  # settings before revision 5 that the weights show
_OF_BOTH_STACKS = {"num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads"}
_RENAMED = {
    "encoder/embeddings/weight": "encoder/embeddings_0/weight",
    "encoder/embeddings/multiply_by_sqrt_depth": "encoder/scale_embeddings",
    "decoder/embeddings/multiply_by_sqrt_depth": "decoder/scale_embeddings",
}


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a directory, quantized or not. The integers of one in int8 are kept.

    Args:
        path: The directory.
        src_tokenizer: SentencePiece model of the source; None takes tokenizer.model in the directory.
        tgt_tokenizer: SentencePiece model of the target; None takes the source's.

    Raises:
        InputError: a file is missing or damaged, or the model has unsupported features, which are all named.
    """
    require_files(path, MODEL, what=DIRECTORY)
    source = path / MODEL
    file = read_model(source)
    require(file.kind in _KINDS, f"{source}: must be a TransformerSpec, got {file.kind}")
    require(file.revision > 1, f"{source}: the revision must be at least 2, got {file.revision}")
    tensors = _with_current_names(weights(file.tensors, source), file)
    starts_from_zeros = bool(_number(source, tensors, _ZERO_START))
    config = _config(path, file, tensors, starts_from_zeros)
    require_weights({name: tensor for name, tensor in tensors.items() if _explain(name) == name}, source)
    number = partial(_number, source, tensors)
    tensors = _with_positions(tensors)
    scale = _scale(source, tensors)
    ours = read_settings(path) if file.version >= 6 else None
    vocabulary: Fields = {}
    if ours is None:
        vocabulary = _vocabulary(path, config, starts_from_zeros)
        if starts_from_zeros:
            tensors = with_start(tensors, CTRANSLATE2, vocabulary)
    epsilon = config.get("layer_norm_epsilon")
    unsupported = list(_unsupported(tensors, number))
    if scale is None:
        unsupported.append("another scale of embeddings")
    model = model_config(
        CTRANSLATE2,
        tensors,
        source,
        unsupported=unsupported,
        explain=_explain,
        heads=number("encoder/num_heads"),
        norm="pre" if number("encoder/pre_norm", 1) else "post",
        activation=_ACTIVATIONS.get(number("encoder/activation"), "relu"),
        scaled_embeddings=bool(scale),
        embedding_norm="encoder/layernorm_embedding/gamma" in tensors,
        norm_epsilon=typed(path / CONFIG, "layer_norm_epsilon", _EPSILON if epsilon is None else epsilon, float),
        **_alignment(tensors, number),
    )
    foreign = partial(
        ForeignModel,
        toolkit="CTranslate2",
        source=source,
        config=model,
        tensors=tensors,
        names=CTRANSLATE2,
        scales={_RENAMED.get(name, name): scale for name, scale in int8_scales(file.tensors).items()},
        adds=(bool(config.get("add_source_bos")), bool(config.get("add_source_eos"))),
    )
    if ours is not None:
        languages = (ours.src_lang, ours.tgt_lang)
        return foreign(tokenizer=tokenizer_in(path), languages=languages, pairs=ours.pairs, search=ours.search)
    names = next((names for names in _SPM_FILES if (path / names[0]).is_file()), None)
    if src_tokenizer is None and names is not None:
        src_tokenizer = path / names[0]
        tgt_tokenizer = tgt_tokenizer or path / names[-1]
    return foreign(tokenizer=read_tokenizer(path, src_tokenizer, tgt_tokenizer, **vocabulary))


def _config(path: Path, file: ModelFile, tensors: TensorDict, starts_from_zeros: bool) -> Fields:
    """Return the content of config.json, or of the tensors that it was before version 6, with its defaults."""
    if file.version < 6:
        source = path / MODEL
        own = _take_config(source, tensors)
    else:
        require_files(path, CONFIG, what=DIRECTORY)
        source = path / CONFIG
        own = read_json(source)
    for name in ("add_source_bos", "add_source_eos"):
        value = own.get(name, False)
        require_setting(isinstance(value, bool), source, name, "true or false", value)
    config = {"decoder_start_token": "<s>", **_TOKENS, **own}
    used = {"decoder_start_token": not starts_from_zeros, "bos_token": own.get("add_source_bos")}
    for name in ("decoder_start_token", *_TOKENS):
        valid = isinstance(config[name], str) or not used.get(name, True)
        require_setting(valid, source, name, "a string", config[name])
    return config


def _alignment(tensors: Tensors, number: Callable[..., int]) -> Fields:
    """Return the settings of the alignment. CTranslate2 counts layers from 0, and negative ones from the last.

    All heads of the layer -1 are what our exports have if nothing is known.
    """
    layer = number("decoder/alignment_layer", -1)
    heads = number("decoder/alignment_heads")
    heads = 0 if heads == number("encoder/num_heads") else heads
    if layer == -1 and heads == 0:
        return {}
    if layer < 0:
        layer += CTRANSLATE2.layers(tensors, "decoder")
    return {"alignment_layer": layer, "alignment_heads": heads}


def _vocabulary(path: Path, config: Fields, starts_from_zeros: bool) -> Fields:
    """Return fields of a `Vocabulary`.

    The converter of transformers leaves the end after a source to the caller, and all converters leave language tokens.
    """
    end = config["eos_token"]
    start = config["decoder_start_token"]
    unknown = config["unk_token"]
    source, target = read_vocabularies(path, unknown)
    vocabulary = {"source": source, "target": target, "start": start, "end": end, "unknown": unknown}
    vocabulary["source_begin"] = [config["bos_token"]] if config.get("add_source_bos") else []
    vocabulary["source_end"] = [end] if config.get("add_source_eos") or starts_from_zeros else []
    languages = {}
    if starts_from_zeros:
        languages = languages_of(source, MARIAN_LANGUAGE)
    elif start == end and not vocabulary["source_begin"]:  # of fairseq
        languages = languages_of(source, *FAIRSEQ_LANGUAGES)
    if languages:
        token = next(iter(languages.values()))
        vocabulary |= {"source_begin": [token], "source_end": [end], "languages": languages}
        vocabulary["target_begin"] = [] if starts_from_zeros else [token]
    return vocabulary


def _scale(source: Path, tensors: Tensors) -> bool | None:
    """Return whether embeddings are multiplied by √dim; None if by another number or not by the same on both sides.

    The setting is a switch, or the number itself.
    """
    switches = []
    for stack, matrix in (("encoder", "src_embedding"), ("decoder", "embedding")):
        value = tensors.get(f"{stack}/scale_embeddings", np.array(1))
        embedding = tensors.get(CTRANSLATE2.entries[matrix])
        require(value.size == 1, f"{source}: {stack}/scale_embeddings must be one number, got {value.size}")
        dim = embedding.shape[-1] if embedding is not None and embedding.ndim else 1
        if value.dtype.kind != "f":
            switches.append(bool(value.item()))
        elif math.isclose(value.item(), math.sqrt(dim), rel_tol=1e-5):
            switches.append(True)
        elif math.isclose(value.item(), 1.0, rel_tol=1e-5):
            switches.append(False)
    return switches[0] if switches in ([True, True], [False, False]) else None


def _with_current_names(tensors: TensorDict, file: ModelFile) -> TensorDict:
    """Return the tensors of a model by the names of revision 5, without settings that the weights show."""
    if file.revision >= 5:
        return tensors
    current = {_RENAMED.get(name, name): tensor for name, tensor in tensors.items() if name not in _IMPLIED}
    if file.revision < 3:
        current["num_heads"] = np.array(_KINDS[file.kind])
    for name in _OF_BOTH_STACKS & current.keys():
        value = current.pop(name)
        current |= {f"{stack}/{name}": value for stack in ("encoder", "decoder")}
    return current


def _take_config(source: Path, tensors: TensorDict) -> Fields:
    """Remove from the tensors what is in config.json since version 6, and return it by the names there."""
    config: Fields = {}
    for name, default in _TOKENS.items():
        text = tensors.pop(name, np.array([*default.encode()]))
        with reading(source, f"{name} is not text"):
            config[name] = bytes(number % 256 for number in text.tolist()).decode()
    flags = {name: bool(_number(source, tensors, name, default)) for name, default in _FLAGS.items()}
    for name in _FLAGS:
        tensors.pop(name, None)
    config["add_source_bos"] = flags["with_source_bos"]
    config["add_source_eos"] = flags["with_source_eos"]
    config["decoder_start_token"] = config["bos_token" if flags["with_target_bos"] else "eos_token"]
    if flags["user_decoder_start_tokens"]:
        config["decoder_start_token"] = None
    return config


def _number(source: Path, tensors: Tensors, name: str, default: int = 0) -> int:
    """Return a setting, which model.bin stores as a tensor. Raises InputError unless it is one whole number."""
    tensor = tensors.get(name, np.array(default))
    whole = tensor.size == 1 and tensor.dtype.kind != "f"
    require_setting(whole, source, name, "one whole number", tensor.tolist())
    return int(tensor.item())


def _unsupported(tensors: Tensors, number: Callable[..., int]) -> Iterator[str]:
    """Yield the unsupported features that are not visible in the name of a tensor."""
    yield from (feature for name, feature in _SWITCHES.items() if number(name))
    for name, (default, feature) in _EQUAL.items():
        encoder = number(f"encoder/{name}", default)
        if encoder != number(f"decoder/{name}", encoder):
            yield f"{feature} in its encoder than in its decoder"
    if (activation := number("encoder/activation")) not in _ACTIVATIONS:
        yield f"activation {activation}"
    if any(name.endswith("/gamma") and f"{name.removesuffix('gamma')}beta" not in tensors for name in tensors):
        yield "RMS norms"


def _explain(name: str) -> str | None:
    """Return the unsupported feature that a tensor belongs to; None for a setting that is read or changes nothing."""
    return next((feature for pattern, feature in _FEATURES.items() if re.search(pattern, name)), name)


def _with_positions(tensors: TensorDict) -> TensorDict:
    """Add the tables of positions, with equal lengths, to a model that adds positions to embeddings.

    CTranslate2 ignores the tables of a model with relative positions, so they are left out.
    """
    if any("relative" in name for name in tensors):
        return {name: tensor for name, tensor in tensors.items() if name not in _TABLES}
    embedding = tensors.get("decoder/embeddings/weight")
    added = [tensor for name in _TABLES if (tensor := tensors.get(name)) is not None]
    if embedding is None or {x.ndim for x in (embedding, *added)} != {2}:
        return tensors
    sinusoids = fairseq_sinusoids(_SINUSOIDS, embedding.shape[-1], first=1)  # CTranslate2's
    tables = {name: tensors.get(name, sinusoids) for name in _TABLES}
    longest = min(map(len, tables.values()))
    return tensors | {name: table[:longest] for name, table in tables.items()}
