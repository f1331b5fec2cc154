"""Fused attention kernels for NVIDIA GPUs, forward and backward, written in Triton.

They never store a (queries, keys) array, and they use no atomic operations.
"""

import importlib.util
import os

import torch
from torch import Tensor

from relattn.backends import custom_ops, packed
from relattn.backends.capabilities import Capabilities
from relattn.backends.plans import Passes
from relattn.call import Call, OutputAndLse


def interpreted() -> bool:
    """Return whether Triton's interpreter replaces a GPU. Triton reads the variable when the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unavailable_reason(call: Call) -> str | None:
    """Return why the kernels cannot run for a call, or None if they can."""
    from relattn.backends.triton import availability  # imports torch._dynamo, which takes long

    return availability.unsupported_device(call.query.device)


def is_measured(device: torch.device) -> bool:
    """Return whether the kernels have been checked and measured on a device: on Hopper (`benchmarks.gpu`)."""
    from relattn.backends.triton import availability

    return availability.is_hopper(device)


def installation() -> str:
    """Return the version of Triton and the names of the GPUs."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    import triton

    if interpreted():
        return f"Triton {triton.__version__}, its interpreter"
    chips = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return f"Triton {triton.__version__}, {' and '.join(sorted(chips)) or 'no GPU that PyTorch can use'}"


CAPABILITIES = Capabilities(
    devices=("cuda", "cpu") if interpreted() else ("cuda",),
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    head_dims=256,
    unavailable_reason=unavailable_reason,
    installation=installation,
)


def plan_kernels(call: Call, given: dict[str, Tensor], records: bool, return_lse: bool) -> Passes | None:
    """Return the plans of both passes; None in Triton's interpreter, and for calls that have none."""
    from relattn.backends.triton import launches

    return launches.plan_kernels(call, given, records, return_lse)


@packed.by_runs
def attend(call: Call, return_lse: bool) -> OutputAndLse:
    """Return the output of a call, and its log-sum-exp if asked for."""
    from relattn.backends.triton import operators  # imports Triton

    return custom_ops.attend(with_nonnegative_scale(call), operators.attention, return_lse)


def with_nonnegative_scale(call: Call) -> Call:
    """Return the same attention with scale >= 0, since the kernels take the largest product for the largest score."""
    if call.scale >= 0.0:
        return call
    rel_query = None if call.rel_query is None else -call.rel_query
    pos_query = None if call.pos_query is None else -call.pos_query
    return call._replace(query=-call.query, rel_query=rel_query, pos_query=pos_query, scale=-call.scale)
