"""Weights of a `Transformer` by name, in both directions."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from relattn_mt.config import ModelConfig
from relattn_mt.engine.quantization import in_float32
from relattn_mt.model.transformer import SkipInitialization, Transformer
from relattn_mt.support.errors import naming
from relattn_mt.support.types import VocabSizes
from relattn_mt.weights import TensorDict, Tensors, require_fit


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model by name. A shared tensor has one name, as safetensors requires."""
    names = model.state_dict().keys()
    named = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name in names}


def arrays_of(model: Transformer) -> TensorDict:
    """Return the weights of a model by name, as NumPy's arrays in float32. Those on the CPU share their memory."""
    return {name: tensor.float().cpu().contiguous().numpy() for name, tensor in weights_of(model).items()}


def make_model(config: ModelConfig, vocab_sizes: VocabSizes, state: Tensors, *, source: object) -> Transformer:
    """Build a model with the weights `state`; its memory is allocated only if they fit.

    Weights of a quantized model are dequantized. `source` is the name of the weights in messages.

    Raises:
        InputError: The weights do not fit, or integers or scales are out of range.
    """
    require_fit(config, vocab_sizes, state, source)
    with SkipInitialization(), torch.device("cpu"):
        model = Transformer(config, *vocab_sizes).float()  # whatever the default dtype is
    load_weights(model, state, source=source)
    return model


def load_weights(model: Transformer, state: Tensors, *, source: object) -> None:
    """Copy the weights `state` into a model.

    Raises:
        InputError: Names, shapes or dtypes differ. The message names several differences; the model is not changed.
    """
    require_fit(model.config, model.vocab_sizes, state, source)
    with naming(str(source)):
        for name, tensor in weights_of(model).items():
            tensor.copy_(torch.tensor(in_float32(state, name), device="cpu"))
