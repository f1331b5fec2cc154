"""A checkpoint of OpenNMT-py 3: a pickle of weights, options and vocabularies, opened so that nothing in it runs.

The weights may lie beside it instead, in a safetensors file of the same name.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relattn.translation import bundle
from relattn.translation.errors import InputError, one_line, reading
from relattn.translation.formats.foreign_model import Found, config_of, flatten_positions, tokenizer_of, unlike
from relattn.translation.formats.names import OPENNMT_PY

END, UNKNOWN = "</s>", "<unk>"  # in every vocabulary of OpenNMT-py
_EPSILON = 1e-6  # of layer normalisation, where its options name none
_PLAIN: dict[str, tuple[Any, ...]] = {  # options that models here have these values of, OpenNMT-py's default first
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "multiquery": (False,),
    "copy_attn": (False,),
}


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> Found:
    """The model in a checkpoint.

    Args:
        path: the file.
        src_tokenizer: file of the source's SentencePiece model.
        tgt_tokenizer: of the target's, where it has one of its own.

    Raises:
        InputError: it cannot be read, holds anything but tensors, plain values and options, or a model that has what
            ours have not, which is all named.
    """
    content = _load(path)
    options, vocab = vars(content["opt"]), content["vocab"]
    tensors = dict(content["model"])
    tensors |= {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in content["generator"].items()}
    config = config_of(
        OPENNMT_PY,
        tensors,
        path,
        lacking=_lacking(options, vocab),
        heads=options.get("heads", 8),
        activation=options.get("pos_ffn_activation_fn", "relu"),
        scaled_embeddings=flatten_positions(tensors),
        norm_epsilon=options.get("norm_eps", _EPSILON),
    )
    return Found(
        toolkit="OpenNMT-py",
        source=path,
        config=config,
        tensors=tensors,
        names=OPENNMT_PY,
        tokenizer=tokenizer_of(
            path,
            src_tokenizer,
            tgt_tokenizer,
            source=vocab.get("src"),
            target=vocab.get("tgt"),
            start=vocab.get("decoder_start_token", "<s>"),
            end=END,
            unknown=UNKNOWN,
        ),
    )


def _load(path: Path) -> dict[str, Any]:
    """The checkpoint's parts, each of its type."""
    options = torch.serialization.safe_globals([argparse.Namespace])
    with reading(path, "not a checkpoint of PyTorch"), options, warnings.catch_warnings(action="ignore"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise InputError(f"{path}: not opened, for it may run code: {_forbidden(error)}") from error
    content = content if isinstance(content, dict) else {}
    if "model" not in content and path.with_suffix(".safetensors").is_file():
        content |= {"model": bundle.read_weights(path.with_suffix(".safetensors"))[0], "generator": {}}
    kinds = {"model": dict, "generator": dict, "vocab": dict, "opt": argparse.Namespace}
    wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise InputError(f"{path}: not a checkpoint of OpenNMT-py 3 with its weights: it has no {', no '.join(wrong)}")
    for part in ("model", "generator"):
        content[part] = {name: value for name, value in content[part].items() if isinstance(value, Tensor)}
    return content


def _forbidden(error: Exception) -> str:
    """What a pickle names that it must not, as PyTorch tells."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f"it names {found[1]}, as those from before OpenNMT-py 3 do" if found else one_line(error, 200)


def _lacking(options: dict[str, Any], vocab: dict[str, Any]) -> Iterator[str]:
    """What the model has and ours have not, but for what it has weights for."""
    yield from unlike(_PLAIN, options.get)
    if options.get("num_kv", 0) not in (0, options.get("heads", 8)):
        yield "fewer heads of keys than of queries"
    if options.get("max_relative_positions", 0) < 0:
        yield "rotary positions" if options["max_relative_positions"] == -1 else "ALiBi's positions"
    if vocab.get("data_task", "seq2seq") != "seq2seq":
        yield f"the task {vocab['data_task']}"
    if vocab.get("src_feats"):
        yield "features of the source"
