"""Fused attention for processors, forward and backward, compiled from `attention.c`: nothing queries × keys in memory.

Every option of both operators, arbitrary relations, masks and dropout included. Half types are computed in float32; on
processors that multiply bfloat16, its products of queries, keys, values and weights are theirs, summed in float32. The
pairs' terms are made a tile at a time from the query's scores by label, (2k + 1) numbers per row. Probabilities are
dropped by a counter-based generator seeded from PyTorch's, so that backward draws the same numbers again.
"""

import torch
from torch import Tensor

from relattn.backends import custom_ops
from relattn.backends.capabilities import Capabilities
from relattn.backends.native import levels, library, operators
from relattn.call import Call, accumulation_dtype


def unavailable_reason(call: Call) -> str | None:
    real = accumulation_dtype(call.query.dtype)
    return f"{missing(real)}; use dense" if real in library.MISSING else None


def missing(*reals: torch.dtype) -> str:
    """Why there are no kernels of some numbers, for one reason."""
    return f"{' and '.join(map(library.name_of, reals))} kernels: {library.MISSING[reals[0]]}"


def installation() -> str:
    """For what level of processor there are kernels, and why not for a better one or for a number."""
    said = []
    for numbers, before in ((levels.EXACT, "compiled for "), (levels.PAIRS, "bfloat16 for ")):
        used = {kernels.level for real, kernels in library.KERNELS.items() if library.name_of(real) in numbers}
        best = library.SERVED[numbers[0]][:1]
        if used:
            said.append(before + " and ".join(sorted(used)))
            if used != set(best):
                said[-1] += f", not for this processor's {best[0]}"
    reasons = library.MISSING
    said += [
        missing(*(real for real in reasons if reasons[real] == reason)) for reason in dict.fromkeys(reasons.values())
    ]
    return "; ".join(said)


CAPABILITIES = Capabilities(devices=("cpu",), unavailable_reason=unavailable_reason, installation=installation)


def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    return custom_ops.attend(call, operators.attention, return_lse)
