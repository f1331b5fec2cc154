"""Models of T5's kinds from transformers: T5, FLAN-T5, mT5, UMT5 and MADLAD-400.

Attention scores are not divided by √head_dim there, so the maps to queries are multiplied by it here. T5's first models
multiply the output of the decoder by 1 / √dim, which becomes part of the weights of the last norm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import BucketBias
from relattn_mt.formats.foreign_model import (
    ForeignModel,
    languages_of,
    load_checkpoint,
    read_tokenizer,
    require_supported,
    require_weights,
    spm_pieces,
)
from relattn_mt.formats.names import Names
from relattn_mt.formats.transformers.directory import (
    ACTIVATIONS,
    FAMILIES,
    T5_MODEL,
    TOKENIZER,
    Settings,
    licence,
    optional,
    weight_files,
)
from relattn_mt.formats.transformers.generation import Generation
from relattn_mt.formats.transformers.vocabulary import UNUSED, piece_of, require_tokenizer_class, special_token
from relattn_mt.support.errors import InputError, require
from relattn_mt.tokens.tokenizer import processor
from relattn_mt.weights import LazyWeights, read_weights

MADLAD_LANGUAGE = re.compile(r"<2([a-z]{2,3}(?:_\w+)?)>")
_EMBEDDINGS = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
_NOT_USED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # in T5's first checkpoints


def read(settings: Settings, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model whose settings are given; as `transformers.read`. Weights are read when they are asked for."""
    path = settings.file.parent
    require_supported(unsupported(settings), path)
    generation = Generation(path, settings)
    tensors = _tensors(path)
    is_tied = _OUTPUT not in tensors
    config = _config(settings, is_tied)
    names = _names(config, settings)
    if unknown := names.unknown(tensors, config):
        require_supported([f"weight {name}" for name in unknown], path)
    vocabulary = _vocabulary(path, src_tokenizer or path / T5_MODEL, settings, generation)
    tokenizer = read_tokenizer(path, src_tokenizer or path / T5_MODEL, tgt_tokenizer, **vocabulary)
    search, notes = generation.search(0, tokenizer.special.banned)
    if prompts := vocabulary["prompts"]:
        notes.append(f"prompts, before sources of these pairs only: {', '.join(prompts)}")
    return ForeignModel(
        toolkit=f"transformers ({FAMILIES[settings['model_type']].architecture})",
        source=path,
        config=config,
        tensors=tensors,
        names=names,
        tokenizer=tokenizer,
        languages=settings.languages(path),
        pairs=list(vocabulary["prompts"]),
        search=search,
        notes=(*notes, *licence(path)),
    )


def unsupported(settings: Settings) -> Iterator[str]:
    """Yield the unsupported features."""
    for name, supported in (
        ("relative_attention_num_buckets", BucketBias.buckets),
        ("relative_attention_max_distance", BucketBias.farthest),
    ):
        if settings.number(name) != supported:
            yield f"{name} {settings.number(name)}"
    if _activation(settings)[1] not in ACTIVATIONS:
        yield f"feed_forward_proj {settings['feed_forward_proj']}"
    if settings["quantization_config"] is not None:
        yield "quantization_config"
    is_old = str(settings["transformers_version"]).startswith("4.")
    if settings["model_type"] == "mt5" and is_old and settings["tie_word_embeddings"]:
        yield "tie_word_embeddings in mT5, which transformers 4 and 5 compute differently"


def _activation(settings: Settings) -> tuple[bool, str]:
    """Return whether the feed-forward layers are gated, and the name of their activation."""
    first, _, last = str(settings["feed_forward_proj"]).rpartition("-")
    if (first, last) == ("gated", "gelu"):
        last = "gelu_new"
    return first == "gated", last if first in ("", "gated") else ""


def _config(settings: Settings, is_tied: bool) -> ModelConfig:
    """Return the configuration of our model."""
    is_gated, activation = _activation(settings)
    layers = settings.number("num_layers")
    dropout = settings.number("dropout_rate", float)
    try:
        return ModelConfig(
            dim=settings.number("d_model"),
            heads=settings.number("num_heads"),
            head_dim=settings.number("d_kv"),
            feed_forward_dim=settings.number("d_ff"),
            feed_forward="gated" if is_gated else "plain",
            encoder_layers=layers,
            decoder_layers=layers if settings["num_decoder_layers"] is None else settings.number("num_decoder_layers"),
            norm="rms",
            norm_epsilon=settings.number("layer_norm_epsilon", float),
            activation=ACTIVATIONS[activation],  # type: ignore[arg-type]
            shared_embeddings="all" if is_tied else "inputs",
            scaled_embeddings=False,
            positions="t5",
            bias_per_layer=settings["model_type"] == "umt5",
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
        )
    except InputError as error:
        raise InputError(f"{settings.file}: {error}") from error


