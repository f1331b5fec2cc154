"""Fused attention for NVIDIA GPUs, forward and backward, in Triton: no queries × keys array in memory, no atomics."""

import importlib.util
import os

import torch
from torch import Tensor

from relattn.backends import fused
from relattn.backends.serves import Serves
from relattn.backends.triton import failures
from relattn.backends.triton.kinds import kind_of_call
from relattn.call import Call

OLDEST = (8, 0)  # compute capability


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU: it reads the variable when the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


SERVES = Serves(
    devices=("cuda", "cpu") if interpreted() else ("cuda",),
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    head_dims=256,
)


def lacking(call: Call) -> str | None:
    reason = lacking_for(call.query.device)
    if reason is None and failures.REASONS:
        reason = failures.reason(call.query.device, *kind_of_call(call))
    return reason


@torch.compiler.assume_constant_result
def lacking_for(device: torch.device) -> str | None:
    """Why the kernels run for no tensor on a device of a type that they serve, or None where they do."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton); use dense"
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < OLDEST):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 8.0 or newer; use dense"
    return None


def installed() -> str:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    import triton

    if interpreted():
        return f"Triton {triton.__version__}, its interpreter"
    chips = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return f"Triton {triton.__version__}, {' and '.join(sorted(chips)) or 'no GPU that PyTorch can use'}"


def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    from relattn.backends.triton import operators  # and with it Triton

    return fused.attend(of_positive_scale(call), operators.attention, return_lse)


def of_positive_scale(call: Call) -> Call:
    """The same attention with a scale >= 0: the kernels take the largest product for the largest score."""
    return call if call.scale >= 0.0 else call._replace(query=-call.query, scale=-call.scale)
