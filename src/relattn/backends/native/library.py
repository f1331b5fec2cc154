"""The compiled kernels: which objects serve this processor, and their arguments, as `arguments.h` declares them."""

import ctypes
import platform
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from relattn.backends.native import levels
from relattn.call import accumulation_dtype

HERE = Path(__file__).parent
MACHINE = levels.machine_of(platform.machine())
SERVED = {
    number: levels.served(MACHINE, torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities(), number)
    for number in (*levels.EXACT, *levels.PAIRS)
}
REALS = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.bfloat16: ctypes.c_float,
}  # C's, by number
TYPES = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 1, torch.float16: 2}  # of arrays, as in `rows.h`
PADDING = 16  # of the last dimension of tables, as in `rows.h`


class Kernels(NamedTuple):
    """An object: its level of processor, the structure of its arguments, and which of them are tensors with strides."""

    level: str
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


def object_of(level: str, number: str, folder: Path) -> Path:
    return folder / f"attention-{level}-{number}.so"


def load(level: str, real: torch.dtype, folder: Path = HERE) -> Kernels:
    """The kernels compiled for a level of processor; OSError where they are not there or not of this version."""
    path = object_of(level, name_of(real), folder)
    machine = machine_in(path)
    if machine not in (None, MACHINE):
        raise OSError(f"{path.name} was compiled for {machine}")
    library = ctypes.CDLL(str(path))
    header = (folder / "arguments.h").read_bytes()
    if not hasattr(library, "relattn_checksum") or checksum_of(library) != zlib.crc32(header):
        raise OSError(f"{path.name} was compiled with another arguments.h")
    if not library.relattn_usable():
        raise OSError(f"this system does not run {path.name}")
    declared = structures(header.decode(), REALS[real])
    arguments = declared["arguments"]
    arrays = frozenset(name for name, kind in arguments._fields_ if kind is declared["array"])
    return Kernels(level, library, arguments, arrays)


def name_of(real: torch.dtype) -> str:
    return str(real).removeprefix("torch.")


def checksum_of(library: ctypes.CDLL) -> int:
    return ctypes.c_uint32.in_dll(library, "relattn_checksum").value


def machine_in(path: Path) -> str | None:
    """The machine that an object says it is for: loading another machine's, Linux says that there is no such file."""
    start = path.read_bytes()[:20]
    if start[:4] == b"\x7fELF":
        number = int.from_bytes(start[18:20], "little")
        return {62: "x86_64", 183: "aarch64"}.get(number, f"another machine (ELF's number {number})")
    return None


def load_best(served: list[str], real: torch.dtype, folder: Path) -> Kernels:
    """The kernels of the best level that a processor can run and that is there; OSError says why there are none."""
    number, reasons = name_of(real), []
    for level in served:
        if object_of(level, number, folder).exists():
            try:
                return load(level, real, folder)
            except OSError as error:
                reasons.append(str(error))
    if reasons:
        raise OSError("; ".join(reasons))
    there = sorted(path.name.split("-", 1)[1].rsplit("-", 1)[0] for path in folder.glob(f"attention-*-{number}.so"))
    processor = served[0] if served else MACHINE
    but_for = f", but for {', '.join(there)}" if there else ""
    raise OSError(f"none in this installation for {processor} on {platform.system()}{but_for}")


def load_all(
    served: dict[str, list[str]], folder: Path = HERE
) -> tuple[dict[torch.dtype, Kernels], dict[torch.dtype, str]]:
    """The kernels of each number, or why they are not there; those of bfloat16 where the processor has levels."""
    kernels: dict[torch.dtype, Kernels] = {}
    missing: dict[torch.dtype, str] = {}
    for real in REALS:
        number = name_of(real)
        if number in levels.EXACT or served[number]:
            try:
                kernels[real] = load_best(served[number], real, folder)
            except OSError as error:
                missing[real] = str(error)
    return kernels, missing


KERNELS, MISSING = load_all(SERVED)


def kernels_of(dtype: torch.dtype) -> Kernels:
    """Those that compute a call of a type: half types in float32 where they have none of their own."""
    return KERNELS[dtype if dtype in KERNELS else accumulation_dtype(dtype)]
