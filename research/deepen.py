"""More encoder layers for a trained model, to be trained on. At first, they change nothing.

A new layer is a copy of the one before it whose two output projections are zero, so that with pre-norm it adds zero to
its input. The copies are spread over the encoder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from relattn_mt.bundle import Bundle, require_writable
from relattn_mt.support.errors import require
from relattn_mt.weights import Tensors

_OUTPUTS = "self_attention.out.weight", "self_attention.out.bias", "feed_forward.3.weight", "feed_forward.3.bias"


def deepen(source: Bundle, out: Path, encoder_layers: int) -> None:
    """Write a bundle in float32 that translates as another one, and has more encoder layers.

    Raises:
        InputError: The bundle has post-norm, or that many layers or more, or `out` exists.
    """
    old = source.model.encoder_layers
    require(
        source.model.norm == "pre",
        f"{source.path}: the model must have pre-norm, so that new layers can change nothing",
    )
    require(encoder_layers > old, f"encoder_layers must be above the {old} that the model has, got {encoder_layers}")
    require_writable(out, overwrite=False)
    new = encoder_layers - old
    copied = [max(round((number + 1) * old / (new + 1)), 1) - 1 for number in range(new)]
    state = source.in_float32().state
    deeper = {name: state[name] for name in state if not name.startswith("encoder.")}
    number = 0
    for layer in range(old):
        weights = _weights_of(state, layer)
        silent = {name: np.zeros_like(weight) if name in _OUTPUTS else weight for name, weight in weights.items()}
        for each in (weights, *[silent] * copied.count(layer)):
            deeper |= {f"encoder.{number}.{name}": weight for name, weight in each.items()}
            number += 1
    model = replace(source.model, encoder_layers=encoder_layers)
    replace(source, path=out, model=model, state=deeper).save(source.card)


def _weights_of(state: Tensors, layer: int) -> dict[str, np.ndarray]:
    """Return the weights of an encoder layer by their names in it."""
    prefix = f"encoder.{layer}."
    return {name.removeprefix(prefix): np.asarray(state[name]) for name in state if name.startswith(prefix)}
