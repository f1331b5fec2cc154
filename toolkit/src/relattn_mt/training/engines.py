"""Which engine runs a model."""

from __future__ import annotations

import torch

from relattn_mt.engine.decoder import NativeDecoder, unsupported_reason
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.search.engine import Engine
from relattn_mt.support.errors import InputError


def engine_of(model: Transformer, device: str | torch.device = "cpu", *, int8: bool = False) -> Engine:
    """Return the compiled engine for a model, or PyTorch if that does not support the model or the device.

    Args:
        model: The model. Its weights must not change while the engine is used.
        device: Device to compute on.
        int8: Whether to compute in int8.

    Raises:
        InputError: `int8` is not supported for this model.
    """
    dtype = str(model.embedding.dtype).removeprefix("torch.")
    reason = unsupported_reason(model.config, str(device), dtype)
    if reason is None:
        return NativeEngine(NativeDecoder(model.config, model.vocab_sizes, arrays_of(model), int8=int8))
    if int8:
        raise InputError(f"precision int8 requires the compiled decoder: {reason}")
    return TorchEngine(model, device, reason)
