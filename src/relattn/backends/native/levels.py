"""Levels of processors that the kernels are compiled for.

`hatch_build.py`, which compiles the kernels, reads this file where torch is not installed. `library.py` selects by it.
"""

from collections.abc import Mapping
from typing import NamedTuple

EXACT, PAIRS = ("float32", "float64"), ("bfloat16",)  # dtypes that an object file computes in


class Level(NamedTuple):
    """Instruction-set level of a processor."""

    name: str  # in the names of object files
    flags: tuple[str, ...]  # compiler flags of GCC and Clang
    needs: frozenset[str] = frozenset()  # features that the processor must have
    dtypes: tuple[str, ...] = EXACT  # one object file each; bfloat16 calls without their own use float32's


DOTS = ("-march=x86-64-v4", "-mavx512bf16")
LEVELS = {  # per machine, best first; the last level runs on every processor of the machine
    "x86_64": (
        Level("x86-64-v4-amx", (*DOTS, "-mamx-tile", "-mamx-bf16"), frozenset({"AVX512", "AMX_BF16"}), PAIRS),
        Level("x86-64-v4-bf16", DOTS, frozenset({"AVX512", "AVX512_BF16"}), PAIRS),
        Level("x86-64-v4", ("-march=x86-64-v4",), frozenset({"AVX512"})),
        Level("x86-64-v3", ("-march=x86-64-v3",), frozenset({"AVX2"})),
        Level("x86-64", ("-march=x86-64",)),
    ),
    "aarch64": (
        Level("aarch64-sve256", ("-mcpu=generic+sve", "-msve-vector-bits=256"), frozenset({"SVE256"})),
        Level("aarch64", ()),
    ),
}
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}  # names on Windows and macOS
HAVING = {  # features by PyTorch's name for a processor (`torch.backends.cpu.get_cpu_capability`)
    "AVX512": {"AVX512", "AVX2"},
    "AVX2": {"AVX2"},
    "SVE256": {"SVE256"},  # vectors of exactly 256 bits
}
OTHERS = {"AVX512_BF16", "AMX_BF16"}  # features that `torch.cpu.get_capabilities` lists


def machine_of(name: str) -> str:
    """Return the name of a machine in `LEVELS` for a system's name of it."""
    return ALIASES.get(name.lower(), name.lower())


def supported(machine: str, capability: str, features: Mapping[str, object], dtype: str) -> list[str]:
    """Return the levels that a processor runs and that have an object file for a dtype, best first.

    Args:
        machine: Name of the machine, a key of `LEVELS`.
        capability: PyTorch's name for the processor (`torch.backends.cpu.get_cpu_capability`).
        features: Other features that PyTorch lists, by name (`torch.cpu.get_capabilities`).
        dtype: Name of the dtype.
    """
    has = HAVING.get(capability, set()) | {feature for feature in OTHERS if features.get(feature.lower()) is True}
    return [level.name for level in LEVELS.get(machine, ()) if dtype in level.dtypes and level.needs <= has]
