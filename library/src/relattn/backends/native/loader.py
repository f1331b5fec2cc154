"""Load a compiled library. The library chooses its processor level; its structures are in a JSON file beside it."""

import ctypes
import json
import os
import platform
import zlib
from pathlib import Path
from typing import Any, NamedTuple


class Kernels(NamedTuple):
    """The kernels for a processor level.

    Attributes:
        panel: Number of outputs of a panel of a linear layer in int8.
        int8_kernels: Kernels for int8 that the processor runs. All give the same numbers; the last one is the best.
        functions: Functions by name, which take the address of their arguments.
        types: Structures of arguments by name.
    """

    level: str
    panel: int
    int8_kernels: list[int]
    functions: dict[str, Any]
    types: dict[str, Any]


def load(folder: Path, name: str, number: int, level: str | None = None) -> Kernels:
    """Return the kernels of a library that it chooses for a number. `level` overrides RELATTN_LEVEL.

    Raises:
        OSError: The library is missing or damaged, or has no such kernels.
        ImportError: The level is unknown, or higher than the processor.
    """
    path = folder / f"{name}.so"
    if not path.exists():
        raise OSError(f"none in this installation for {platform.machine()} on {platform.system()}")
    try:
        data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise OSError(f"{name}.json is damaged: {error}; install again") from error
    if data["crc32"] != zlib.crc32(path.read_bytes()):  # Linux ends a process that loads part of a library
        raise OSError(f"{path.name} must be as it was compiled, with {name}.json; install again")
    types: dict[str, Any] = {}
    for structure, fields in data["structures"].items():
        members = [(key, type_of(kind, types)) for key, kind in fields]
        types[structure] = type(structure, (ctypes.Structure,), {"_fields_": members})
    message = ctypes.create_string_buffer(256)
    chosen = types[structure]()  # the last structure
    value = None if level is None else os.fsencode(level)
    if getattr(ctypes.CDLL(str(path)), f"{name}_open")(number, value, ctypes.byref(chosen), message):
        text = os.fsdecode(message.value)
        raise ImportError(text, name="RELATTN_LEVEL") if "RELATTN_LEVEL" in text else OSError(text)
    runs = [kernel for kernel in range(1, 4) if chosen.int8_kernels >> kernel & 1]
    functions = {key: getattr(chosen, key) for key, kind in fields if isinstance(kind, list)}
    return Kernels(os.fsdecode(chosen.level), chosen.panel, runs, functions, types)


def type_of(kind: Any, types: dict[str, Any]) -> Any:
    """Return a structure, a type of ctypes by its name, or the type of a function by the kinds of its arguments."""
    if isinstance(kind, list):
        return ctypes.CFUNCTYPE(ctypes.c_ssize_t, *(type_of(argument, types) for argument in kind))
    return types.get(kind) or getattr(ctypes, kind)
