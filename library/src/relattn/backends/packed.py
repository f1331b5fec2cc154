"""Packed sequences for backends that take padded batches: one call per run of neighbours of the same length."""

from collections.abc import Callable
from functools import wraps
from itertools import groupby
from typing import Any

import torch

from relattn.call import Call, OutputAndLse

Attend = Callable[[Call, bool], OutputAndLse]
ROWS = "query", "key", "value", "rel_query"


def by_runs(attend: Attend) -> Attend:
    """Let a backend's `attend` take packed sequences. Neighbours of the same length are one batch, without a copy."""

    @wraps(attend)
    def run(call: Call, return_lse: bool) -> OutputAndLse:
        if call.cu_seqlens is None:
            return attend(call, return_lse)
        lengths = call.cu_seqlens.diff().tolist()
        batches = [(len(list(same)), length) for length, same in groupby(lengths)]
        sizes = [count * length for count, length in batches]
        split = {name: x.split(sizes, dim=2) for name, x in call.given(*ROWS).items()}
        outputs = []
        log_sums = []
        for number, batch in enumerate(batches):
            # (count, heads, length, dim)
            parts: Any = {name: x[number][0].unflatten(1, batch).transpose(0, 1) for name, x in split.items()}
            output, lse = attend(call._replace(**parts, cu_seqlens=None, longest=0), return_lse)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
            if lse is not None:
                log_sums.append(lse.transpose(1, 2).flatten(0, 1))
        output = torch.cat(outputs).transpose(0, 1)[None]
        return output, torch.cat(log_sums).transpose(0, 1)[None] if return_lse else None

    return run
