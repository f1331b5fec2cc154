"""Linear maps in float32 at the processor's speed: who multiplies the matrices of a model on a CPU.

    torch     F.linear as it is; PyTorch's builds for x86 have MKL multiply float32
    onednn    oneDNN, a part of the same PyTorch, for large maps in plain float32; F.linear for all others
    packed    the same, and without gradients by weights that `pack` laid out for oneDNN beforehand

On AMD processors with AVX-512 MKL reaches half of oneDNN's speed, on Intel's it is the faster, and PyTorch has no
setting for it (docs/backends.md). The two differ in the last digits. So a model has what is faster on the machine that
makes it, by a rule and not by a trial; what it has can be read from `model.products` and set by `use_products`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from relattn.backends.autograd import is_transformed
from relattn.translation.processor import is_amd

if TYPE_CHECKING:
    from relattn.translation.model.transformer import Transformer

LEAST = 256  # of inputs and of outputs, and its cube of rows · inputs · outputs, from which on a map is large
WEIGHT, WORK = 2 * LEAST**2, 8 * LEAST**2  # of inputs · outputs, and of that times rows: enough for a packed weight


def fastest() -> str:
    """The name of the faster products on this machine, as far as that was measured."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "onednn" if is_amd() and wide and torch.backends.mkl.is_available() and has_onednn() else "torch"


def has_onednn() -> bool:
    """Whether this PyTorch has oneDNN, and the operator that leads to it, which is none of its public ones."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_bf16() -> bool:
    """Whether oneDNN computes in bfloat16 on this processor."""
    return has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def use_products(model: Transformer, name: str) -> None:
    """Have a model take other products: in each module that is an nn.Linear, subclasses excepted, and its output layer.

    Where this PyTorch has no oneDNN, a warning says so, and the model has "torch".

    Raises:
        ValueError: `name` is none of `PRODUCTS`.
    """
    if name not in PRODUCTS:
        raise ValueError(f"products are {' or '.join(map(repr, PRODUCTS))}, not {name!r}")
    if name != "torch" and not has_onednn():
        warnings.warn("products by oneDNN: this PyTorch has none; its own differ in the last digits", stacklevel=2)
        name = "torch"
    model.products = name
    for module in linear_maps(model):
        module.__class__ = LINEARS[name]


def linear_maps(model: nn.Module) -> list[nn.Linear]:
    """The modules that `use_products` changes."""
    return [module for module in model.modules() if isinstance(module, nn.Linear) and type(module) in LINEARS.values()]


def pack(model: Transformer) -> None:
    """Lay the weights of a model that is to translate out as oneDNN reads them, where oneDNN is what multiplies them.

    That is in float32 where `model.products` are oneDNN's, and in bfloat16 where the processor has arithmetic for it.
    Each large weight takes its memory once more. One that changes later is used as it then is, not packed; of a change
    through `.data` PyTorch knows nothing, and nor does this: `use_products` takes such a model back.
    """
    if not has_onednn() or not model.unembedding.is_cpu:
        return
    by_onednn = {torch.float32: model.products != "torch", torch.bfloat16: has_bf16()}
    if not by_onednn.get(model.unembedding.dtype, False):
        return
    use_products(model, "packed")
    for weight in (model.unembedding, *(module.weight for module in linear_maps(model))):
        if min(weight.shape) >= LEAST and weight.is_contiguous() and not weight.is_inference():
            lay_out(weight)


def lay_out(weight: Tensor) -> None:
    """Have `packed` find a weight as oneDNN reads it for some hundred rows, which does for all."""
    _PACKED[weight] = _Packed(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 256), _state(weight))


class _Packed(NamedTuple):
    """A weight as oneDNN reads it, and what tells whether it still is that weight."""

    tensor: Tensor
    state: tuple[int, int, torch.dtype]


def _state(weight: Tensor) -> tuple[int, int, torch.dtype]:
    return weight._version, weight.data_ptr(), weight.dtype


_PACKED = WeakTensorKeyDictionary()  # weight -> _Packed


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, by oneDNN where `suits` says so: (…, inputs), (outputs, inputs), (outputs,) -> (…, outputs)."""
    return _Product.apply(x.contiguous(), weight, bias) if suits(x, weight, bias) else F.linear(x, weight, bias)


def packed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear without gradients by a weight that `pack` laid out; `onednn` where that is not so, or small."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return onednn(x, weight, bias)
    held: _Packed | None = _PACKED.get(weight)
    work = x.numel() * len(weight)
    enough = work >= LEAST**3 or (weight.numel() >= WEIGHT and work >= WORK)
    if held is None or held.state != _state(weight) or not enough or not _is_plain(x, weight, bias):
        return onednn(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), held.tensor, _contiguous(bias), "none", [], "")


PRODUCTS: dict[str, Callable[..., Tensor]] = {"torch": F.linear, "onednn": onednn, "packed": packed}


class OneDNNLinear(nn.Linear):
    """What `use_products` makes of an nn.Linear: the same in all but its products."""

    def forward(self, x: Tensor) -> Tensor:
        return onednn(x, self.weight, self.bias)


class PackedLinear(nn.Linear):
    """The same for a model that is packed."""

    def forward(self, x: Tensor) -> Tensor:
        return packed(x, self.weight, self.bias)


LINEARS: dict[str, type[nn.Linear]] = {"torch": nn.Linear, "onednn": OneDNNLinear, "packed": PackedLinear}


def suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a map is large, in plain float32 on a CPU, and not compiled, exported, autocast or transformed."""
    if torch.compiler.is_compiling():  # first, since sizes may be symbols
        return False
    return (
        min(weight.shape) >= LEAST
        and x.numel() * len(weight) >= LEAST**3
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and _is_plain(x, weight, bias)
    )


def _is_plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a map is of some numbers of one type on a CPU, and nothing else has a say in it."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    return (
        x.numel() > 0
        and x.shape[-1:] == weight.shape[1:]  # where shapes do not fit, F.linear has words for it
        and (bias is None or bias.shape == weight.shape[:1])
        and all(type(t) in (Tensor, nn.Parameter) and t.dtype == weight.dtype for t in tensors)
        and all(t.is_cpu and t.layout == torch.strided for t in tensors)
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not is_transformed(tensors)
    )


def _contiguous(bias: Tensor | None) -> Tensor | None:
    """What the operator takes a bias for."""
    return None if bias is None else bias.contiguous()


class _Product(torch.autograd.Function):
    """x Wᵀ + b. Its gradients, dx = g W and dW = gᵀ x, are products of the same kind, second derivatives included.

    x is contiguous, W is that or its transpose is: oneDNN is slow where neither is so.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, _contiguous(bias), "none", [], "")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (x, weight), (x_needed, weight_needed, bias_needed) = ctx.saved_tensors, ctx.needs_input_grad
        grad = grad.contiguous()
        rows = grad.flatten(0, -2)  # (rows, outputs)
        return (
            _Product.apply(grad, weight.t(), None) if x_needed else None,
            _Product.apply(rows.t().contiguous(), x.flatten(0, -2).t(), None) if weight_needed else None,
            rows.sum(0) if bias_needed else None,
        )
