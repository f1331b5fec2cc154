"""Fused attention for NVIDIA GPUs, forward and backward, in Triton: no queries × keys array in memory, no atomics."""

import importlib.util
import os

import torch
from torch import Tensor

from relattn.backends import custom_ops
from relattn.backends.capabilities import Capabilities
from relattn.call import Call


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU: it reads the variable when the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unavailable_reason(call: Call) -> str | None:
    from relattn.backends.triton import failures, kinds  # and with them torch._dynamo

    reason = failures.lacking_for(call.query.device)
    if reason is None and failures.REASONS:
        reason = failures.reason(call.query.device, *kinds.kind_of_call(call))
    return reason


def installation() -> str:
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


def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    from relattn.backends.triton import operators  # and with it Triton

    return custom_ops.attend(of_positive_scale(call), operators.attention, return_lse)


def of_positive_scale(call: Call) -> Call:
    """The same attention with a scale >= 0: the kernels take the largest product for the largest score."""
    if call.scale >= 0.0:
        return call
    rel_query = None if call.rel_query is None else -call.rel_query
    return call._replace(query=-call.query, rel_query=rel_query, scale=-call.scale)
