"""The base class of position schemes, and the schemes that have no position signal."""

from __future__ import annotations

from torch import Tensor, nn

from relattn.nn import SelfAttention
from relattn.translation.config import ModelConfig
from relattn.translation.model.attention import PlainAttention
from relattn.translation.model.linear import Linear
from relattn.translation.model.mixers import ConvolutionMixer, LSTMMixer, TokenMixer


class PositionScheme(nn.Module):
    """One way for an encoder or a decoder to know word order.

    A scheme does two things. `embed` adds a signal to embeddings. `token_mixer` builds, for each layer, the sub-layer
    in which positions see each other; that is self-attention around `attention`, unless the scheme replaces it. The
    defaults here add no signal. The rest of the model is the same for all schemes. Parameters that all layers of a
    stack share belong to the scheme, those of one layer to its token mixer.

    To add a scheme, add a subclass to this package, the class to `schemes.py`, and its name and options to
    `options.py`.

    Args:
        config: Configuration of the model.
        is_causal: Whether the scheme is for the decoder, where a position sees only itself and earlier positions.
    """

    max_length: int | None = None  # longest sequence, in tokens; None for no limit

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.config, self.is_causal = config, is_causal

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        """Return embeddings with the signal of their positions added.

        Args:
            embeddings: (rows, length, dim), at positions start, start + 1, ….
            start: Position of the first embedding.

        Raises:
            ValueError: A position is outside the range that the scheme covers.
        """
        return embeddings

    def attention(self) -> nn.Module:
        """Build the attention of one layer, a module with the interface of `PlainAttention`."""
        return PlainAttention(self.config)

    def token_mixer(self) -> TokenMixer:
        """Build the sub-layer in which the positions of one layer see each other."""
        dim, heads = self.config.dim, self.config.heads
        # Projections are initialised before the attention: the order decides which weights a seed gives.
        query, key, value, out = (Linear(dim, dim) for _ in range(4))
        return SelfAttention(query, key, value, out, self.attention(), num_heads=heads, is_causal=self.is_causal)


class NoPositions(PositionScheme):
    """No position signal: the model sees each sequence as a bag of tokens. It is a baseline."""


class LSTM(PositionScheme):
    """An LSTM in place of self-attention, bidirectional in the encoder (Hochreiter and Schmidhuber 1997).

    The recurrence conveys the order. Sequences of any length are supported. `LSTMMixer` gives the equations.
    """

    def token_mixer(self) -> LSTMMixer:
        """Build the LSTM of one layer."""
        return LSTMMixer(self.config, is_causal=self.is_causal)


class CNN(PositionScheme):
    """A gated convolution in place of self-attention (Gehring et al. 2017, section 3.2).

    The kernel conveys the order of the positions that it covers. Sequences of any length are supported.
    `ConvolutionMixer` gives the equation.
    """

    def token_mixer(self) -> ConvolutionMixer:
        """Build the convolution of one layer."""
        return ConvolutionMixer(self.config, is_causal=self.is_causal)
