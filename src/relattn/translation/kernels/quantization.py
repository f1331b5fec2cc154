"""Weights in 8 bits: integers, and a scale per output.

A weight W (outputs, inputs) becomes integers q and scales s with W ≈ s · q per row. A quantized model has q in place of
the weights of its linear layers, its embeddings and its output layer, and s in buffers with the suffix `_scale`. Only
the compiled decoder runs such a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from relattn.extension import LARGEST, LARGEST_IMPORTED
from relattn.translation.errors import InputError, require
from relattn.translation.model.transformer import Transformer

MAX_INPUTS = 1 << 17  # of a map, so that sums fit in 32 bits
SCALE = "_scale"


def quantized_weights(model: Transformer) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield each weight that int8 applies to: its name in the model, its module, and its name there."""
    for name in ("embedding", "src_embedding", "output_weight"):
        if getattr(model, name) is not None:
            yield name, model, name
    for prefix, module in model.named_modules():
        if prefix.count(".") == 3 and isinstance(module, nn.Linear):  # STACK.LAYER.PART.LINEAR
            yield f"{prefix}.weight", module, "weight"


def is_quantized(state: Mapping[str, Tensor]) -> bool:
    """Return whether the weights of a model are those of a quantized one."""
    return f"embedding{SCALE}" in state


def allocate_quantized(model: Transformer) -> None:
    """Give a model integer weights and scales, without values, in place of weights in float32."""
    for _, module, name in quantized_weights(model):
        weight = getattr(module, name)  # on the device "meta", other ways to get a shape would import much of PyTorch
        integers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        _replace(module, name, integers, torch.empty(weight.shape[0], device=weight.device))


@torch.no_grad()
def quantize(model: Transformer, scales: Mapping[str, Tensor] | None = None) -> None:
    """Quantize the weights of a model.

    Args:
        model: The model, which is changed.
        scales: Scales (outputs,) by name of the weight. By default, the largest weight of an output becomes 63.

    Raises:
        InputError: Weights are not finite, or have too many inputs.
    """
    for name, weight in model.named_parameters():
        require(bool(weight.isfinite().all()), f"weights in int8 must be finite, got NaN or infinity in {name}")
    for name, module, attribute in quantized_weights(model):
        weight = getattr(module, attribute)
        inputs = weight.shape[1]
        require(
            inputs <= MAX_INPUTS, f"weights in int8 must have at most {MAX_INPUTS:,} inputs, got {inputs:,} in {name}"
        )
        scale = weight.abs().amax(1) / LARGEST if scales is None else scales[name]
        largest = LARGEST if scales is None else LARGEST_IMPORTED
        integers = (weight / torch.where(scale > 0, scale, 1.0)[:, None]).round_().clamp_(-largest, largest)
        _replace(module, attribute, integers.to(torch.int8), scale)


def dequantize(model: Transformer) -> None:
    """Give a quantized model weights in float32: its integers times their scales. Another model is not changed."""
    if not is_quantized(model.state_dict()):
        return
    for _, module, name in quantized_weights(model):
        weight = getattr(module, name) * getattr(module, f"{name}{SCALE}")[:, None]
        setattr(module, name, nn.Parameter(weight))
        delattr(module, f"{name}{SCALE}")


def require_valid(model: Transformer, source: object) -> None:
    """Raise an InputError if integers or scales of a quantized model are out of range."""
    for name, module, attribute in quantized_weights(model):
        weight, scale = getattr(module, attribute), getattr(module, f"{attribute}{SCALE}")
        least = int(weight.min())
        if least < -LARGEST_IMPORTED:
            raise InputError(f"{source}: {name} must be at least {-LARGEST_IMPORTED}, got {least}")
        finite = bool((scale.isfinite() & (scale >= 0)).all())
        require(finite, f"{source}: {name}{SCALE} must be finite and not negative")


def _replace(module: nn.Module, name: str, integers: Tensor, scale: Tensor) -> None:
    setattr(module, name, nn.Parameter(integers, requires_grad=False))
    module.register_buffer(f"{name}{SCALE}", scale.detach())
