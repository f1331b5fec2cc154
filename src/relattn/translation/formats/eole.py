"""Read a directory of eole: config.json with the settings that are not defaults, vocab.json, and safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from relattn.translation.bundle import read_weights
from relattn.translation.errors import InputError, require
from relattn.translation.formats.foreign_model import (
    ACTIVATIONS,
    SPECIALS,
    ForeignModel,
    opennmt_model,
    read_json,
    require_weights,
    unsupported_settings,
)
from relattn.translation.formats.names import EOLE, SCALED

CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocab.json", "model.*.safetensors"
_SUPPORTED: dict[str, tuple[Any, ...]] = {  # values, eole's default first
    "encoder_layer_style": ("standard",),
    "mlp_activation_fn": tuple(ACTIVATIONS),
    "ffn_layernorm": (False,),
    "attn_scaling": (None,),
    "q_gating": (False,),
}
_SUPPORTED_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", "Relative"),
    "position_shift": (0, None),
    "normalize": (False, None),
}
_SHARED = (  # setting, weight that is not stored if the setting is on, weight that it equals
    ("share_embeddings", "tgt_emb.embeddings.weight", "src_emb.embeddings.weight"),
    ("share_decoder_embeddings", "generator.weight", "tgt_emb.embeddings.weight"),
)


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a directory.

    Args:
        path: the directory.
        src_tokenizer: SentencePiece model of the source.
        tgt_tokenizer: SentencePiece model of the target; None takes the source's.

    Raises:
        InputError: a file is missing or damaged, or the model has unsupported features, which are all named.
    """
    settings, vocab = read_json(path / CONFIG).get("model"), read_json(path / VOCABULARY)
    if not isinstance(settings, dict):
        raise InputError(f"{path / CONFIG}: must have a group model")
    tensors = _weights(path)
    require_weights(tensors, path)
    for flag, name, other in _SHARED:
        if settings.get(flag) and other in tensors:
            tensors.setdefault(name, tensors[other])
    for name in list(tensors):
        if name.endswith("relative_positions_embeddings.weight"):  # eole does not divide this term by √head_dim
            tensors[f"{name}{SCALED}"] = tensors[name] * max(tensors[name].shape[-1:], default=1) ** 0.5
        elif name.endswith(".layer_scalar") and bool((tensors[name] == 1).all()):  # factor of the layer's output
            del tensors[name]

    def get(name: str, default: Any) -> Any:
        """Return a setting, which may be that of a stack or of the model; defaults are not stored."""
        stacks = [settings[stack] for stack in ("decoder", "encoder") if isinstance(settings.get(stack), dict)]
        return next((group[name] for group in [*stacks, settings] if name in group), default)

    return opennmt_model(
        "eole",
        EOLE,
        path,
        tensors,
        get,
        supported=_SUPPORTED,
        unsupported=unsupported_settings(_SUPPORTED_EMBEDDINGS, _group(settings, "embeddings", path / CONFIG).get),
        norm_epsilon=1e-5,
        tokenizers=(src_tokenizer, tgt_tokenizer),
        vocab_file=path / VOCABULARY,
        vocab=vocab,
        specials=SPECIALS | _group(vocab, "specials", path / VOCABULARY),
    )


def _group(content: dict[str, Any], name: str, source: Path) -> dict[str, Any]:
    group = content.get(name) or {}
    if not isinstance(group, dict):
        raise InputError(f"{source}: {name} must be a JSON object")
    return group


def _weights(path: Path) -> dict[str, Tensor]:
    files = sorted(path.glob(WEIGHTS))
    require(bool(files), f"{path}: has no {WEIGHTS.replace('*', '00')}")
    return {name: tensor for file in files for name, tensor in read_weights(file)[0].items()}
