"""The file model.bin of a directory for CTranslate2: named tensors one after the other, and other names for some.

uint32 version, text kind of model, uint32 its revision
uint32 count, of each: text name, uint8 rank, uint32 each size, uint8 type, uint32 bytes, the numbers
uint32 count, of each: text another name, text the name of a tensor above
(text: uint16 length, that many bytes, the last of them 0; all numbers little-endian)
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from relattn.translation.errors import InputError, reading

VERSIONS = range(4, 7)  # of the format, with these fields
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_LARGEST_RANK = 8


@dataclass(frozen=True)
class ModelFile:
    """What the file holds.

    Attributes:
        kind: of the model, as CTranslate2 names it, such as "TransformerSpec".
        revision: of what such a model is made of.
        tensors: by each of their names; quantised ones as they are.
    """

    kind: str
    revision: int
    tensors: dict[str, Tensor]


class _Reader:
    """Fields of bytes, one after the other."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.at = content, 0

    def take(self, count: int, what: str) -> memoryview:
        if count > len(self.content) - self.at:
            raise InputError(f"ends within {what}: {count:,} bytes from byte {self.at:,} on, of {len(self.content):,}")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, form: str, what: str) -> int:
        (number,) = struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))
        return int(number)

    def text(self, what: str) -> str:
        content = bytes(self.take(self.number("H", what), what))
        if content[-1:] != b"\0":
            raise InputError(f"{what} does not end, before byte {self.at:,}")
        return content[:-1].decode("utf-8")


def read_model(path: str | Path) -> ModelFile:
    """The tensors of a file.

    Raises:
        InputError: it cannot be read, is none of this format, of another version, cut off, or longer than it says.
    """
    with reading(path, "not a model of CTranslate2"):
        try:
            return _read(_Reader(memoryview(Path(path).read_bytes())))
        except InputError as error:
            raise InputError(f"{path}: not a model of CTranslate2, or a damaged one: {error}") from error


def _read(file: _Reader) -> ModelFile:
    version = file.number("I", "its version")
    if version not in VERSIONS:
        raise InputError(f"version {version}; {VERSIONS[0]} to {VERSIONS[-1]} are read")
    kind, revision = file.text("its kind"), file.number("I", "its revision")
    tensors: dict[str, Tensor] = {}
    for _ in range(file.number("I", "the number of its tensors")):
        name = file.text("a tensor's name")
        tensors[name] = _tensor(file, name)
    for _ in range(file.number("I", "the number of its other names")):
        alias, name = file.text("another name"), file.text("the name it stands for")
        if name not in tensors:
            raise InputError(f"{alias} stands for {name}, which is not there")
        for end in ("", "_scale"):  # that of a quantised tensor goes with it
            if f"{name}{end}" in tensors:
                tensors[f"{alias}{end}"] = tensors[f"{name}{end}"]
    if file.at != len(file.content):
        raise InputError(f"{len(file.content) - file.at:,} bytes follow its end")
    return ModelFile(kind, revision, tensors)


def _tensor(file: _Reader, name: str) -> Tensor:
    rank = file.number("B", name)
    if rank > _LARGEST_RANK:
        raise InputError(f"{name} has {rank} dimensions")
    shape = [file.number("I", name) for _ in range(rank)]
    kind, size = file.number("B", name), file.number("I", name)
    if kind >= len(TYPES):
        raise InputError(f"{name} has numbers of type {kind}; 0 to {len(TYPES) - 1} are known")
    dtype = TYPES[kind]
    if size != math.prod(shape) * dtype.itemsize:
        raise InputError(f"{name} is {tuple(shape)} of {str(dtype).removeprefix('torch.')}, in {size:,} bytes")
    content = bytearray(file.take(size, name))
    return torch.frombuffer(content, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def weights(tensors: dict[str, Tensor], source: str | Path) -> dict[str, Tensor]:
    """The tensors in float32, those of int8 and int16 over their scales, a number a row or one for all.

    Whole numbers without a scale, which are settings, stay whole. `source` is what messages call the file.

    Raises:
        InputError: a scale does not fit its weights, or weights are quantised in another way.
    """
    scales = {f"{name}_scale" for name in tensors} & tensors.keys()
    found: dict[str, Tensor] = {}
    for name in sorted(tensors.keys() - scales):
        tensor, scale = tensors[name], tensors.get(f"{name}_scale")
        if f"{name}_zero" in tensors or (scale is not None and tensor.dtype == torch.int32):
            raise InputError(f"{source}: {name} is quantised in a way that is not read (AWQ)")
        if scale is None:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        fits = scale.numel() == 1 or scale.shape == tensor.shape[:1]
        if not (fits and scale.is_floating_point() and bool((scale != 0).all())):
            raise InputError(f"{source}: {name} is {tuple(tensor.shape)}, its scale {tuple(scale.shape)}")
        found[name] = tensor.float() / scale.float().reshape(-1, *[1] * (tensor.dim() - 1))
    return found
