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
INT8_DOTS = {"AVX512_VNNI", "AVX_VNNI", "DOTPROD"}  # dot products of 8-bit integers; on ARM, kernels look for them
OTHERS = {"AVX512_BF16", "AMX_BF16", "AVX512_VNNI", "AVX_VNNI"}  # features that `torch.cpu.get_capabilities` lists
AVX512_BF16 = {"AVX512", "AVX2", "AVX512_VNNI", "AVX512_BF16"}
LIMITS: dict[str, dict[str, set[str]]] = {  # values of RELATTN_LEVEL per machine, lowest first, and what they allow
    "x86_64": {
        "default": set(),
        "avx2": {"AVX2"},
        "avx2_vnni": {"AVX2", "AVX_VNNI"},
        "avx512": {"AVX512", "AVX2"},
        "avx512_vnni": AVX512_BF16 - {"AVX512_BF16"},
        "avx512_bf16": AVX512_BF16,
        "avx512_amx": AVX512_BF16 | {"AMX_BF16"},
    },
    "aarch64": {"default": set(), "sve256": {"SVE256", "DOTPROD"}},
}


def machine_of(name: str) -> str:
    """Return the name of a machine in `LEVELS` for a system's name of it."""
    return ALIASES.get(name.lower(), name.lower())


def features_of(machine: str, capability: str, listed: Mapping[str, object], limit: str = "") -> set[str]:
    """Return the features of a processor that kernels may use.

    Args:
        machine: Name of the machine, a key of `LEVELS`.
        capability: PyTorch's name for the processor (`torch.backends.cpu.get_cpu_capability`).
        listed: Other features that PyTorch lists, by name (`torch.cpu.get_capabilities`).
        limit: Value of RELATTN_LEVEL, or "".

    Raises:
        ImportError: The limit is unknown, or higher than the processor.
    """
    has = set(HAVING.get(capability, ())) | {feature for feature in OTHERS if listed.get(feature.lower()) is True}
    if machine == "aarch64":
        has.add("DOTPROD")
    elif "AVX512" not in has:  # ATEN_CPU_CAPABILITY may exclude it, and excludes newer instructions too
        is_newest = "AVX2" in has and listed.get("avx512_f") is not True
        has &= {"AVX2", "AVX_VNNI"} if is_newest else {"AVX2"}
    if not limit:
        return has
    allowed = {name: features for name, features in LIMITS.get(machine, {}).items() if features <= has}
    if limit not in allowed:
        raise ImportError(
            f"RELATTN_LEVEL must be one of {', '.join(allowed)} on this processor, got {limit!r}", name="RELATTN_LEVEL"
        )
    return allowed[limit]


def supported(machine: str, features: set[str], dtype: str) -> list[str]:
    """Return the levels that a processor runs and that have an object file for a dtype, best first.

    Args:
        machine: Name of the machine, a key of `LEVELS`.
        features: Features that kernels may use (`features_of`).
        dtype: Name of the dtype.
    """
    return [level.name for level in LEVELS.get(machine, ()) if dtype in level.dtypes and level.needs <= features]
