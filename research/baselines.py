"""Schemes of the literature before the Transformer, `lstm` and `cnn`: other layers in place of self-attention.

The rest of the model is the same for all schemes: embeddings, attention to the source, feed-forward layers, residual
connections, optimizer. So a comparison shows what self-attention adds. The models of the literature differ more: GNMT's
layers are LSTMs alone, with one attention, and ConvS2S adds learned positions. Only PyTorch's engine runs the schemes.
"""

from __future__ import annotations

from relattn_mt.config import positions
from relattn_mt.config.positions import OtherMixer, Scheme, Shapes

KERNEL_SIZE = 3  # positions that the convolution covers


class LSTM(OtherMixer):
    """An LSTM, bidirectional in the encoder."""

    even = "dim"
    module = "research.baseline_layers:LSTM"

    def weights(self, dim: int, is_causal: bool) -> Shapes:
        hidden = dim if is_causal else dim // 2
        shapes: Shapes = {}
        for direction in [""] if is_causal else ["", "_reverse"]:
            for part, inputs in (("ih", dim), ("hh", hidden)):
                shapes[f"lstm.weight_{part}_l0{direction}"] = (4 * hidden, inputs)
                shapes[f"lstm.bias_{part}_l0{direction}"] = (4 * hidden,)
        return shapes


class Convolution(OtherMixer):
    """A convolution with a gated linear unit."""

    module = "research.baseline_layers:Convolution"

    def weights(self, dim: int, is_causal: bool) -> Shapes:
        return {"kernel": (2 * dim, dim, KERNEL_SIZE), "bias": (2 * dim,)}


SCHEMES = {
    "lstm": Scheme(
        "LSTM",
        "an LSTM in place of self-attention, bidirectional in the encoder (Wu et al. 2016)",
        lambda config: (None, LSTM()),
    ),
    "cnn": Scheme(
        "CNN",
        f"a gated convolution of {KERNEL_SIZE} positions in place of self-attention (Gehring et al. 2017)",
        lambda config: (None, Convolution()),
    ),
}


def register() -> None:
    """Let recipes and bundles of this process name these schemes."""
    for name, scheme in SCHEMES.items():
        positions.register(name, scheme)
