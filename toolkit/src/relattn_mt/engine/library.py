"""The compiled library, one file with the kernels of all processor levels. It chooses among them in `levels.c`."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
HEADER, LIBRARY = "relattn_mt.h", "relattn_mt.so"
INTERFACE = 3  # RELATTN_MT_INTERFACE of the header that this code was written for
WRONG_LEVEL = -4  # an error code
FLOAT, GENERIC, PAIRS, DOTS = range(4)  # kernels of maps
INT8_KERNELS = {
    GENERIC: "with products of 16 or 32 bits",
    PAIRS: "with products of pairs",
    DOTS: "with dot products",
}
LARGEST, LARGEST_IMPORTED = 63, 127  # integers of weights: those that PAIRS supports, and those of 8 bits
TYPES = {"ptrdiff_t": ctypes.c_ssize_t, "float": ctypes.c_float}
ELF_HEADER = struct.Struct("<40xQ10xHH2x")  # offset, entry size and number of entries of the sections


class Kernels(NamedTuple):
    """The kernels for a processor level.

    Attributes:
        level: The level.
        panel: Number of outputs of a panel.
        int8_kernels: Kernels for int8 that the processor runs. All give the same numbers; the last one is the best.
        functions: Functions by name, which take the address of their arguments.
        types: Structures of arguments by name.
    """

    level: str
    panel: int
    int8_kernels: list[int]
    functions: dict[str, Any]
    types: dict[str, Any]


def structures(header: str) -> dict[str, Any]:
    """Return the ctypes structures that a header declares in lines of `type names;`, by name without the prefix."""
    types: dict[str, Any] = dict(TYPES)
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{(.*?)\} relattn_mt_(\w+);", code, flags=re.DOTALL):
        fields: list[tuple[str, Any]] = []
        for line in map(str.strip, body.split(";")[:-1]):
            if function := re.fullmatch(r"ptrdiff_t \(\*(\w+)\)\((.*)\)", line):
                arguments = [ctypes.c_void_p if "*" in each else ctypes.c_ssize_t for each in function[2].split(",")]
                fields.append((function[1], ctypes.CFUNCTYPE(ctypes.c_ssize_t, *arguments)))
            elif declaration := re.fullmatch(r"(?:const )?(?:relattn_mt_)?(\w+) (\*?\w+(?:, \*?\w+)*)", line):
                pointer = ctypes.c_char_p if declaration[1] == "char" else ctypes.c_void_p
                for member in declaration[2].split(", "):
                    is_pointer = member.startswith("*")
                    fields.append((member.lstrip("*"), pointer if is_pointer else types[declaration[1]]))
            else:
                raise ValueError(f"{name} must have fields of the form 'type names;', got {line!r}")
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types


def require_complete(path: Path) -> None:
    """Raise an OSError if an ELF file is cut off: Linux ends the process when it loads a part of one."""
    with path.open("rb") as file:
        header = file.read(ELF_HEADER.size)
    size, is_elf = path.stat().st_size, header[:4] == b"\x7fELF"
    offset, entry_size, entries = ELF_HEADER.unpack(header) if len(header) == ELF_HEADER.size else (size + 1, 0, 0)
    if is_elf and size < offset + entry_size * entries:  # the table of sections is the end of the file
        raise OSError(f"{path.name} must be complete, but the file ends after {size:,} bytes; install again")


def load(level: str | None = None, folder: Path = FOLDER) -> Kernels:
    """Return the kernels in a directory for this processor. `level` overrides RELATTN_LEVEL.

    Raises:
        OSError: The library for this machine is missing, damaged or of another version.
        ImportError: The level is unknown, or higher than the processor.
    """
    path = folder / LIBRARY
    if not path.exists():
        raise OSError(f"none in this installation for {platform.machine()} on {platform.system()}")
    require_complete(path)
    library = ctypes.CDLL(str(path))
    types = structures((folder / HEADER).read_text(encoding="utf-8"))
    message, engine = ctypes.create_string_buffer(256), types["engine"]()
    name = None if level is None else os.fsencode(level)
    if code := library.relattn_mt_open(INTERFACE, name, ctypes.byref(engine), message):
        text = os.fsdecode(message.value)
        raise ImportError(text, name="RELATTN_LEVEL") if code == WRONG_LEVEL else OSError(f"{text}; install again")
    kernels = [kernel for kernel in INT8_KERNELS if engine.int8_kernels >> kernel & 1]
    functions = {name: getattr(engine, name) for name, kind in engine._fields_ if hasattr(kind, "argtypes")}
    return Kernels(os.fsdecode(engine.level), engine.panel, kernels, functions, types)
