"""Read a checkpoint of OpenNMT-py 3: a pickle of weights, options and vocabularies. Nothing in it is executed.

The weights may be in a safetensors file of the same name next to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from relattn.translation.bundle import read_weights
from relattn.translation.errors import InputError, one_line, require
from relattn.translation.formats.foreign_model import (
    SPECIALS,
    ForeignModel,
    load_checkpoint,
    opennmt_model,
    require_weights,
    typed,
)
from relattn.translation.formats.names import OPENNMT_PY

_SUPPORTED: dict[str, tuple[Any, ...]] = {  # values, OpenNMT-py's default first
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "num_experts": (0,),
    "multiquery": (False,),
    "copy_attn": (False,),
}


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a checkpoint.

    Args:
        path: the file.
        src_tokenizer: SentencePiece model of the source.
        tgt_tokenizer: SentencePiece model of the target; None takes the source's.

    Raises:
        InputError: the file cannot be read, holds anything but tensors, plain values and options, or the model has
            unsupported features, which are all named.
    """
    content = _load(path)
    options, vocab = vars(content["opt"]), content["vocab"]
    tensors = dict(content["model"])
    tensors |= {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in content["generator"].items()}
    require_weights(tensors, path)
    distance = typed(path, "max_relative_positions", options.get("max_relative_positions", 0), int)
    return opennmt_model(
        "OpenNMT-py",
        OPENNMT_PY,
        path,
        tensors,
        options.get,
        supported=_SUPPORTED,
        unsupported=_unsupported(distance, vocab),
        norm_epsilon=1e-6,
        tokenizers=(src_tokenizer, tgt_tokenizer),
        vocab_file=path,
        vocab=vocab,
        specials=SPECIALS,
    )


def _load(path: Path) -> dict[str, Any]:
    """Return the checkpoint's entries, each of its type."""
    content = load_checkpoint(path, [argparse.Namespace], ", as checkpoints older than OpenNMT-py 3")
    content = content if isinstance(content, dict) else {}
    if "model" not in content and path.with_suffix(".safetensors").is_file():
        content |= {"model": read_weights(path.with_suffix(".safetensors"))[0], "generator": {}}
    types = {"model": dict, "generator": dict, "vocab": dict, "opt": argparse.Namespace}
    wrong = [name for name, kind in types.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise InputError(f"{path}: not a checkpoint of OpenNMT-py 3 with its weights: it has no {', no '.join(wrong)}")
    for part in types:
        entries = vars(content[part]) if part == "opt" else content[part]
        for name, value in entries.items():
            require(isinstance(name, str), f"{path}: names in {part} must be text, got {one_line(repr(name), 40)}")
            plain = part in ("model", "generator") or not isinstance(value, Tensor)
            require(plain, f"{path}: {part}.{one_line(name, 40)} must not be a tensor")
    for part in ("model", "generator"):
        content[part] = {name: value for name, value in content[part].items() if isinstance(value, Tensor)}
    return content


def _unsupported(distance: int, vocab: dict[str, Any]) -> Iterator[str]:
    """Yield the unsupported features that neither a weight nor an option of `_SUPPORTED` shows."""
    if distance < 0:
        yield "rotary positions" if distance == -1 else "ALiBi's positions"
    if (task := vocab.get("data_task", "seq2seq")) != "seq2seq":
        yield f"the task {one_line(task, 40)}"
    if vocab.get("src_feats"):
        yield "features of the source"
