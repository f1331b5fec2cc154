"""Fused attention for NVIDIA GPUs, forward and backward, in Triton: nothing queries × keys in memory, no atomics."""

import importlib.util
import math
import os

import torch

from relattn.backends import fused
from relattn.call import Attended, Call, RelationCall, RelativeCall

TYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256  # head dim
OLDEST = (8, 0)  # compute capability


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU: it reads the variable when the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unsupported(call: Call) -> str | None:
    query, value = call.query, call.value
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton); use dense"
    if query.device.type != "cuda" and not (interpreted() and query.device.type == "cpu"):
        return f"query is on {query.device}, and these kernels are for NVIDIA GPUs; use native or dense"
    if query.dtype not in TYPES:
        return f"query has type {query.dtype}, and these kernels take float16, bfloat16 and float32; use dense"
    if query.device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(query.device) < OLDEST):
        return (
            f"{torch.cuda.get_device_name(query.device)} is no NVIDIA GPU of compute capability 8.0 or newer; use dense"
        )
    if not 1 <= value.shape[3] <= WIDEST or query.shape[3] > WIDEST:
        return f"dim {query.shape[3]} and value_dim {value.shape[3]}: they are from 1 to {WIDEST}; use dense"
    if torch.compiler.is_exporting():
        return "torch.export takes plain PyTorch operations; use dense"
    return None


def relative_attention(call: RelativeCall) -> Attended:
    from relattn.backends.triton import operators  # and with it Triton

    return natural(fused.relative_attention(call, operators.attention))


def relation_attention(call: RelationCall) -> Attended:
    from relattn.backends.triton import operators

    return natural(fused.relation_attention(call, operators.attention))


def natural(attended: Attended) -> Attended:
    """With the log-sum-exp as a natural logarithm: the kernels' is to base two."""
    return Attended(attended.output, None if attended.lse is None else attended.lse * math.log(2.0))
