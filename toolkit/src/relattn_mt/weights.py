"""Weights of a model by name: which there are, whether those of a file fit, and files of them. Without PyTorch."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import ClippedTables, DistanceBias, DistanceVectors, OtherMixer
from relattn_mt.support.errors import InputError, one_line, reading, require
from relattn_mt.support.lazy import LazyMapping
from relattn_mt.support.types import Fields, VocabSizes

Tensors = Mapping[str, np.ndarray]  # by name
TensorDict = dict[str, np.ndarray]
SCALE = "_scale"  # suffix of the scales of a weight in 8 bits
_CODES = {"int8": "I8", "floating point": "F32"}  # in files that are written
_MAX_LISTED = 5  # tensors per message
_DTYPES = {"BOOL": "?", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4"}
_DTYPES |= {"U64": "<u8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "C64": "<c8"}


class Weight(NamedTuple):
    """Shape of a weight, and what its numbers are, "floating point" or "int8"."""

    shape: tuple[int, ...]
    kind: str = "floating point"


def require_vocab_sizes(config: ModelConfig, vocab_sizes: VocabSizes) -> None:
    """Raise an InputError if source and target share embeddings, but their vocabularies have different sizes."""
    source, target = vocab_sizes
    require(
        source == target or config.shared_embeddings not in ("all", "inputs"),
        f"source and target vocabularies must have the same size with shared_embeddings {config.shared_embeddings},"
        f" got {source} and {target} pieces; use shared_embeddings target or none",
    )


def weight_table(config: ModelConfig, vocab_sizes: VocabSizes, *, quantized: bool = False) -> dict[str, Weight]:
    """Return the weights of a model by name: those of `Transformer`, or of a model that is quantized, with scales.

    Raises:
        InputError: As `require_vocab_sizes`.
    """
    require_vocab_sizes(config, vocab_sizes)
    table: dict[str, Weight] = {}

    def add(name: str, *shape: int) -> None:
        is_int8 = quantized and is_quantizable(name)
        table[name] = Weight(shape, "int8" if is_int8 else "floating point")
        if is_int8:
            add(f"{name}{SCALE}", shape[0])

    source, target = vocab_sizes
    dim = config.dim
    shared = config.shared_embeddings
    spec = config.position_spec
    leaves = norm_leaves(config)
    add("embedding", target, dim)
    if shared not in ("all", "inputs"):
        add("src_embedding", source, dim)
    if shared not in ("all", "target"):
        add("output_weight", target, dim)
    if config.output_bias:
        add("output_bias", target)
    for side, stack, layers in (("src", "encoder", config.encoder_layers), ("tgt", "decoder", config.decoder_layers)):
        is_causal = stack == "decoder"
        if spec.max_length is not None:
            add(f"{side}_positions.signal.weight", spec.max_length, dim)
        for leaf in leaves if config.embedding_norm else ():
            add(f"{side}_positions.norm.{leaf}", dim)
        mixer = config.mixer(is_causal)
        if isinstance(mixer, DistanceBias) and not mixer.per_layer:
            for name, shape in mixer.weights(config.heads).items():
                add(f"{side}_positions.bias.{name}", *shape)
        for name, shape in _layer(config, is_causal):
            for i in range(layers):
                add(f"{stack}.{i}.{name}", *shape)
        for leaf in leaves if config.norm != "post" else ():
            add(f"{stack}_norm.{leaf}", dim)
    return table


def is_quantizable(name: str) -> bool:
    """Return whether int8 applies to a weight: embeddings, and linear layers that are parts of sub-layers."""
    is_linear = name.endswith(".weight") and name.count(".") == 4  # STACK.LAYER.PART.LINEAR.weight
    return is_linear or name in ("embedding", "src_embedding", "output_weight")


def norm_leaves(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the weights of a norm."""
    return ("weight",) if config.norm == "rms" else ("weight", "bias")


