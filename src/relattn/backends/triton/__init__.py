"""Fused attention for NVIDIA GPUs, forward and backward, in Triton: nothing queries × keys in memory, no atomics."""

import importlib.util
import os
from dataclasses import replace
from typing import TypeVar

import torch

from relattn.backends import fused
from relattn.backends.triton import failures
from relattn.backends.triton.kinds import kind_of_call
from relattn.call import Attended, Call, RelationCall, RelativeCall

C = TypeVar("C", bound=Call)
TYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256  # head dim
OLDEST = (8, 0)  # compute capability


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU: it reads the variable when the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unsupported(call: Call) -> str | None:
    query, value = call.query, call.value
    reason = unsupported_device(query.device)
    if reason is not None:
        return reason
    if query.dtype not in TYPES:
        return f"query has type {query.dtype}, and these kernels take float16, bfloat16 and float32; use dense"
    if not 1 <= value.shape[3] <= WIDEST or query.shape[3] > WIDEST:
        return f"dim {query.shape[3]} and value_dim {value.shape[3]}: they are from 1 to {WIDEST}; use dense"
    if torch.compiler.is_exporting():
        return "torch.export takes plain PyTorch operations; use dense"
    return failures.reason(query.device, *kind_of_call(call)) if failures.REASONS else None


@torch.compiler.assume_constant_result
def unsupported_device(device: torch.device) -> str | None:
    """Why the kernels run on no tensor of a device, or None where they do."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton); use dense"
    if device.type != "cuda" and not (interpreted() and device.type == "cpu"):
        return f"query is on {device}, and these kernels are for NVIDIA GPUs; use native or dense"
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < OLDEST):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 8.0 or newer; use dense"
    return None


def relative_attention(call: RelativeCall) -> Attended:
    from relattn.backends.triton import operators  # and with it Triton

    return fused.relative_attention(of_positive_scale(call), operators.attention)


def relation_attention(call: RelationCall) -> Attended:
    from relattn.backends.triton import operators

    return fused.relation_attention(of_positive_scale(call), operators.attention)


def of_positive_scale(call: C) -> C:
    """The same attention with a scale >= 0: the kernels take the largest product for the largest score."""
    return call if call.scale >= 0.0 else replace(call, query=-call.query, scale=-call.scale)
