"""Linear layers in int8 compared with exact sums of integers. Imports no models, so that a new process starts fast."""

import numpy as np
import torch
from relattn.backends.native.int8 import PAIRS
from relattn.integrations.transformers import int8
from torch import nn


def expected(layer, input, largest):
    """Return the output of a layer with exact sums of integers, in float64."""
    weight, rows, bias = (tensor.detach().double().numpy() for tensor in (layer.weight, input, layer.bias))
    scale, row_scale = (np.abs(x).max(1, keepdims=True) for x in (weight, rows))
    scale, row_scale = (np.where(x == 0, 1, x) for x in (scale, row_scale))
    integers, weights = np.rint(rows / row_scale * 127), np.rint(weight / scale * largest)
    return (integers @ weights.T) * (scale.T / largest) * (row_scale / 127) + bias


def extremes(rows, inputs, outputs):
    """Yield layers and inputs with small integers as values, so that they are quantized without ties."""
    for draw in (
        lambda *shape: torch.where(torch.rand(shape) < 0.5, -1.0, 1.0),
        lambda *shape: torch.ones(shape),
        lambda *shape: torch.zeros(shape),
        lambda *shape: torch.randint(-1, 2, shape).float() * 1e-30,
        lambda *shape: torch.randint(-1, 2, shape).float() * 1e15,
    ):
        layer, input = nn.Linear(inputs, outputs), draw(rows, inputs)
        with torch.no_grad():
            layer.weight.copy_(draw(outputs, inputs))
            layer.bias.zero_()
        yield layer, input


def assert_sums_are_exact():
    for inputs, outputs in ((64, 64), (65, 130), (513, 77), (96, 259)):
        for layer, input in extremes(300, inputs, outputs):
            assert len(int8.quantize(layer)) == 1
            want = expected(layer, input, 63 if int8.product() == PAIRS else 127)
            for rows in (1, 2, 15, 16, 17, 127, 128, 129, 300):
                with torch.inference_mode():
                    output = layer(input[:rows])
                np.testing.assert_allclose(output, want[:rows], rtol=1e-5, atol=1e-30)
