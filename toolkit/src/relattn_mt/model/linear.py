"""Linear layers, y = x Wᵀ + b, which use oneDNN instead of MKL on CPUs where that is faster.

On x86, PyTorch computes float32 products with MKL. On some AMD processors with AVX-512, oneDNN is twice as fast. Every
PyTorch for x86 contains it, but has no setting that selects it for float32. Its public interface, tensors in oneDNN's
layout, copies all operands: in training it takes 1.4 to 1.9 times as long as the private operator
`mkldnn::_linear_pointwise`, so this module calls that operator, if it exists (docs/notebook.md has measurements).

The results of MKL and oneDNN differ in the last digits. Weights and checkpoints do not depend on the choice.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from relattn.backends.autograd import is_transformed
from torch import Tensor, nn

from relattn_mt.support.processor import is_amd

MIN_FEATURES = 256  # inputs and outputs from which on oneDNN is used
MIN_WORK = 256**3  # rows · inputs · outputs, likewise

use_onednn: bool | None = None  # for tests and benchmarks: whether oneDNN is used in float32; None: if it is faster


def has_onednn() -> bool:
    """Return whether this PyTorch has oneDNN and the operator that this module needs."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_bf16() -> bool:
    """Return whether oneDNN computes in bfloat16 on this processor."""
    return has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@functools.cache
def is_onednn_faster() -> bool:
    """Return whether this is an AMD processor with AVX-512, and PyTorch would use MKL. Nothing is timed."""
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return is_amd() and has_avx512 and torch.backends.mkl.is_available()


def _selects_onednn() -> bool:
    return (is_onednn_faster() if use_onednn is None else use_onednn) and has_onednn()


class Linear(nn.Linear):
    """`nn.Linear` on `linear`, with Glorot-uniform weights and a zero bias."""

    def reset_parameters(self) -> None:
        super().reset_parameters()  # so that a seed gives the same weights as with `relattn.nn.linear`
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b as `F.linear` does, by oneDNN where that is faster.

    oneDNN is used for large layers in float32 on a CPU, on processors where `is_onednn_faster`. It is not used in
    compiled and exported models, under autocast or `torch.func`.

    Args:
        x: (rows, …, inputs).
        weight: (outputs, inputs).
        bias: (outputs,).

    Returns:
        (rows, …, outputs).
    """
    if torch.compiler.is_compiling():  # sizes may be symbols
        return F.linear(x, weight, bias)
    work = x.numel() * len(weight)
    large = min(weight.shape) >= MIN_FEATURES and work >= MIN_WORK
    if large and weight.dtype == torch.float32 and _selects_onednn() and _is_plain(x, weight, bias):
        return _Product.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def _is_plain(*operands: Tensor | None) -> bool:
    """Return whether these are ordinary CPU tensors of one dtype, and neither autocast nor `torch.func` is active.

    All must be contiguous: oneDNN is slow on an input with gaps, and reads a bias with gaps wrongly.
    """
    tensors = [tensor for tensor in operands if tensor is not None]
    return (
        all(type(t) in (Tensor, nn.Parameter) and t.is_cpu and t.is_contiguous() for t in tensors)
        and len({t.dtype for t in tensors}) == 1
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not is_transformed(tensors)
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """x Wᵀ + b by oneDNN. The gradients dx = g W and dW = gᵀ x are products of the same kind.

    x must be contiguous, and W or its transpose: otherwise oneDNN is a thousand times as slow.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        rows = grad.flatten(0, -2)  # (rows, outputs)
        x_grad = _Product.apply(grad, weight.t(), None)
        weight_grad = _Product.apply(rows.t().contiguous(), x.flatten(0, -2).t(), None)
        return x_grad, weight_grad, rows.sum(0) if ctx.needs_input_grad[2] else None
