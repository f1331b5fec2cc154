"""The processors that the kernels are compiled for.

`hatch_build.py`, which compiles them, reads this where there is no torch; `library.py` chooses by it."""

from typing import NamedTuple


class Level(NamedTuple):
    """A kind of processor."""

    name: str  # of its objects
    flags: tuple[str, ...]  # that make GCC and Clang compile for it
    needs: frozenset[str] = frozenset()  # what a processor must have


LEVELS = {  # of each machine, the best first; the last one runs on every processor of it
    "x86_64": (
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


def machine_of(name: str) -> str:
    """A machine as it is named here, from a system's own name for it."""
    return ALIASES.get(name.lower(), name.lower())


def served(machine: str, capability: str) -> list[Level]:
    """The levels that run on a processor, the best first; none where the machine has no kernels."""
    return [level for level in LEVELS.get(machine, ()) if level.needs <= HAVING.get(capability, set())]
