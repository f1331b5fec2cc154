"""Fused attention for processors, forward and backward, compiled from `attention.c`: nothing queries × keys in memory.

Every option of both operators, arbitrary relations, masks and dropout included; half types are computed in float32. The
pairs' terms are made a tile at a time from the query's scores by label, (2k + 1) numbers per row. Probabilities are
dropped by a counter-based generator seeded from PyTorch's, so that backward draws the same numbers again.
"""

from torch import Tensor

from relattn.backends import fused
from relattn.backends.native import library, operators
from relattn.backends.serves import Serves
from relattn.call import Call, exact


def lacking(call: Call) -> str | None:
    return library.MISSING.get(exact(call.query.dtype))


def installed() -> str:
    used = {kernels.level for kernels in library.KERNELS.values()}
    compiled = f"compiled for {' and '.join(sorted(used))}"
    if used and used != {library.SERVED[0]}:
        compiled += f", not for this processor's {library.SERVED[0]}"
    return "; ".join([compiled] * bool(used) + list(library.MISSING.values()))


SERVES = Serves(devices=("cpu",), lacking=lacking, installed=installed)


def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    return fused.attend(call, operators.attention, return_lse)
