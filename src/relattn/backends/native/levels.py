"""The processors that the kernels are compiled for.

`hatch_build.py`, which compiles them, reads this where there is no torch; `library.py` chooses by it."""

from collections.abc import Mapping
from typing import NamedTuple

EXACT, PAIRS = ("float32", "float64"), ("bfloat16",)  # numbers that an object computes in


class Level(NamedTuple):
    """A kind of processor."""

    name: str  # of its objects
    flags: tuple[str, ...]  # that make GCC and Clang compile for it
    needs: frozenset[str] = frozenset()  # what a processor must have
    numbers: tuple[str, ...] = EXACT  # an object for each; calls in bfloat16 without one of theirs take float32's


DOTS = ("-march=x86-64-v4", "-mavx512bf16")
LEVELS = {  # of each machine, the best first; the last one runs on every processor of it
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
ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}  # what Windows and macOS call them
HAVING = {  # what a processor has of which PyTorch says such a word (`torch.backends.cpu.get_cpu_capability`)
    "AVX512": {"AVX512", "AVX2"},
    "AVX2": {"AVX2"},
    "SVE256": {"SVE256"},  # vectors of 256 bits, no more and no less
}
OTHERS = {"AVX512_BF16", "AMX_BF16"}  # and these are read beside that word


def machine_of(name: str) -> str:
    """A machine as it is named here, from a system's own name for it."""
    return ALIASES.get(name.lower(), name.lower())


def served(machine: str, capability: str, others: Mapping[str, object], number: str) -> list[str]:
    """The levels with objects for a number that run on a processor, the best first; none where the machine has none.

    `others` are what else PyTorch says of it, by name (`torch.cpu.get_capabilities`).
    """
    has = HAVING.get(capability, set()) | {word for word in OTHERS if others.get(word.lower()) is True}
    return [level.name for level in LEVELS.get(machine, ()) if number in level.numbers and level.needs <= has]
