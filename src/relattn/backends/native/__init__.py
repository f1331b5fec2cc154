"""Fused attention for processors, forward and backward, compiled from `attention.c`: nothing queries × keys in memory.

Every option of the contract, arbitrary relations, masks and dropout included, in float32, bfloat16 and float16. The
pairs' terms are made a tile at a time from the query's scores by label, (2k + 1) numbers a row. Probabilities are
dropped by a counter-based generator seeded from PyTorch's, so the way back draws the same numbers again.
"""

import torch
from torch import Tensor

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
    right = 0 if call.is_causal else call.right  # rows for later keys, which nothing sees, stay outside
    rows = slice(call.left + right + 1)
    rel_key, rel_value = (None if table is None else table[..., rows, :] for table in (call.rel_key, call.rel_value))
    return attend(call, rel_key, rel_value, None, call.left, right, call.beyond == "clip")


def relation_attention(call: RelationCall) -> Attended:
    relations = None if call.rel_key is None and call.rel_value is None else call.relations
    return attend(call, call.rel_key, call.rel_value, relations, 0, 0, False)


def attend(
    call: Call,
    rel_key: Tensor | None,
    rel_value: Tensor | None,
    relations: Tensor | None,
    left: int,
    right: int,
    clips: bool,
) -> Attended:
    offsets = call.query_offset
    if not isinstance(offsets, Tensor):
        offsets = torch.full(call.query.shape[:1], offsets)
    mask = None if call.mask is None else call.mask[(None,) * (4 - call.mask.dim())]
    output, lse = operators.attention(
        call.query,
        call.key,
        call.value,
        rel_key,
        rel_value,
        relations,
        offsets.long().contiguous(),
        call.key_lengths,
        mask,
        torch.randint(2**63 - 1, ()) if call.dropout_p > 0.0 else None,
        left,
        right,
        clips,
        call.is_causal,
        call.dropout_p,
        call.scale,
    )
    return Attended(output, lse.detach() if call.return_lse else None)