def _layer(config: ModelConfig, is_causal: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each weight of a layer."""
    dim = config.dim
    heads = config.heads
    head_dim = config.head_size
    joined = heads * head_dim
    inner = config.feed_forward_dim
    mixer = config.mixer(is_causal)
    linear = {"feed_forward.0": (inner, dim), "feed_forward.3": (dim, inner)}
    if config.feed_forward == "gated":
        linear["feed_forward.gate"] = (inner, dim)
    sublayers = ["self_attention", "cross_attention"] if is_causal else ["self_attention"]
    own = "self_attention.attention"
    match mixer:
        case OtherMixer():
            sublayers = sublayers[1:]
            yield from ((f"self_attention.{name}", shape) for name, shape in mixer.weights(dim, is_causal).items())
        case ClippedTables(left, right, keys, values, per_head):
            for side in ("key",) * keys + ("value",) * values:
                yield f"{own}.rel_{side}.weight", ((heads,) if per_head else ()) + (left + right + 1, head_dim)
        case DistanceVectors():
            yield from ((f"{own}.{name}", (heads, 1, head_dim)) for name in "uv")
            yield f"{own}.distance.weight", (joined, dim)
        case DistanceBias(per_layer=True):
            yield from ((f"{own}.bias.{name}", shape) for name, shape in mixer.weights(heads).items())
    linear |= {f"{sublayer}.{part}": (joined, dim) for sublayer in sublayers for part in ("query", "key", "value")}
    linear |= {f"{sublayer}.out": (dim, joined) for sublayer in sublayers}
    for name, shape in linear.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
    for i in range(3 if is_causal else 2):
        yield from ((f"residuals.{i}.norm.{leaf}", (dim,)) for leaf in norm_leaves(config))


def is_quantized(state: Tensors) -> bool:
    """Return whether the weights of a model are those of a quantized one."""
    return f"embedding{SCALE}" in state


def require_fit(config: ModelConfig, vocab_sizes: VocabSizes, state: Tensors, source: object) -> None:
    """Raise an InputError if names, shapes or dtypes of weights are not a model's. It names several differences."""
    layers = config.encoder_layers + config.decoder_layers
    if layers > len(state):
        raise InputError(f"{source}: the weights do not fit the model: {len(state)} tensors for {layers} layers")
    table = weight_table(config, vocab_sizes, quantized=is_quantized(state))
    errors = [f"{name} is missing" for name in table if name not in state]
    errors += [f"{one_line(name, 80)} is not in the model" for name in state if name not in table]
    for name in table.keys() & state.keys():
        shape, kind = table[name]
        own_shape, dtype = shape_and_dtype(state, name)
        if own_shape != shape:
            errors.append(f"{name} must be {shape}, got {own_shape}")
        elif dtype != np.int8 if kind == "int8" else dtype.kind != "f":
            errors.append(f"{name} must be {kind}, got {dtype}")
    if errors:
        listed = sorted(errors)[:_MAX_LISTED]
        omitted = f"; and {len(errors) - len(listed)} more" if len(errors) > len(listed) else ""
        raise InputError(f"{source}: the weights do not fit the model: {'; '.join(listed)}{omitted}")


def shape_and_dtype(state: Tensors, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the dtype of a weight, which is not read for it from a file."""
    if isinstance(state, FileWeights):
        return state.shape_and_dtype(name)
    return state[name].shape, state[name].dtype


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return numbers of bfloat16, whose bits are 16-bit integers, in float32."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


LazyWeights = LazyMapping[str, np.ndarray]


class FileWeights(LazyWeights):
    """Weights in open safetensors files, by name. Each is read when it is asked for. bfloat16 becomes float32.

    Args:
        files: The files, and where the tensors begin in each.
        entries: Headers of the files: dtype, shape and place of each tensor, and the number of its file.
    """

    def __init__(self, files: Sequence[tuple[BufferedReader, int]], entries: Mapping[str, Any]) -> None:
        self._files = files
        self._keys = entries
        for file, _ in files:
            weakref.finalize(self, file.close)

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._keys[name]
        file, begin = self._files[entry["file"]]
        first, last = entry["data_offsets"]
        content = np.empty(last - first, np.uint8)
        file.seek(begin + first)
        if file.readinto(content.data) != len(content):
            raise InputError(f"{file.name}: must not change while it is read")
        tensor = content.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        return from_bfloat16(tensor) if entry["dtype"] == "BF16" else tensor

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape and the dtype of a weight without reading it."""
        entry = self._keys[name]
        kind = "F32" if entry["dtype"] == "BF16" else entry["dtype"]
        return tuple(entry["shape"]), np.dtype(_DTYPES[kind])


def read_weights(*paths: Path) -> tuple[FileWeights, dict[str, str]]:
    """Return the tensors and the metadata of safetensors files.

    Raises:
        InputError: A file is missing or damaged, or has tensors of a dtype that NumPy lacks.
    """
    metadata: dict[str, str] = {}
    begins = []
    entries: Fields = {}
    for number, path in enumerate(paths):
        with reading(path, "truncated, damaged, or not a safetensors file"):
            with safetensors.safe_open(path, framework="numpy") as checked:
                metadata |= checked.metadata() or {}
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            begins.append(8 + size)
            header.pop("__metadata__", None)
            for name, entry in header.items():
                if entry["dtype"] not in _DTYPES:
                    raise InputError(f"{path}: {one_line(name, 80)} must have a dtype of NumPy, got {entry['dtype']}")
                entries[name] = {**entry, "file": number}
    return FileWeights([(path.open("rb"), begin) for path, begin in zip(paths, begins, strict=True)], entries), metadata


def write_weights(path: Path, table: Mapping[str, Weight], state: Tensors, metadata: Mapping[str, str]) -> None:
    """Write the weights of a table to a safetensors file, one after the other, in the order of safetensors."""
    header: Fields = {"__metadata__": dict(metadata)}
    names = sorted(table, key=lambda name: (table[name].kind == "int8", name))
    end = 0
    for name in names:
        shape, kind = table[name]
        begin = end
        end += math.prod(shape) * (1 if kind == "int8" else 4)
        header[name] = {"dtype": _CODES[kind], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(np.ascontiguousarray(state[name], _DTYPES[header[name]["dtype"]]).data)