def _names(config: ModelConfig, settings: Settings) -> Names:
    """Return the names of the weights, and the numbers that they are multiplied by."""
    shared = {
        "embedding": _EMBEDDINGS[0],
        "output_weight": _OUTPUT,
        "encoder_norm.": "encoder.final_layer_norm.",
        "decoder_norm.": "decoder.final_layer_norm.",
    }
    layer = {"residuals.0.norm.": "layer.0.layer_norm."} | _attention("self_attention", "layer.0.SelfAttention")
    if config.bias_per_layer:
        layer["self_attention.attention.bias.weight"] = _BIAS
    else:
        for side, stack in (("src", "encoder"), ("tgt", "decoder")):
            shared[f"{side}_positions.bias.weight"] = f"{stack}.block.0.{_BIAS}"
    encoder = layer | _feed_forward(config, 1)
    decoder = layer | _attention("cross_attention", "layer.1.EncDecAttention") | _feed_forward(config, 2)
    decoder["residuals.1.norm."] = "layer.1.layer_norm."
    factors = {"attention.query.weight": config.head_size**0.5}
    # transformers 5 saves tie_word_embeddings: true in all models, and this setting
    scales = settings["scale_decoder_outputs"]
    if scales is None:
        scales = settings["tie_word_embeddings"] is not False
    if scales and settings["model_type"] != "mt5":
        factors["decoder_norm.weight"] = config.dim**-0.5
    return Names(shared, ("encoder.block.{}.", encoder), ("decoder.block.{}.", decoder), factors=factors)


def _attention(ours: str, theirs: str) -> dict[str, str]:
    parts = {"query": "q", "key": "k", "value": "v", "out": "o"}
    return {f"{ours}.{part}.": f"{theirs}.{letter}." for part, letter in parts.items()}


def _feed_forward(config: ModelConfig, number: int) -> dict[str, str]:
    """Return the names of the feed-forward layers, which are sub-layer `number`."""
    prefix = f"layer.{number}.DenseReluDense"
    names = {f"residuals.{number}.norm.": f"layer.{number}.layer_norm.", "feed_forward.3.": f"{prefix}.wo."}
    if config.feed_forward == "plain":
        return names | {"feed_forward.0.": f"{prefix}.wi."}
    return names | {"feed_forward.0.": f"{prefix}.wi_0.", "feed_forward.gate.": f"{prefix}.wi_1."}


def _tensors(path: Path) -> Mapping[str, np.ndarray]:
    """Return the weights, with the embeddings under one name, and the output unless it is the same.

    Those of safetensors are read when they are asked for, one after the other.
    """
    files = [path / name for name in weight_files(path)]
    tensors: Mapping[str, np.ndarray]
    if files[0].suffix == ".safetensors":
        tensors = read_weights(*files)[0]
    else:
        tensors = {name: tensor for file in files for name, tensor in load_checkpoint(file).items()}
    require_weights(tensors, path)
    present = [name for name in (*_EMBEDDINGS, _OUTPUT) if name in tensors]
    require(bool(present), f"{path}: has no {_EMBEDDINGS[0]}")
    first, *others = present
    equal = [name for name in others if np.array_equal(tensors[name], tensors[first])]
    differs = [name for name in others if name not in equal and name != _OUTPUT]
    require(not differs, f"{path}: {' and '.join(differs)} must be equal to {first}")
    left_out = {*equal, *_EMBEDDINGS[1:], _NOT_USED}
    names = {_EMBEDDINGS[0]: first} | {name: name for name in tensors if name not in left_out}
    return LazyWeights(names, lambda name: tensors[names[name]])


def _vocabulary(path: Path, model: Path, settings: Settings, generation: Generation) -> dict[str, Any]:
    """Return fields of a `Vocabulary`: the pieces of the SentencePiece model, and further ones that no text has."""
    require_tokenizer_class(path, settings, "T5Tokenizer", "MT5Tokenizer")
    require(model.is_file(), f"{path}: must have {T5_MODEL}; or give --tokenizer")
    pieces = spm_pieces(model)
    size = settings.number("vocab_size")
    require(len(pieces) <= size, f"{model}: must have at most {size:,} pieces, the vocab_size, got {len(pieces):,}")
    pieces += [f"{UNUSED}{number}" for number in range(size - len(pieces))]
    languages = languages_of(pieces, MADLAD_LANGUAGE)
    tokenizer = optional(path / TOKENIZER)
    return {
        "source": pieces,
        "target": pieces,
        "start": piece_of(pieces, generation.token("decoder_start_token_id"), path),
        "end": piece_of(pieces, generation.token("eos_token_id"), path),
        "unknown": special_token(tokenizer, "unk", "<unk>"),
        "source_begin": [next(iter(languages.values()))] if languages else [],
        "source_end": [special_token(tokenizer, "eos", "</s>")],
        "languages": languages,
        "prompts": _prompts(settings, model, pieces),
    }


def _prompts(settings: Settings, model: Path, pieces: list[str]) -> dict[str, str]:
    """Return the pieces of the text before each source, such as "translate English to German:", by "en de"."""
    tasks = settings["task_specific_params"]
    prompts = {}
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        match = re.fullmatch(r"translation_([a-z]+)_to_([a-z]+)", name)
        text = task.get("prefix") if isinstance(task, dict) else None
        if match and isinstance(text, str):
            ids = processor(model.read_bytes()).encode(text)
            prompts[f"{match[1]} {match[2]}"] = " ".join(pieces[i] for i in ids)
    return prompts
