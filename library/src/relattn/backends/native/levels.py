"""Levels of processors that the kernels are compiled for. The engine of the toolkit chooses in `kernels/levels.c`.

`kernels/build.py` reads this file where nothing is installed, and `loader.py` selects by it.
"""

import ctypes
import re
import sys
from pathlib import Path
from typing import NamedTuple

EXACT, PAIRS = ("float32", "float64"), ("bfloat16",)  # dtypes that an object file computes in


class Level(NamedTuple):
    """Instruction-set level of a processor."""

    name: str  # in the names of object files; `kernels/build.py` has the flags of the compiler
    needs: frozenset[str] = frozenset()  # features that the processor must have
    dots: str = ""  # feature with which it has dot products of 8-bit integers
    dtypes: tuple[str, ...] = EXACT  # one object file each; bfloat16 calls without their own use float32's


LEVELS = {  # per machine, best first; the last level runs on every processor of the machine
    "x86_64": (
        Level("x86-64-v4-amx", frozenset({"AVX512", "AMX_BF16"}), dtypes=PAIRS),
        Level("x86-64-v4-bf16", frozenset({"AVX512", "AVX512_BF16"}), dtypes=PAIRS),
        Level("x86-64-v4", frozenset({"AVX512"}), "AVX512_VNNI"),
        Level("x86-64-v3", frozenset({"AVX2"}), "AVX_VNNI"),
        Level("x86-64"),
    ),
    "aarch64": (Level("aarch64-sve256", frozenset({"SVE256"}), "DOTPROD"), Level("aarch64", dots="DOTPROD")),
}
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}  # names on Windows and macOS
FLAGS = {  # what a feature requires, in Linux's names
    "AVX2": {"avx2", "fma"},
    "AVX512": {"avx512f", "avx512vl", "avx512bw", "avx512dq"},
    "AVX512_BF16": {"avx512_bf16"},
    "AMX_BF16": {"amx_bf16"},
    "AVX512_VNNI": {"avx512_vnni"},
    "AVX_VNNI": {"avx_vnni"},
    "SVE256": {"sve256"},  # vectors of exactly 256 bits
    "DOTPROD": {"asimddp"},
}
CPUID = {  # of a feature in Linux's names: index of the leaf in the C library, register, bit
    "fma": (0, 2, 12),
    "avx2": (1, 1, 5),
    "avx512f": (1, 1, 16),
    "avx512dq": (1, 1, 17),
    "avx512bw": (1, 1, 30),
    "avx512vl": (1, 1, 31),
    "avx512_vnni": (1, 2, 11),
    "amx_bf16": (1, 3, 22),
    "avx_vnni": (6, 0, 4),
    "avx512_bf16": (6, 0, 5),
}
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


def processor_flags() -> set[str]:
    """Return the features of this processor in Linux's names. Other systems have one level each."""
    return {"asimddp"} if sys.platform == "darwin" else listed_flags() - emulator_lacks()


def emulator_lacks() -> set[str]:
    """Return features of `CPUID` that this process lacks. Under QEMU, Linux lists those of the real processor.

    glibc asks the processor, or the emulator, by cpuid since version 2.33. With another C library, the list is trusted.
    """
    leaf_of = getattr(ctypes.CDLL(None), "__x86_get_cpuid_feature_leaf", None) if sys.platform == "linux" else None
    if leaf_of is None:
        return set()
    leaf_of.restype = ctypes.POINTER(ctypes.c_uint32 * 4)
    return {flag for flag, (leaf, register, bit) in CPUID.items() if not leaf_of(leaf).contents[register] >> bit & 1}


def listed_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the features that Linux lists for the first processor."""
    if sys.platform != "linux" or not path.exists():
        return set()
    with path.open("rb", buffering=0) as file:  # the first processor
        listed = re.search(rb"^(?:flags|Features)\s*:(.*)", file.read(1 << 14), re.MULTILINE)
    flags = set(listed[1].decode().split() if listed else ())
    if "sve" in flags:
        get_vector_length = 51  # PR_SVE_GET_VL
        flags.add(f"sve{8 * (ctypes.CDLL(None).prctl(get_vector_length, 0, 0, 0, 0) & 0xFFFF)}")
    return flags


def features_of(machine: str, flags: set[str], limit: str = "") -> set[str]:
    """Return the features that kernels may use, of a processor with some `processor_flags`, up to the level `limit`.

    Raises:
        ImportError: The limit is unknown, or higher than the processor.
    """
    has = {feature for feature, needs in FLAGS.items() if needs <= flags}
    if "AVX2" not in has:
        has &= {"SVE256", "DOTPROD"}
    elif "AVX512" not in has:
        has &= {"AVX2", "AVX_VNNI"}
    if not limit:
        return has
    allowed = {name: features for name, features in LIMITS.get(machine, {}).items() if features <= has}
    if limit not in allowed:
        raise ImportError(
            f"RELATTN_LEVEL must be one of {', '.join(allowed)} on this processor, got {limit!r}", name="RELATTN_LEVEL"
        )
    return allowed[limit]


def supported(machine: str, features: set[str], dtype: str) -> list[str]:
    """Return the levels that a processor with some `features_of` runs, of which there is an object file, best first."""
    return [level.name for level in LEVELS.get(machine, ()) if dtype in level.dtypes and level.needs <= features]
