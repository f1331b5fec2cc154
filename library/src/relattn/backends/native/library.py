"""The compiled kernels of attention by dtype."""

from pathlib import Path

import torch

from relattn.backends.native import loader
from relattn.backends.native.loader import Kernels
from relattn.call import accumulation_dtype

FOLDER = Path(__file__).parent
REALS = torch.float32, torch.float64, torch.bfloat16  # what kernels compute in, as in `relattn.h`


def load(real: torch.dtype, level: str | None = None, folder: Path = FOLDER) -> Kernels:
    """Return the kernels in a directory for this processor and a dtype; as `loader.load`."""
    return loader.load(folder, "relattn", REALS.index(real), level)


def load_all(folder: Path = FOLDER) -> tuple[dict[torch.dtype, Kernels], dict[torch.dtype, str]]:
    """Return the kernels per dtype, and why those for float32 or float64 are missing."""
    kernels: dict[torch.dtype, Kernels] = {}
    missing: dict[torch.dtype, str] = {}
    for real in REALS:
        try:
            kernels[real] = load(real, folder=folder)
        except OSError as error:
            missing[real] = str(error)
    missing.pop(torch.bfloat16, None)  # computed in float32
    return kernels, missing


KERNELS, MISSING = load_all()


def kernels_of(dtype: torch.dtype) -> Kernels:
    """Return the kernels for a dtype; half types without their own are computed in float32."""
    return KERNELS[dtype if dtype in KERNELS else accumulation_dtype(dtype)]
