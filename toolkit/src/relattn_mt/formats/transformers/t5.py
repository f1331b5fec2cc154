"""Models of T5's kinds from transformers: T5, FLAN-T5, mT5, UMT5 and MADLAD-400.

Attention scores are not divided by √head_dim there, so the maps to queries are multiplied by it here. T5's first models
multiply the output of the decoder by 1 / √dim, which becomes part of the weights of the last norm.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import BucketBias
from relattn_mt.formats.foreign_model import (
    ForeignModel,
    languages_of,
    read_tokenizer,
    require_supported,
    require_weights,
    spm_pieces,
    unsupported_settings,
)
from relattn_mt.formats.names import TABLES, Names
from relattn_mt.formats.transformers.directory import (
    T5_MODEL,
    Settings,
    licence,
    weights_in,
)
from relattn_mt.formats.transformers.generation import Generation
from relattn_mt.formats.transformers.vocabulary import filled
from relattn_mt.support.errors import naming, reading, require
from relattn_mt.support.types import Fields
from relattn_mt.tokens.tokenizer import processor
from relattn_mt.weights import LazyWeights, weight_table

MADLAD_LANGUAGE = re.compile(r"<2([a-z]{2,3}(?:_\w+)?)>")
_FEED_FORWARD = {
    "relu": ("plain", "relu"),
    "gelu": ("plain", "gelu"),
    "gated-relu": ("gated", "relu"),
    "gated-gelu": ("gated", "gelu_tanh"),
    "gated-silu": ("gated", "swish"),
}
_SUPPORTED: dict[str, Collection[Any]] = {
    "feed_forward_proj": tuple(_FEED_FORWARD),
    "relative_attention_num_buckets": (BucketBias.buckets,),
    "relative_attention_max_distance": (BucketBias.farthest,),
    "quantization_config": (None,),
}
_EMBEDDINGS = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_NOT_USED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # in T5's first checkpoints


def read(settings: Settings, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model whose settings are given; as `transformers.read`. Weights are read when they are asked for."""
    path = settings.path
    require_supported(_unsupported(settings), path)
    generation = Generation(settings)
    tensors = _tensors(path)
    is_tied = _OUTPUT not in tensors
    config = _config(settings, is_tied)
    names = Names(TABLES["t5"], factors=_factors(config, settings))
    vocabulary = _vocabulary(src_tokenizer or path / T5_MODEL, settings, generation)
    tokenizer = read_tokenizer(path, src_tokenizer or path / T5_MODEL, tgt_tokenizer, **vocabulary)
    places = names.places(config)
    known = {places[ours].name for ours in weight_table(config, tokenizer.vocab_sizes)}
    require_supported((f"weight {name}" for name in tensors if name not in known), path)
    search, notes = generation.search(0, tokenizer.special.banned)
    if prompts := vocabulary["prompts"]:
        notes.append(f"prompts, before sources of these pairs only: {', '.join(prompts)}")
    return ForeignModel(
        toolkit=f"transformers ({settings.family.architecture})",
        source=path,
        config=config,
        tensors=tensors,
        names=names,
        tokenizer=tokenizer,
        languages=settings.languages(),
        pairs=list(vocabulary["prompts"]),
        search=search,
        notes=(*notes, *licence(path)),
    )


def _unsupported(settings: Settings) -> list[str]:
    """Return the unsupported features."""
    features = unsupported_settings(_SUPPORTED, settings.config.get)
    is_old = str(settings["transformers_version"]).startswith("4.")
    if settings["model_type"] == "mt5" and is_old and settings["tie_word_embeddings"]:
        features.append("tie_word_embeddings in mT5, which transformers 4 and 5 compute differently")
    return features


def _config(settings: Settings, is_tied: bool) -> ModelConfig:
    """Return the configuration of our model."""
    feed_forward, activation = _FEED_FORWARD[settings["feed_forward_proj"]]
    layers = settings.number("num_layers")
    has_decoder_layers = settings["num_decoder_layers"] is not None
    dropout = settings.number("dropout_rate", float)
    with naming(settings.file):
        return ModelConfig(
            dim=settings.number("d_model"),
            heads=settings.number("num_heads"),
            head_dim=settings.number("d_kv"),
            feed_forward_dim=settings.number("d_ff"),
            feed_forward=feed_forward,  # type: ignore[arg-type]
            encoder_layers=layers,
            decoder_layers=settings.number("num_decoder_layers") if has_decoder_layers else layers,
            norm="rms",
            norm_epsilon=settings.number("layer_norm_epsilon", float),
            activation=activation,  # type: ignore[arg-type]
            shared_embeddings="all" if is_tied else "inputs",
            scaled_embeddings=False,
            positions="t5",
            bias_per_layer=settings["model_type"] == "umt5",
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
        )


def _factors(config: ModelConfig, settings: Settings) -> dict[str, float]:
    """Return the numbers that weights are multiplied by."""
    factors = {"attention.query.weight": config.head_size**0.5}
    scales = settings["scale_decoder_outputs"]  # in transformers 5, which saves tie_word_embeddings: true always
    if scales is None:
        scales = settings["tie_word_embeddings"] is not False
    if scales and settings["model_type"] != "mt5":
        factors["decoder_norm.weight"] = config.dim**-0.5
    return factors


def _tensors(path: Path) -> LazyWeights:
    """Return the weights, with the embeddings under one name, and the output unless it is the same."""
    tensors = weights_in(path)
    require_weights(tensors, path)
    names = {name.replace(".wi_0.", ".wi."): name for name in tensors if name not in (*_EMBEDDINGS, _NOT_USED)}
    copies = [name for name in _EMBEDDINGS if name in tensors]
    require(copies, f"{path}: has no {_EMBEDDINGS[0]}")
    first = names[_EMBEDDINGS[0]] = copies[0]
    for name in copies[1:]:
        require(np.array_equal(tensors[name], tensors[first]), f"{path}: {name} must be equal to {first}")
    if _OUTPUT in names and np.array_equal(tensors[_OUTPUT], tensors[first]):
        del names[_OUTPUT]
    return LazyWeights(names, lambda name: tensors[names[name]])


def _vocabulary(model: Path, settings: Settings, generation: Generation) -> Fields:
    """Return fields of a `Vocabulary`: the pieces of the SentencePiece model, and further ones that no text has."""
    settings.require_tokenizer("T5Tokenizer", "MT5Tokenizer")
    require(model.is_file(), f"{settings.path}: must have {T5_MODEL}; or give --tokenizer")
    pieces = filled(model, spm_pieces(model), settings.number("vocab_size"))
    languages = languages_of(pieces, MADLAD_LANGUAGE)
    return {
        "source": pieces,
        "target": pieces,
        "start": generation.piece("decoder_start_token_id", pieces),
        "end": generation.piece("eos_token_id", pieces),
        "unknown": settings.special_token("unk", "<unk>"),
        "source_begin": [*languages.values()][:1],
        "source_end": [settings.special_token("eos", "</s>")],
        "languages": languages,
        "prompts": _prompts(settings, model, pieces),
    }


def _prompts(settings: Settings, model: Path, pieces: list[str]) -> dict[str, str]:
    """Return the pieces of the text before each source, such as "translate English to German:", by "en de"."""
    prompts = {}
    with reading(settings.file, "task_specific_params must have the prefix of each task"):
        for name, task in (settings["task_specific_params"] or {}).items():
            if match := re.fullmatch(r"translation_([a-z]+)_to_([a-z]+)", name):
                ids = processor(model.read_bytes()).encode(task["prefix"])
                prompts[" ".join(match.groups())] = " ".join(pieces[i] for i in ids)
    return prompts
