"""Differences between an enabled model and its own code, on inputs of the user."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from relattn.integrations.transformers.int8 import Int8Linear

SHOWN = 10  # layers in int8 with the largest differences


def compare(model: nn.Module, own: nn.Module, inputs: Mapping[str, Any]) -> list[str]:
    """Return lines about the times and outputs of a model and of its copy with its own code, and each layer in int8.

    Both are called in evaluation mode, since dropout would make them differ.
    """
    modes = {module: module.training for module in model.modules()}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Int8Linear)}
    differences: dict[str, float] = {}

    def watch(name: str, layer: nn.Linear, given: tuple[Tensor, ...], output: Tensor) -> None:
        exact = nn.functional.linear(given[0], layer.weight, layer.bias)
        differences[name] = max(differences.get(name, 0.0), difference(output, exact))

    seconds = []
    try:
        with torch.inference_mode():
            with ExitStack() as hooks:
                for name, layer in layers.items():
                    hooks.enter_context(layer.register_forward_hook(partial(watch, name)))
                model.eval()(**inputs)
            own.eval()(**inputs)
            for each in (model, own):
                start = time.perf_counter()
                outputs = tensors_of(each(**inputs))
                seconds.append((time.perf_counter() - start, outputs))
    finally:
        for module, is_training in modes.items():
            module.training = is_training
    (here, ours), (there, exact) = seconds
    lines = [f"{here:.3g} s, own code {there:.3g} s"]
    mask = inputs.get("attention_mask")
    for name, x in exact.items():
        pair = ours[name], x
        if isinstance(mask, Tensor) and mask.dim() == 2 and x.shape[:2] == mask.shape:
            pair = pair[0][mask != 0], pair[1][mask != 0]  # outputs at padding mean nothing
        line = f"{name}: differs by {difference(*pair):.1e} (root mean square, relative)"
        if "logits" in name:
            changed = pair[0].argmax(-1) != pair[1].argmax(-1)
            line += f", {int(changed.sum())} of {changed.numel()} labels change"
        lines.append(line)
    worst = sorted(differences, key=lambda name: -differences[name])[:SHOWN]
    lines += [f"{name}: int8 differs by {differences[name]:.1e}" for name in worst]
    if layers:
        lines.append(f"to keep layers in float32: disable(model), then enable(model, linear='int8', keep={worst[:1]})")
    return [*lines, "to undo all: disable(model)"]


def tensors_of(output: Any) -> dict[str, Tensor]:
    """Return the floating-point tensors of a model's output by name."""
    named = output if isinstance(output, dict) else {"output": output if isinstance(output, Tensor) else output[0]}
    return {name: x for name, x in named.items() if isinstance(x, Tensor) and x.is_floating_point()}


def difference(x: Tensor, exact: Tensor) -> float:
    """Return the root mean square of a difference, relative to that of the exact values."""
    size = float(exact.float().norm())
    return float((x - exact).float().norm()) / size if size > 0.0 else 0.0
