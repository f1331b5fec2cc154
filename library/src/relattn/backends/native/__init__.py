"""Fused attention for CPUs, forward and backward, compiled from `kernels/attention`: no queries × keys array in memory.

It supports every option of both operators, including arbitrary relations, masks and dropout. Half types are computed in
float32. On processors with bfloat16 instructions, the products of queries, keys, values and probabilities use them and
accumulate in float32. The relative terms of the pairs are computed per tile from the scores of a query by label,
(2k + 1) numbers per row. Dropout uses a counter-based generator, seeded from PyTorch's, so that the backward pass draws
the same numbers again.
"""

import torch

from relattn.backends import custom_ops
from relattn.backends.capabilities import FIELDS, Capabilities
from relattn.backends.native import library, operators, plans
from relattn.call import Call, OutputAndLse, accumulation_dtype


def unavailable_reason(call: Call) -> str | None:
    """Return why there is no compiled kernel for a call, or None."""
    real = accumulation_dtype(call.query.dtype)
    return missing(real) if real in library.MISSING else None


def missing(*reals: torch.dtype) -> str:
    """Return the common reason why there are no kernels for some dtypes."""
    return f"{' and '.join(str(real).removeprefix('torch.') for real in reals)} kernels: {library.MISSING[reals[0]]}"


def installation() -> str:
    """Return which processor levels the kernels are compiled for, and why there are none for a dtype."""
    parts = []
    for reals, prefix in ((library.REALS[:2], "compiled for "), (library.REALS[2:], "bfloat16 for ")):
        used = {library.KERNELS[real].level for real in reals if real in library.KERNELS}
        if used:
            parts.append(prefix + " and ".join(sorted(used)))
    reasons = library.MISSING
    parts += [
        missing(*(real for real in reasons if reasons[real] == reason)) for reason in dict.fromkeys(reasons.values())
    ]
    return "; ".join(parts)


CAPABILITIES = Capabilities(
    FIELDS | {"bias"}, devices=("cpu",), unavailable_reason=unavailable_reason, installation=installation
)


plan_kernels = plans.plan_kernels


def attend(call: Call, return_lse: bool) -> OutputAndLse:
    """Return the output of a call, and the log-sum-exp or None."""
    return custom_ops.attend(call, operators.attention, return_lse)
