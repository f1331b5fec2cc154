"""The loader of compiled kernels: which object files this processor runs, and what their headers declare."""

import ctypes
import os
import platform
import re
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from relattn.backends.native import levels

MACHINE = levels.machine_of(platform.machine())
FEATURES = levels.features_of(MACHINE, levels.processor_flags(), os.environ.get("RELATTN_LEVEL", ""))
SUPPORTED = {dtype: levels.supported(MACHINE, FEATURES, dtype) for dtype in (*levels.EXACT, *levels.PAIRS)}
HEADER = "arguments.h"
REALS = {"float32": ctypes.c_float, "float64": ctypes.c_double, "bfloat16": ctypes.c_float}  # C's type for sums
ELF_HEADER = struct.Struct("<18xH20xQ10xHH2x")  # machine; offset, entry size and number of entries of the sections


class Kernels(NamedTuple):
    """A loaded object file.

    Attributes:
        level: Processor level that it is compiled for.
        library: The loaded library.
        structures: The structures that its header declares, by name.
    """

    level: str
    library: ctypes.CDLL
    structures: dict[str, Any]


def structures(header: str, real: Any) -> dict[str, Any]:
    """Return the ctypes structures that a header declares in lines of `type names;`, and the types of their fields."""
    types = {"idx": ctypes.c_ssize_t, "uint64_t": ctypes.c_uint64, "real": real}
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", code, flags=re.DOTALL):
        fields: list[tuple[str, Any]] = []
        for line in body.split(";")[:-1]:
            declaration = re.fullmatch(r"\s*(?:const )?(\w+) (\*?\w+(?:, \*?\w+)*)", line)
            if declaration is None:
                raise ValueError(f"{name} must have fields of the form 'type names;', got {line.strip()!r}")
            for member in declaration[2].split(", "):
                is_pointer = member.startswith("*")
                fields.append((member.lstrip("*"), ctypes.c_void_p if is_pointer else types[declaration[1]]))
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types


def load(level: str, dtype: str, path: Path) -> Kernels:
    """Load the kernels compiled for a processor level; OSError if they are of another version."""
    check_file(path)
    library = ctypes.CDLL(str(path))
    header = path.with_name(HEADER).read_bytes()
    if not hasattr(library, "relattn_checksum") or checksum_of(library) != zlib.crc32(header):
        raise OSError(f"{path.name} was compiled with another version of {HEADER}; install again")
    if not library.relattn_usable():
        raise OSError(f"this system cannot run {path.name}")
    declared = structures(header.decode(), REALS[dtype])
    return Kernels(level, library, declared)


def checksum_of(library: ctypes.CDLL) -> int:
    return ctypes.c_uint32.in_dll(library, "relattn_checksum").value


def check_file(path: Path) -> None:
    """Raise an OSError unless an ELF file is complete and for this machine.

    Linux reports a library for another machine as a missing file, and ends the process when it loads part of a file.
    """
    with open(path, "rb") as file:
        header, size = file.read(ELF_HEADER.size), path.stat().st_size
    if header[:4] != b"\x7fELF":
        return
    if len(header) == ELF_HEADER.size:
        number, sections, entry_size, entries = ELF_HEADER.unpack(header)
        machine = {62: "x86_64", 183: "aarch64"}.get(number, f"another machine (ELF's number {number})")
        if machine != MACHINE:
            raise OSError(f"{path.name} must be compiled for {MACHINE}, got {machine}")
        if size >= sections + entry_size * entries:  # the table of sections is the end of the file
            return
    raise OSError(f"{path.name} must be complete, but the file ends after {size:,} bytes; install again")


def load_best(supported: list[str], dtype: str, folder: Path) -> Kernels:
    """Load the kernels of the best installed level that the processor runs; OSError with the reasons if none."""
    reasons = []
    for level in supported:
        path = folder / f"attention-{level}-{dtype}.so"
        if path.exists():
            try:
                return load(level, dtype, path)
            except OSError as error:
                reasons.append(str(error))
    if reasons:
        raise OSError("; ".join(reasons))
    installed = sorted(path.name.split("-", 1)[1].rsplit("-", 1)[0] for path in folder.glob(f"attention-*-{dtype}.so"))
    processor = supported[0] if supported else MACHINE
    other_levels = f", only for {', '.join(installed)}" if installed else ""
    raise OSError(f"none in this installation for {processor} on {platform.system()}{other_levels}")
