"""Linear layers in int8 on CPUs, for inference.

A weight is quantized per output, and the rows of an input as they come, each with its own scale, so a row has the same
output in any batch. Sums are exact. The products are those of `backends.native`, chosen by the features of the
processor: dot products with weights of 8 bits, or pairs of products with weights of 7 bits on AVX2 and AVX-512 without
VNNI. On processors with AMX, PyTorch multiplies with oneDNN, which uses it. Where there is none of these, layers keep
float32, with a warning: other products of integers are slower.

Some channels of trained models are much larger than the others, and then most integers of a row are small. Where they
are large, the columns of the next weight are usually small. So inputs are divided by powers of two, and the columns
multiplied, until the columns are about equally large. This is SmoothQuant (Xiao et al. 2023) without examples: the
powers follow from the weight.

The weights in float32 do not change, so parameters keep their names and `restore` is exact. Exported models compute in
float32, because integers that are exact here may not be exact on another processor. Compiled models do so too, because
their graphs would not notice changes of a weight.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relattn.backends.native import int8 as native_int8
from relattn.backends.native import library
from relattn.backends.native.int8 import GENERIC, LARGEST_WIDE, best_kernel
from relattn.backends.native.loader import FEATURES
from relattn.integrations.transformers.forward_patch import is_exporting

LEAST = 64  # inputs and outputs; smaller layers gain nothing
MOST_SMOOTHED = 12  # logarithm of the largest power of two that a column is multiplied with
SAMPLED = 8  # rows and columns of a weight in which changes are looked for, or a few more
_BLOCK = 512  # rows that are computed at once, which bounds the memory of their sums
_TINY = torch.finfo(torch.float32).tiny
_log = logging.getLogger(__name__)


class Int8Linear(nn.Linear):
    """A linear layer that computes in int8 if no gradient is needed, and else in float32.

    `nn.Linear` becomes one by exchanging its class (`quantize`).
    """

    # identity of the weight, its integers for `product`, and the factors of the inputs or None
    _quantized: tuple[tuple[Any, ...], Any, Tensor | None] | None = None

    def forward(self, input: Tensor) -> Tensor:
        if is_exporting() or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return super().forward(input)
        tensors = input, self.weight, *(() if self.bias is None else (self.bias,))
        is_plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            _warn_of_gradients()
            is_plain = False
        if not is_plain or input.numel() == 0:
            return super().forward(input)
        weight, factors = self._integers()
        rows = input.reshape(-1, self.in_features)
        output = rows.new_empty(len(rows), self.out_features)
        for part, into in zip(rows.split(_BLOCK), output.split(_BLOCK), strict=True):
            part = part if factors is None else part * factors
            if isinstance(weight, native_int8.Weight):
                native_int8.linear(part, weight, self.bias, into)
            else:
                _multiply_with_onednn(part, weight[0], weight[1], self.bias, into)
        return output.view(*input.shape[:-1], self.out_features)

    def _integers(self) -> tuple[Any, Tensor | None]:
        """Return the weight in the form of the product of this processor, and factors; made again if it has changed."""
        weight = self.weight
        # PyTorch does not count changes through `.data`, such as those of a merged LoRA: some numbers are compared too.
        row_step, column_step = (size // SAMPLED for size in weight.shape)
        sample = weight[::row_step, ::column_step].tolist()
        identity = weight.data_ptr(), 0 if weight.is_inference() else weight._version, sample
        if self._quantized is None or self._quantized[0] != identity:
            (own, factors), kernel = smoothed(weight.detach()), product()
            quantized = _quantize(own) if kernel is None else native_int8.quantize(own, kernel)
            self._quantized = identity, quantized, factors
        return self._quantized[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_quantized"}


def quantize(model: nn.Module, keep: Sequence[str] = ()) -> list[Int8Linear]:
    """Let the linear layers of a model compute in int8, and return those that did not do so before.

    Layers with fewer than 64 inputs or outputs, the layer of the output embeddings, and the modules named in `keep`
    with all their parts keep float32.

    Raises:
        ValueError: a name in `keep` is of no module; a weight is not finite, not in float32, not on the CPU, or was
            made in inference mode; or the model has no such layer. Nothing is changed.
    """
    find_head: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    if unknown := set(keep) - {name for name, _ in model.named_modules()}:
        raise ValueError(f"keep must have names of model.named_modules(), got {', '.join(sorted(unknown))}")
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Int8Linear)
        and min(module.in_features, module.out_features) >= LEAST
        and module is not head
        and not any(f"{name}.".startswith(f"{kept}.") for kept in keep)
    }
    if not found:
        raise ValueError(f"int8 requires a linear layer of at least {LEAST} by {LEAST}, got {type(model).__name__}")
    for name, module in found.items():
        weight = module.weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            dtype = str(weight.dtype).removeprefix("torch.")
            raise ValueError(f"int8 requires weights in float32 on the CPU, got {dtype} on {weight.device} for {name}")
        if weight.is_inference():  # which hides its changes
            raise ValueError(f"int8 requires weights that were not made in inference mode, got {name}")
        if not bool(weight.isfinite().all()):
            raise ValueError(f"int8 requires finite weights, got {name} with other values")
    if product() == GENERIC:
        _log.warning("linear layers keep float32: int8 is not faster on this processor, or there are no kernels for it")
        return []
    changed = [module for module in found.values() if not isinstance(module, Int8Linear)]
    for module in changed:
        module.__class__ = Int8Linear
        module._integers()
    return changed


def restore(module: nn.Module) -> None:
    """Let a layer compute in float32 again."""
    if isinstance(module, Int8Linear):
        module.__class__ = nn.Linear  # type: ignore[assignment]
        module.__dict__.pop("_quantized", None)


def product() -> int | None:
    """Return the fastest product of this processor: a kernel of `backends.native`, or None for oneDNN's with AMX.

    GENERIC stands for products that are slower than those in float32.
    """
    kernels = library.KERNELS.get(torch.float32)
    if "AMX_BF16" in FEATURES:  # such processors multiply 8-bit integers in tiles too
        return None
    return GENERIC if kernels is None else best_kernel(kernels)


def smoothed(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a weight with columns of about equal size, and what its inputs have to be multiplied with; None: 1."""
    largest = weight.abs().amax(0)
    powers = (largest.median() / largest.clamp_min(_TINY)).log2().round().clamp(-MOST_SMOOTHED, MOST_SMOOTHED)
    return (weight * powers.exp2(), powers.neg().exp2()) if bool(powers.any()) else (weight, None)


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight (outputs, inputs) as integers (inputs, outputs) and the scale per output, for oneDNN."""
    scale = weight.abs().amax(1).clamp_min(_TINY * LARGEST_WIDE) / LARGEST_WIDE
    return (weight / scale[:, None]).round_().to(torch.int8).t(), scale


def _multiply_with_onednn(rows: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    row_scale = rows.abs().amax(1, keepdim=True).clamp_min(_TINY) / 127
    integers = torch.div(rows, row_scale).round_().to(torch.int8)
    torch.mul(torch._int_mm(integers, weight), scale, out=out).mul_(row_scale)
    if bias is not None:
        out.add_(bias)


@functools.cache
def _warn_of_gradients() -> None:
    """Warn once that layers compute in float32."""
    _log.warning("linear layers compute in float32, because gradients are enabled; use torch.inference_mode()")
