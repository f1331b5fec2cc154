"""Fused attention for processors, forward and backward, compiled from `attention.c`: nothing queries × keys in memory.

Every option of the contract, arbitrary relations, masks and dropout included, in float32, bfloat16 and float16. The
pairs' terms are made a tile at a time from the query's scores by label, (2k + 1) numbers a row. Probabilities are
dropped by a counter-based generator seeded from PyTorch's, so the way back draws the same numbers again.
"""

import torch

from relattn.backends import fused
from relattn.backends.native import library, operators
from relattn.call import Attended, Call, RelationCall, RelativeCall


def unsupported(call: Call) -> str | None:
    if call.query.device.type != "cpu":
        return f"query is on {call.query.device}, and these kernels are for CPUs; use dense"
    if call.query.dtype not in library.TYPES:
        return f"query has type {call.query.dtype}, and these kernels compute in float32; use dense"
    if torch.compiler.is_exporting():
        return "torch.export takes plain PyTorch operations; use dense"
    return library.MISSING


def relative_attention(call: RelativeCall) -> Attended:
    return fused.relative_attention(call, operators.attention)


def relation_attention(call: RelationCall) -> Attended:
    return fused.relation_attention(call, operators.attention)
