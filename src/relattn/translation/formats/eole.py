"""A directory of eole: config.json with the settings that were given, vocab.json, and weights as safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from relattn.translation import bundle
from relattn.translation.errors import InputError, reading
from relattn.translation.formats.foreign_model import Found, config_of, flatten_positions, tokenizer_of, unlike
from relattn.translation.formats.names import EOLE, SCALED

CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocab.json", "model.*.safetensors"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_tanh"}
_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # where a vocabulary names none
# Settings that models here have these values of, eole's default first.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "encoder_layer_style": ("standard",),
    "layer_norm": ("standard", "standardFP32"),
    "mlp_activation_fn": tuple(ACTIVATIONS),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "ffn_layernorm": (False,),
    "sliding_window": (0,),
    "attn_scaling": (None,),
    "q_gating": (False,),
    "generator_function": ("softmax",),
}
_SHARED = (  # what is left out of the files where a setting is on, and what it is the same as
    ("share_embeddings", "tgt_emb.embeddings.weight", "src_emb.embeddings.weight"),
    ("share_decoder_embeddings", "generator.weight", "tgt_emb.embeddings.weight"),
)
_OF_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", "Relative"),
    "position_shift": (0, None),
    "normalize": (False, None),
}


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> Found:
    """The model in a directory.

    Args:
        path: the directory.
        src_tokenizer: file of the source's SentencePiece model.
        tgt_tokenizer: of the target's, where it has one of its own.

    Raises:
        InputError: a file is missing or damaged, or the model has what ours have not, which is all named.
    """
    config, vocab = (_json(path / name) for name in (CONFIG, VOCABULARY))
    settings = config.get("model")
    if not isinstance(settings, dict):
        raise InputError(f"{path / CONFIG}: says nothing of a model")
    tensors = _weights(path)
    for flag, name, other in _SHARED:
        if settings.get(flag) and other in tensors:
            tensors.setdefault(name, tensors[other])
    for name in [name for name in tensors if name.endswith("relative_positions_embeddings.weight")]:
        tensors[f"{name}{SCALED}"] = tensors[name] * tensors[name].shape[-1] ** 0.5  # scores, with it, unscaled
    for name in [name for name in tensors if name.endswith(".layer_scalar")]:
        if bool((tensors[name] == 1).all()):  # by which a layer's output is multiplied
            del tensors[name]
    given = vocab.get("specials")
    specials = _SPECIALS | (given if isinstance(given, dict) else {})
    model = config_of(
        EOLE,
        tensors,
        path,
        lacking=_lacking(settings),
        heads=_setting(settings, "heads", 8),
        activation=ACTIVATIONS.get(_setting(settings, "mlp_activation_fn", "relu"), "relu"),
        scaled_embeddings=flatten_positions(tensors),
        norm_epsilon=_setting(settings, "norm_eps", 1e-5),
    )
    return Found(
        toolkit="eole",
        source=path,
        config=model,
        tensors=tensors,
        names=EOLE,
        tokenizer=tokenizer_of(
            path / VOCABULARY,
            src_tokenizer,
            tgt_tokenizer,
            source=vocab.get("src"),
            target=vocab.get("tgt"),
            start=vocab.get("decoder_start_token", specials["bos_token"]),
            end=specials["eos_token"],
            unknown=specials["unk_token"],
        ),
    )


def _json(path: Path) -> dict[str, Any]:
    with reading(path, "not JSON"):
        content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise InputError(f"{path}: not names and values")
    return content


def _weights(path: Path) -> dict[str, Tensor]:
    files = sorted(path.glob(WEIGHTS))
    if not files:
        raise InputError(f"{path}: has no {WEIGHTS.replace('*', '00')}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= bundle.read_weights(file)[0]
    return tensors


def _setting(settings: dict[str, Any], name: str, default: Any) -> Any:
    """A setting of the model: eole writes it for both stacks, for each, or where it is as by default not at all."""
    for part in ("decoder", "encoder"):
        of_part = settings.get(part)
        if isinstance(of_part, dict) and name in of_part:
            return of_part[name]
    return settings.get(name, default)


def _lacking(settings: dict[str, Any]) -> Iterator[str]:
    """What the model has and ours have not, but for what it has weights for."""
    yield from unlike(_PLAIN, partial(_setting, settings))
    heads = _setting(settings, "heads", 8)
    if _setting(settings, "heads_kv", None) not in (None, heads):
        yield "fewer heads of keys than of queries"
    given = settings.get("embeddings")
    embeddings = given if isinstance(given, dict) else {}
    yield from unlike(_OF_EMBEDDINGS, embeddings.get)
