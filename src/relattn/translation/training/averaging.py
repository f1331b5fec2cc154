"""The mean of several checkpoints' weights, which usually translates better than the last of them alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from relattn.translation.errors import Diverged, InputError


def average(states: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The element-wise mean of state dictionaries of one model, summed in float64 and returned in their own types.

    Raises:
        InputError: there are none, or they hold other weights than each other.
        Diverged: they hold weights that are not finite numbers.
    """
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        if total and {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in total.items()}:
            raise InputError(f"checkpoint {count + 1} to be averaged holds other weights than the first")
        for name, value in state.items():
            if not value.isfinite().all():
                raise Diverged(f"checkpoint {count + 1} to be averaged holds {name} that is not finite: it diverged")
            dtypes[name] = value.dtype
            total[name] = value.double() + total[name] if name in total else value.double()
        count += 1
    if count == 0:
        raise InputError("there is no checkpoint to average")
    return {name: (value / count).to(dtypes[name]) for name, value in total.items()}
