"""The compiled kernels of attention by dtype, and their arguments, as `arguments.h` declares them."""

import ctypes
import functools
import operator
import struct
from pathlib import Path
from typing import Any

import torch

from relattn.backends.native import levels
from relattn.backends.native.loader import REALS, SUPPORTED, Kernels, load_best
from relattn.call import accumulation_dtype

FOLDER = Path(__file__).parent
TYPES = {
    torch.float32: 0,
    torch.float64: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
}  # type codes of arrays, as in `rows.h`
PADDING = 16  # the last dimension of table gradients is a multiple of this, as in `rows.h`

# codes of fields of arguments in Python's `struct`, by C's type; a structure is an array
CODES = {ctypes.c_ssize_t: "q", ctypes.c_uint64: "Q", ctypes.c_float: "f", ctypes.c_double: "d", ctypes.c_void_p: "P"}
ARRAY = "Pqqq"


class Layout:
    """Order and types of the values in a structure of arguments. ctypes takes ten times as long to write them.

    Attributes:
        positions: Position of the first value of each field. The fields that are single numbers come last.
    """

    def __init__(self, structure: type[ctypes.Structure]) -> None:
        fields: list[tuple[str, Any]] = [(field[0], field[1]) for field in structure._fields_]
        numbers = [name for name, field_type in fields if CODES.get(field_type, ARRAY)[0] != "P"]
        codes, self.positions = "", dict[str, int]()
        for name, field_type in fields:
            self.positions[name] = len(codes)
            codes += CODES.get(field_type, ARRAY)
        self._in_order = operator.itemgetter(*numbers)
        self._addresses = [0] * (len(codes) - len(numbers))
        self._packer = struct.Struct(codes)
        if self._packer.size != ctypes.sizeof(structure) or self.positions[numbers[0]] != len(self._addresses):
            raise ValueError("arguments must be arrays and pointers of 64 bits, then numbers")

    def new_values(self, **numbers: float) -> list[float]:
        """Return the values of a structure: zeros for arrays and pointers, and the numbers of all other fields."""
        return [*self._addresses, *self._in_order(numbers)]

    def pack(self, values: list[float]) -> bytes:
        """Return the bytes of a structure."""
        return self._packer.pack(*values)


layout_of = functools.cache(Layout)


def name_of(real: torch.dtype) -> str:
    return str(real).removeprefix("torch.")


def load_all(
    supported: dict[str, list[str]], folder: Path = FOLDER
) -> tuple[dict[torch.dtype, Kernels], dict[torch.dtype, str]]:
    """Return the kernels per dtype, and why others are missing; bfloat16 counts only if the processor has a level."""
    kernels: dict[torch.dtype, Kernels] = {}
    missing: dict[torch.dtype, str] = {}
    for dtype in REALS:
        real = getattr(torch, dtype)
        if dtype in levels.EXACT or supported[dtype]:
            try:
                kernels[real] = load_best(supported[dtype], dtype, folder)
            except OSError as error:
                missing[real] = str(error)
    return kernels, missing


KERNELS, MISSING = load_all(SUPPORTED)


def kernels_of(dtype: torch.dtype) -> Kernels:
    """Return the kernels for a dtype; half types without their own are computed in float32."""
    return KERNELS[dtype if dtype in KERNELS else accumulation_dtype(dtype)]
