"""The compiled kernels: which object serves this processor, and the call they take, field by field as in `rows.h`."""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3", "DEFAULT": "aarch64"}  # by what PyTorch says of the processor
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
PADDING = 16  # of the last dimension of tables, as in `rows.h`


class Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_ssize_t),
        ("head", ctypes.c_ssize_t),
        ("row", ctypes.c_ssize_t),
    )


ARRAYS = ("query", "key", "value", "output", "grad", "d_query", "d_key", "d_value", "lse", "mask", "relations")
POINTERS = ("rel_key", "rel_key_t", "rel_value", "rel_value_t", "d_rel_key", "d_rel_value", "offsets", "lengths")
NUMBERS = (
    *("batch", "heads", "key_heads", "queries", "keys", "dim", "value_dim", "labels", "left", "right"),
    *("key_table_heads", "value_table_heads", "label_size", "type", "clips", "is_causal", "chunks", "threads"),
)


class Call(ctypes.Structure):
    _fields_ = (
        *((name, Array) for name in ARRAYS),
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_ssize_t) for name in NUMBERS),
        ("scale", ctypes.c_float),
        ("keep", ctypes.c_float),
        ("seed", ctypes.c_uint64),
    )


def array(x: Tensor) -> Array:
    """Where a (batch, heads, rows, dim) or (batch, heads, rows) tensor lies; its last dimension is contiguous."""
    return Array(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def load(level: str) -> ctypes.CDLL:
    """The object compiled for a level of processor; OSError where it is not there."""
    library = ctypes.CDLL(str(Path(__file__).with_name(f"attention-{level}.so")))
    if library.relattn_call_size() != ctypes.sizeof(Call):
        raise OSError(f"attention-{level}.so is of another version")
    return library


try:
    KERNELS = load(LEVELS.get(torch.backends.cpu.get_cpu_capability(), "none"))
    MISSING = None  # why there are no kernels here
except OSError as error:
    MISSING = f"its kernels were not compiled for this machine ({error}); use dense"


def run(kernel: Any, call: Call) -> None:
    """Runs one of the kernels; MemoryError where it could not get its work space."""
    if kernel(ctypes.byref(call)) != 0:
        raise MemoryError(f"no memory for the work space of {call.keys} keys of {call.dim} dimensions")
