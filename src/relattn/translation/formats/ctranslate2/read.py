"""A directory for CTranslate2: models that it was given by OpenNMT-tf, OpenNMT-py, eole, or relattn."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relattn.translation.config import ModelConfig
from relattn.translation.data.imported import AnyTokenizer, tokenizer_in
from relattn.translation.data.tokenizer import TOKENIZER
from relattn.translation.errors import InputError, reading
from relattn.translation.files import require_files
from relattn.translation.formats.ctranslate2.model_bin import read_model, weights
from relattn.translation.formats.ctranslate2.translator import CONFIG, DIRECTORY, MODEL, description, read_vocabularies
from relattn.translation.formats.foreign_model import SEARCH, Found, config_of, tokenizer_of
from relattn.translation.formats.names import CTRANSLATE2, CTRANSLATE2_ACTIVATIONS

_ACTIVATIONS = {number: name for name, number in CTRANSLATE2_ACTIVATIONS.items()}
_EPSILON = 1e-5  # of layer normalisation, where a config.json names none
_TABLES = tuple(CTRANSLATE2.entries[f"{side}_positions.weight"] for side in ("src", "tgt"))
_SINUSOIDS = 4096  # positions of a model whose sinusoids CTranslate2 makes as they are needed

_SETTINGS = {  # in a model.bin, beside weights, that are read here or change nothing of the model
    f"{stack}/{name}"
    for stack in ("encoder", "decoder")
    for name in (
        "num_heads",
        "pre_norm",
        "activation",
        "scale_embeddings",
        "embeddings_merge",
        "alignment_layer",
        "alignment_heads",
        "alibi_use_positive_positions",
        "scale_alibi",
    )
}
_SWITCHES = {  # which must be off
    "decoder/alibi": "ALiBi's positions",
    "decoder/start_from_zero_embedding": "a first target token without an embedding",
    "encoder/multi_query_attention": "fewer heads of keys than of queries",
    "decoder/multi_query_attention": "fewer heads of keys than of queries",
}
_FEATURES = {  # by the names of weights that only a model with them has
    r"layernorm_embedding/": "a norm of its embeddings",
    r"(input|post_attention|\w+_feedforward|shared|external_\w+)_layer_norm/": "other norms in its layers",
    r"linear_0_noact/": "gated feed-forward layers",
    r"relative_attention_": "T5's positions",
    r"relative_(asymmetric|left|right)_": "other relative positions for the left than for the right",
    r"rotary_": "rotary positions",
    r"embeddings_[1-9]": "factors of the source",
    r"/num_heads_kv$": "fewer heads of keys than of queries",
    r"/[qkv]_norm/": "norms of queries and keys",
    r"/project_(in|out)/": "projections around its layers",
}


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> Found:
    """The model in a directory for CTranslate2, quantised or not.

    Args:
        path: the directory.
        src_tokenizer: file of a SentencePiece model; tokenizer.model of the directory where None.
        tgt_tokenizer: of the target's, where it has one of its own.

    Raises:
        InputError: a file is missing or damaged, or the model has what ours have not, which is all named.
    """
    require_files(path, MODEL, CONFIG, what=DIRECTORY)
    file = read_model(path / MODEL)
    if file.kind != "TransformerSpec":
        raise InputError(f"{path / MODEL}: a {file.kind}; a model to translate is a TransformerSpec")
    with reading(path / CONFIG, "not JSON"):
        about = json.loads((path / CONFIG).read_bytes())
    if not isinstance(about, dict):
        raise InputError(f"{path / CONFIG}: not the configuration of a model")
    tensors = _with_positions(weights(file.tensors, path / MODEL))
    config = _config(tensors, about, path / MODEL)
    if (ours := description(path)) is not None:
        tokenizer: AnyTokenizer = tokenizer_in(path)
        languages, search = (ours.src_lang, ours.tgt_lang), ours.search
    else:
        here = path / TOKENIZER if (path / TOKENIZER).is_file() else None
        tokenizer = tokenizer_of(path, src_tokenizer or here, tgt_tokenizer, **_vocabulary(path, about))
        languages, search = ("", ""), SEARCH
    return Found(
        toolkit="CTranslate2",
        source=path / MODEL,
        config=config,
        tensors=tensors,
        names=CTRANSLATE2,
        tokenizer=tokenizer,
        languages=languages,
        search=search,
    )


def _config(tensors: Mapping[str, Tensor], about: dict[str, Any], source: Path) -> ModelConfig:
    """What the model is in ours."""
    return config_of(
        CTRANSLATE2,
        tensors,
        source,
        lacking=_lacking(tensors),
        says=_feature,
        heads=_setting(tensors, "num_heads"),
        norm="pre" if _setting(tensors, "pre_norm", 1) else "post",
        activation=_ACTIVATIONS.get(_setting(tensors, "activation"), "relu"),
        scaled_embeddings=bool(_setting(tensors, "scale_embeddings", 1)),
        norm_epsilon=about.get("layer_norm_epsilon") or _EPSILON,
    )


def _setting(tensors: Mapping[str, Tensor], name: str, default: int = 0) -> int:
    """A number of both stacks, as the encoder has it."""
    return _number(tensors, f"encoder/{name}", default)


def _number(tensors: Mapping[str, Tensor], name: str, default: int = 0) -> int:
    """A setting of a model.bin; the default where it has none, or none that is one number."""
    found = tensors.get(name)
    return int(found) if found is not None and found.numel() == 1 else default


def _lacking(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """What the model has and ours have not, but for what it has weights for."""
    yield from (what for name, what in _SWITCHES.items() if _number(tensors, name))
    for name, what in (
        ("num_heads", "other heads"),
        ("pre_norm", "norms in other places"),
        ("activation", "another activation"),
        ("scale_embeddings", "another scale of embeddings"),
    ):
        encoder = _number(tensors, f"encoder/{name}")
        if encoder != _number(tensors, f"decoder/{name}", encoder):
            yield f"{what} in its encoder than in its decoder"
    activation = _setting(tensors, "activation")
    if activation not in _ACTIVATIONS:
        yield f"activation {activation}"
    if any(name.endswith("/gamma") and f"{name.removesuffix('gamma')}beta" not in tensors for name in tensors):
        yield "RMS norms"


def _feature(name: str) -> str | None:
    """What it says of a model that something of a name belongs to it."""
    if name in _SETTINGS or name in _SWITCHES:
        return None
    return next((what for pattern, what in _FEATURES.items() if re.search(pattern, name)), name)


def _with_positions(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with tables of positions of one length, for a model that adds positions to embeddings."""
    embedding = tensors.get("decoder/embeddings/weight")
    if embedding is None or any("relative" in name for name in tensors):
        return tensors
    made = _sinusoids(_SINUSOIDS, embedding.shape[-1])
    tables = [tensors.get(name, made) for name in _TABLES]
    longest = min(map(len, tables))
    return {**tensors, **{name: table[:longest] for name, table in zip(_TABLES, tables, strict=True)}}


def _sinusoids(positions: int, dim: int) -> Tensor:
    """(positions, dim) as CTranslate2 makes them: Tensor2Tensor's, sines in the first half, counted from 1."""
    half = dim // 2
    frequency = torch.exp(torch.arange(half) * (-math.log(10_000.0) / max(1, half - 1)))
    angle = torch.arange(1, positions + 1)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def _vocabulary(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The pieces of the model and its marks."""
    source, target = read_vocabularies(path)
    begin, end = about.get("bos_token", "<s>"), about.get("eos_token", "</s>")
    return {
        "source": source,
        "target": target,
        "start": about.get("decoder_start_token", "<s>"),
        "end": end,
        "unknown": about.get("unk_token", "<unk>"),
        "source_begin": [begin] if about.get("add_source_bos") else [],
        "source_end": [end] if about.get("add_source_eos") else [],
    }
