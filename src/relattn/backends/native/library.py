"""The compiled kernels: which objects serve this processor, and their arguments, as `arguments.h` declares them."""

import ctypes
import platform
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).parent
LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}  # by what PyTorch says of the processor
LEVEL = LEVELS.get(torch.backends.cpu.get_cpu_capability(), platform.machine())
REALS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}  # the number that an object computes in
TYPES = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 1, torch.float16: 2}  # of arrays, as in `rows.h`
PADDING = 16  # of the last dimension of tables, as in `rows.h`


class Kernels(NamedTuple):
    """An object, the structure of its arguments, and which of them are tensors with strides."""

    library: ctypes.CDLL
    arguments: type[ctypes.Structure]
    arrays: frozenset[str]


def structures(header: str, real: Any) -> dict[str, Any]:
    """What a header declares in lines of `type names;`, as ctypes has it, beside the types it is made of."""
    kinds = {"idx": ctypes.c_ssize_t, "uint64_t": ctypes.c_uint64, "real": real}
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", code, flags=re.DOTALL):
        fields: list[tuple[str, Any]] = []
        for line in body.split(";")[:-1]:
            found = re.fullmatch(r"\s*(?:const )?(\w+) (\*?\w+(?:, \*?\w+)*)", line)
            if found is None:
                raise ValueError(f"{name}: {line.strip()!r} is not understood")
            for member in found[2].split(", "):
                is_pointer = member.startswith("*")
                fields.append((member.lstrip("*"), ctypes.c_void_p if is_pointer else kinds[found[1]]))
        kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return kinds


def load(level: str, real: torch.dtype, folder: Path = HERE) -> Kernels:
    """The kernels compiled for a level of processor; OSError where they are not there or not of this version."""
    name = f"attention-{level}-{str(real).removeprefix('torch.')}.so"
    library = ctypes.CDLL(str(folder / name))
    header = (folder / "arguments.h").read_bytes()
    if not hasattr(library, "relattn_checksum") or checksum_of(library) != zlib.crc32(header):
        raise OSError(f"{name} was compiled with another arguments.h")
    declared = structures(header.decode(), REALS[real])
    arguments = declared["arguments"]
    arrays = frozenset(name for name, kind in arguments._fields_ if kind is declared["array"])
    return Kernels(library, arguments, arrays)


def checksum_of(library: ctypes.CDLL) -> int:
    return ctypes.c_uint32.in_dll(library, "relattn_checksum").value


def load_all(level: str, folder: Path = HERE) -> tuple[dict[torch.dtype, Kernels], dict[torch.dtype, str]]:
    """The kernels of each number, or why they are not there."""
    kernels: dict[torch.dtype, Kernels] = {}
    missing: dict[torch.dtype, str] = {}
    for real in REALS:
        try:
            kernels[real] = load(level, real, folder)
        except OSError as error:
            name = str(real).removeprefix("torch.")
            missing[real] = f"its {name} kernels were not compiled for this machine ({error}); use dense"
    return kernels, missing


KERNELS, MISSING = load_all(LEVEL)
