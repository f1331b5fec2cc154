"""The compiled engine: its kernels for this processor, and the numbers that it shares with Python."""

from pathlib import Path

from relattn_mt.engine import loader

FOLDER = Path(__file__).parent
INTERFACE = 4  # RELATTN_MT_INTERFACE of the header that this code was written for
FLOAT, GENERIC, PAIRS, DOTS = range(4)  # kernels of maps
KERNELS_OF_MAPS = {  # in the name of a decoder
    FLOAT: "",
    GENERIC: ", int8 with products of 16 or 32 bits",
    PAIRS: ", int8 with products of pairs",
    DOTS: ", int8 with dot products",
}
# integers of weights: those that PAIRS supports, and those of 8 bits
LARGEST = 63
LARGEST_IMPORTED = 127


def load(level: str | None = None, folder: Path = FOLDER) -> loader.Kernels:
    """Return the kernels in a directory for this processor; as `loader.load`."""
    return loader.load(folder, "relattn_mt", INTERFACE, level)
