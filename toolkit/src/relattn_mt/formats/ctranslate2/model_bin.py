"""Read model.bin, CTranslate2's file of named tensors.

    uint32 version, text kind of the model, uint32 revision
    uint32 count, then for each tensor: text name, uint8 rank, uint32 sizes, uint8 type, uint32 bytes, the numbers
    uint32 count, then for each alias: text alias, text name of a tensor

A text is a uint16 length and that many bytes, the last of them 0. All numbers are little-endian. Before version 4, a
tensor has its bytes per number instead of a type, and its number of numbers instead of its bytes. Version 2 has no
aliases. Version 1, from before CTranslate2 1.0, has the names of OpenNMT-tf and is not read.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relattn_mt.support.errors import InputError, naming, reading, require, require_at_most
from relattn_mt.weights import TensorDict, from_bfloat16

VERSIONS = range(2, 7)
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_BY_SIZE = {4: "float32", 2: "int16", 1: "int8"}  # types before version 4, by bytes per number
_INT16_SCALE = 1000.0  # of weights without a scale, which the first versions of CTranslate2 wrote
_LARGEST_RANK = 8


@dataclass(frozen=True)
class ModelFile:
    """Content of a model.bin.

    Attributes:
        version: Version of the file format.
        kind: CTranslate2's name of the kind of model, such as "TransformerSpec".
        revision: Revision of that kind.
        tensors: Tensors by each of their names; quantized ones as they are.
    """

    version: int
    kind: str
    revision: int
    tensors: TensorDict


class Reader:
    """Reads the fields of a file, one after the other; `what` names a field in messages."""

    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.position = 0

    def take(self, count: int, what: str) -> memoryview:
        start = self.position
        end = self.position + count
        require(end <= len(self.content), f"ends within {what}: needs {end:,} bytes, has {len(self.content):,}")
        self.position = end
        return self.content[start:end]

    def number(self, form: str, what: str) -> int:
        (number,) = struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))
        return int(number)

    def text(self, what: str) -> str:
        content = bytes(self.take(self.number("H", what), what))
        require(content[-1:] == b"\0", f"{what} must end with a zero, before byte {self.position:,}")
        return content[:-1].decode("utf-8")


def read_model(path: str | Path) -> ModelFile:
    """Read a model.bin.

    Raises:
        InputError: The file cannot be read, is not in this format or this version, or has too few or too many bytes.
    """
    with reading(path, "not a model of CTranslate2"):
        content = Path(path).read_bytes()
        with naming(f"{path}: not a model of CTranslate2, or a damaged one"):
            return _read(Reader(memoryview(content)))


def _read(file: Reader) -> ModelFile:
    version = file.number("I", "the version")
    require(version in VERSIONS, f"the version must be from {VERSIONS[0]} to {VERSIONS[-1]}, got {version}")
    kind = file.text("the kind")
    revision = file.number("I", "the revision")
    tensors: TensorDict = {}
    for _ in range(file.number("I", "the number of tensors")):
        name = file.text("a tensor's name")
        tensors[name] = _tensor(file, name, version)
    for _ in range(file.number("I", "the number of aliases") if version >= 3 else 0):
        alias = file.text("an alias")
        name = file.text("the name of an alias")
        require(name in tensors, f"{alias} is an alias of {name}, which is missing")
        for suffix in ("", "_scale"):  # a quantized tensor has a scale
            if f"{name}{suffix}" in tensors:
                tensors[f"{alias}{suffix}"] = tensors[f"{name}{suffix}"]
    require(file.position == len(file.content), f"{len(file.content) - file.position:,} bytes follow the end")
    return ModelFile(version, kind, revision, tensors)


def _tensor(file: Reader, name: str, version: int) -> np.ndarray:
    rank = file.number("B", name)
    require_at_most(_LARGEST_RANK, rank, name, "dimensions")
    shape = tuple(file.number("I", name) for _ in range(rank))
    number = file.number("B", name)
    size = file.number("I", name)
    types = dict(enumerate(TYPES)) if version >= 4 else _BY_SIZE
    require(number in types, f"{name} must have a type among {', '.join(map(str, types))}, got {number}")
    if version < 4:
        size *= number
    kind = types[number]
    dtype = np.dtype("<u2" if kind == "bfloat16" else kind).newbyteorder("<")
    expected = math.prod(shape) * dtype.itemsize
    require(size == expected, f"{name}, {shape} of {kind}, must have {expected:,} bytes, got {size:,}")
    tensor = np.frombuffer(file.take(size, name), dtype).reshape(shape)
    return from_bfloat16(tensor) if kind == "bfloat16" else tensor


def int8_scales(tensors: TensorDict) -> TensorDict:
    """Return the scales (rows,) of the weights in int8, as factors: weight = scale · integer.

    Weights and scales that no converter writes, with -128 or a scale that is not positive and finite, are left out.
    """
    result = {}
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name}_scale")
        if scale is None or tensor.dtype != np.int8 or tensor.ndim != 2 or tensor.size == 0:
            continue
        with np.errstate(divide="ignore"):
            scale = 1 / np.broadcast_to(scale.astype(np.float32).reshape(-1), len(tensor))
        if (np.isfinite(scale) & (scale > 0)).all() and tensor.min() > -128:
            result[name] = scale
    return result


def weights(tensors: TensorDict, source: str | Path) -> TensorDict:
    """Return the tensors in float32; those of int8 and int16 are divided by their scales, one per row or one for all.

    Other integers without a scale are settings and stay integers. `source` names the file in messages.

    Raises:
        InputError: a scale does not fit its weights, or the weights are quantized in another way.
    """
    result: TensorDict = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        scale = tensors.get(f"{name}_scale")
        if name.removesuffix("_scale") in tensors.keys() - {name}:
            continue
        if scale is None and tensor.dtype == np.int16 and name.endswith("weight"):
            scale = np.array(_INT16_SCALE, np.float32)
        if f"{name}_zero" in tensors or (scale is not None and tensor.dtype == np.int32):
            raise InputError(f"{source}: {name} is quantized in an unsupported way (AWQ)")
        result[name] = tensor
        if scale is not None:
            fits = scale.size == 1 or scale.shape == tensor.shape[:1]
            valid = fits and scale.dtype.kind == "f" and (scale != 0).all()
            shapes = f"{tuple(tensor.shape)}, has an invalid scale, {tuple(scale.shape)}"
            require(valid, f"{source}: {name}, {shapes}")
            result[name] = tensor.astype(np.float32) / scale.astype(np.float32).reshape(-1, *[1] * (tensor.ndim - 1))
        elif tensor.dtype.kind == "f":
            result[name] = tensor.astype(np.float32, copy=False)
    return result
