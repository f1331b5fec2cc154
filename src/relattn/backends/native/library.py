"""The compiled kernels: which object files this processor runs, and their arguments, as `arguments.h` declares them."""

import ctypes
import functools
import operator
import os
import platform
import re
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from relattn.backends.native import levels
from relattn.call import accumulation_dtype

FOLDER = Path(__file__).parent
MACHINE = levels.machine_of(platform.machine())
FEATURES = levels.features_of(
    MACHINE,
    torch.backends.cpu.get_cpu_capability(),
    torch.cpu.get_capabilities(),
    os.environ.get("RELATTN_LEVEL", ""),
)
SUPPORTED = {dtype: levels.supported(MACHINE, FEATURES, dtype) for dtype in (*levels.EXACT, *levels.PAIRS)}
REALS = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.bfloat16: ctypes.c_float,
}  # C's type for sums, by dtype
TYPES = {
    torch.float32: 0,
    torch.float64: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
}  # type codes of arrays, as in `rows.h`
PADDING = 16  # the last dimension of table gradients is a multiple of this, as in `rows.h`

ELF_HEADER = struct.Struct("<18xH20xQ10xHH2x")  # machine; offset, entry size and number of entries of the sections


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


class Source(NamedTuple):
    """A source file of kernels: its name without suffix, and the header that declares its arguments."""

    name: str
    header: str


ATTENTION = Source("attention", "arguments.h")


def object_of(level: str, dtype: str, folder: Path, source: Source = ATTENTION) -> Path:
    """Return the path of an object file that is compiled from a source."""
    return folder / f"{source.name}-{level}-{dtype}.so"


def load(level: str, real: torch.dtype, folder: Path = FOLDER, source: Source = ATTENTION) -> Kernels:
    """Load the kernels compiled for a processor level; OSError if they are missing or of another version."""
    path = object_of(level, name_of(real), folder, source)
    check_file(path)
    library = ctypes.CDLL(str(path))
    header = (folder / source.header).read_bytes()
    if not hasattr(library, "relattn_checksum") or checksum_of(library) != zlib.crc32(header):
        raise OSError(f"{path.name} was compiled with another version of {source.header}; install again")
    if not library.relattn_usable():
        raise OSError(f"this system cannot run {path.name}")
    declared = structures(header.decode(), REALS[real])
    return Kernels(level, library, declared)


def name_of(real: torch.dtype) -> str:
    return str(real).removeprefix("torch.")


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


def load_best(supported: list[str], real: torch.dtype, folder: Path, source: Source = ATTENTION) -> Kernels:
    """Load the kernels of the best installed level that the processor runs; OSError with the reasons if none."""
    dtype, reasons = name_of(real), []
    for level in supported:
        if object_of(level, dtype, folder, source).exists():
            try:
                return load(level, real, folder, source)
            except OSError as error:
                reasons.append(str(error))
    if reasons:
        raise OSError("; ".join(reasons))
    installed = sorted(
        path.name.split("-", 1)[1].rsplit("-", 1)[0] for path in folder.glob(f"{source.name}-*-{dtype}.so")
    )
    processor = supported[0] if supported else MACHINE
    other_levels = f", only for {', '.join(installed)}" if installed else ""
    raise OSError(f"none in this installation for {processor} on {platform.system()}{other_levels}")


def load_all(
    supported: dict[str, list[str]], folder: Path = FOLDER
) -> tuple[dict[torch.dtype, Kernels], dict[torch.dtype, str]]:
    """Return the kernels per dtype, and why others are missing; bfloat16 counts only if the processor has a level."""
    kernels: dict[torch.dtype, Kernels] = {}
    missing: dict[torch.dtype, str] = {}
    for real in REALS:
        dtype = name_of(real)
        if dtype in levels.EXACT or supported[dtype]:
            try:
                kernels[real] = load_best(supported[dtype], real, folder)
            except OSError as error:
                missing[real] = str(error)
    return kernels, missing


KERNELS, MISSING = load_all(SUPPORTED)


def kernels_of(dtype: torch.dtype) -> Kernels:
    """Return the kernels for a dtype; half types without their own are computed in float32."""
    return KERNELS[dtype if dtype in KERNELS else accumulation_dtype(dtype)]
